"""A round over a wide-area network, each silo behind 50 ms each way and 20 Mbit/s, against dense FedAvg and the wire itself.

    python -m benchmarks.wide_area [--quick] [--delay MS] [--rate MBIT]

The wire's own time is what the link needs for the bytes of a round, up and down one after the other, and for its round trips in
sequence; both are counted at the link. Four phases ask for four round trips: no silo can answer to what it has not heard
(propose, submit, confirm, reveal). The same wire with the bytes alone, were all phases one, is the bandwidth floor. Dense
FedAvg is one call a round on the same links: the vector up, the mean down.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.dense import play_dense
from benchmarks.environment import ROOT
from benchmarks.idle_silos import Shape, play
from benchmarks.resumable import Steps, add_options
from tests.harness.link_process import LinkControl, LinkProcess

RESULTS = ROOT / "benchmarks" / "results" / "wide_area.json"
SILOS, BUFFER, FRACTION = 8, 4, 0.05
SIZES = (270_000, 5_000_000)
PHASES = 4
WIRE_SHARE = 0.9


def names(silos: int) -> list[str]:
    return [f"silo-{number:03d}" for number in range(silos)]


def counted(links: LinkControl) -> list[tuple[int, int, int]]:
    counts = [links.counts(silo) for silo in names(SILOS)]
    return [(count["up"], count["down"], count["round_trips"]) for count in counts]


def sparse(parameters: int, rounds: int, delay: float, rate: float) -> dict[str, Any]:
    readings: list[list[tuple[int, int, int]]] = []
    with LinkProcess.start() as links:

        def route(silo: str, port: int) -> int:
            return links.open(silo, target=port, delay=delay, bytes_per_second=rate)

        def ended(number: int, _: object) -> None:
            if number in (0, rounds):
                readings.append(counted(links))

        shape = Shape(SILOS, parameters, FRACTION, BUFFER, rounds)
        figures = asyncio.run(play(shape, warm_up=2, route=route, ended=ended))
    before, after = readings
    up, down, trips = (
        statistics.mean(late[index] - early[index] for early, late in zip(before, after, strict=True)) / rounds
        for index in range(3)
    )
    return {"seconds": figures.seconds, "up": up, "down": down, "round_trips": trips}


def dense(parameters: int, rounds: int, delay: float, rate: float) -> dict[str, Any]:
    with LinkProcess.start() as links:

        def route(silo: str, port: int) -> int:
            return links.open(silo, target=port, delay=delay, bytes_per_second=rate)

        return {"seconds": asyncio.run(play_dense(SILOS, parameters, rounds, route))}


def summary(parameters: int, ours: dict[str, Any], theirs: dict[str, Any], delay: float, rate: float) -> dict[str, Any]:
    floor = (ours["up"] + ours["down"]) / rate
    trip = 2 * delay
    best = min(ours["seconds"])
    return {
        "parameters": parameters,
        "best_s": best,
        "median_s": statistics.median(ours["seconds"]),
        "dense_best_s": min(theirs["seconds"]),
        "dense_median_s": statistics.median(theirs["seconds"]),
        "bytes_up": ours["up"],
        "bytes_down": ours["down"],
        "round_trips": ours["round_trips"],
        "least_round_trips": PHASES,
        "bandwidth_floor_s": floor,
        "wire_s": floor + ours["round_trips"] * trip,
        "least_wire_s": floor + PHASES * trip,
        "wire_share": (floor + PHASES * trip) / best,
    }


def show(row: dict[str, Any]) -> None:
    print(f"d = {row['parameters']:,}: a round takes {row['best_s']:.2f} s at best, {row['median_s']:.2f} s median;", end=" ")
    print(f"dense FedAvg {row['dense_best_s']:.2f} and {row['dense_median_s']:.2f} s")
    print(
        f"    {row['bytes_up'] / 1e3:,.0f} kB up and {row['bytes_down'] / 1e3:,.0f} kB down: {row['bandwidth_floor_s']:.2f} s",
        end=" ",
    )
    print(f"of bandwidth; {row['round_trips']:.1f} round trips in sequence, {row['least_round_trips']} at least")
    print(f"    bandwidth and {row['least_round_trips']} round trips: {row['least_wire_s']:.2f} s,", end=" ")
    print(f"{100 * row['wire_share']:.0f} % of the best round")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_area", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"d = {SIZES[0]:,} alone")
    parser.add_argument("--delay", type=float, default=50.0, help="milliseconds each way")
    parser.add_argument("--rate", type=float, default=20.0, help="Mbit/s each way")
    parser.add_argument("--rounds", type=int, default=6)
    add_options(parser, RESULTS)
    options = parser.parse_args()
    delay, rate = options.delay / 1e3, options.rate * 1e6 / 8
    steps = Steps(Path(options.json), options.seconds, fresh=options.fresh)
    sizes = SIZES[:1] if options.quick else SIZES
    wire = f"{options.delay:g} ms, {options.rate:g} Mbit/s"

    def play_both(parameters: int) -> list[tuple[str, Any]]:
        few = options.rounds if parameters < 1_000_000 else max(options.rounds // 3, 1)
        return [
            (f"fedrep, d = {parameters}, {wire}", lambda: sparse(parameters, options.rounds, delay, rate)),
            (f"dense, d = {parameters}, {wire}", lambda: dense(parameters, few, delay, rate)),
        ]

    complete = steps.play(step for parameters in sizes for step in play_both(parameters))
    rows = []
    for parameters in sizes:
        kinds = [steps.done.get(f"{kind}, d = {parameters}, {wire}") for kind in ("fedrep", "dense")]
        if kinds[0] is not None and kinds[1] is not None:
            rows.append(summary(parameters, kinds[0], kinds[1], delay, rate))
            show(rows[-1])
    steps.keep(delay_ms=options.delay, mbit=options.rate, silos=SILOS, rows=rows)
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
