"""Bytes on the socket, per silo and round, against the paper's (96 + 32/m) K bits: `python -m benchmarks.wire [--quick]`.

Real daemons and a real server over TLS, each silo through a link of its own that counts what passes: messages, the envelope of
Play, HTTP/2 frames, TLS records and pings, everything but TCP's and IP's own headers. Connecting and joining come before the
rounds that count. Message sizes by method, counted within the silos, say which bytes they are; the rest is framing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.idle_silos import Shape, play
from benchmarks.machine import save
from fedrep.communication import dense_bits, paper_bits
from tests.harness.link_process import LinkProcess

FRACTION = 0.05


@dataclass(frozen=True)
class Case:
    silos: int
    parameters: int
    bits: int
    limit: float

    @property
    def name(self) -> str:
        return f"m = {self.silos}, d = {self.parameters:,}, K = {round(FRACTION * self.parameters):,}, B = {self.bits}"


CASES = (
    Case(32, 270_000, 16, 0.55),
    Case(32, 1_000_000, 16, 0.45),
    Case(32, 270_000, 8, 0.35),
)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """The middle one of the rounds: a ping or a renewed window more or less belongs to the line, not to the round."""
    shape = Shape(case.silos, case.parameters, FRACTION, 4, rounds, ring_bits=case.bits, downlink_bits=min(case.bits, 16))
    totals: list[tuple[int, int]] = []
    with LinkProcess.start() as links:

        def route(silo: str, port: int) -> int:
            return links.open(silo, target=port)

        def ended(number: int, _: object) -> None:
            if number < 0:
                return
            counts = [links.counts(f"silo-{silo:03d}") for silo in range(case.silos)]
            totals.append((sum(count["up"] for count in counts), sum(count["down"] for count in counts)))

        figures = asyncio.run(play(shape, warm_up=2, route=route, ended=ended))
    up, down = (statistics.median(after[way] - before[way] for before, after in pairwise(totals)) / case.silos for way in (0, 1))
    K = round(FRACTION * case.parameters)
    return {
        "silos": case.silos,
        "parameters": case.parameters,
        "coordinates": K,
        "bits": case.bits,
        "downlink_bits": shape.downlink_bits,
        "rounds": rounds,
        "socket_up": up,
        "socket_down": down,
        "messages_up": {name: count / rounds / case.silos for name, count in sorted(figures.up.items())},
        "messages_down": {name: count / rounds / case.silos for name, count in sorted(figures.down.items())},
        "paper": paper_bits(K, case.silos) / 8,
        "dense": dense_bits(case.parameters) / 8,
        "ratio_to_paper": 8 * (up + down) / paper_bits(K, case.silos),
        "limit": case.limit,
    }


def show(case: Case, result: dict[str, Any]) -> None:
    total = result["socket_up"] + result["socket_down"]
    print(
        f"{case.name}: {total:,.0f} bytes per silo and round on the socket, {result['ratio_to_paper']:.3f}x the paper's", end=" "
    )
    print(f"(at most {case.limit}), {total / result['dense']:.4f}x dense")
    methods = sorted(result["messages_up"].keys() | result["messages_down"].keys())
    for name in methods:
        sent, received = result["messages_up"].get(name, 0), result["messages_down"].get(name, 0)
        print(f"    {name:<20} {sent:>10,.0f} up {received:>10,.0f} down")
    framing = [result[f"socket_{way}"] - sum(result[f"messages_{way}"].values()) for way in ("up", "down")]
    print(f"    {'framing':<20} {framing[0]:>10,.0f} up {framing[1]:>10,.0f} down")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="the smallest case alone, three rounds")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results, refused = [], 0
    for case in CASES[:1] if options.quick else CASES:
        try:
            results.append(measure(case, 3 if options.quick else options.rounds))
        except RuntimeError as error:  # the preflight's word: such a run cannot be created
            print(f"{case.name}: {error}")
            refused += 1
            continue
        show(case, results[-1])
        if options.json:
            save(options.json, {"cases": results})
    return int(refused > 0 or any(result["ratio_to_paper"] > result["limit"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
