"""A round over a wide-area network, each silo behind 50 ms each way and 20 Mbit/s, against dense FedAvg and the wire itself.

    python -m benchmarks.wide_area [--quick] [--delay MS] [--rate MBIT]

The wire's own time is what the link needs for the bytes of a round, up and down one after the other, and for its round trips in
sequence; both are counted at the link. Four phases ask for four round trips: no silo can answer to what it has not heard
(propose, submit, confirm, reveal). The same wire with the bytes alone, were all phases one, is the bandwidth floor. Dense
FedAvg is one call a round on the same links: the vector up, the mean down.

All silos compute on the cores of this one machine, and the server beside them, so a round is longer here than the wire makes it.
What the wire itself gets is seen in the transfers: from the moment when a silo hands a large message to gRPC until its last byte
is at the server, and from the first byte of a large answer until the silo has it whole. Of that time the link needs the message's
bytes at its rate and one delay; the rest is waiting for windows, encoding and decoding.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.dense import play_dense
from benchmarks.environment import ROOT
from benchmarks.idle_silos import IdleSilo, Shape, Transfer, play
from benchmarks.resumable import Steps, add_options
from tests.harness.link import Piece
from tests.harness.link_process import LinkControl, LinkProcess

RESULTS = ROOT / "benchmarks" / "results" / "wide_area.json"
SILOS, BUFFER, FRACTION = 8, 4, 0.05
SIZES = (270_000, 5_000_000)
PHASES = 4
LARGE = 16_384  # bytes of a message whose transfer is looked at


def names(silos: int) -> list[str]:
    return [f"silo-{number:03d}" for number in range(silos)]


def wire_shares(transfers: Sequence[Transfer], pieces: Sequence[Piece], delay: float, rate: float) -> dict[str, list[float]]:
    """By method and way, of one silo: the time that the link needs for its large messages, and the time that they took."""
    ways = {way: [piece for piece in pieces if piece.way == way] for way in ("up", "down")}
    times: dict[str, list[float]] = {}

    def note(name: str, size: int, took: float) -> None:
        total = times.setdefault(name, [0.0, 0.0])
        total[0] += size / rate + delay
        total[1] += took

    for one in transfers:
        if one.up >= LARGE:
            later = (piece for piece in ways["up"] if piece.entered >= one.began)
            note(f"{one.method}, up", one.up, _until(one.up, later).arrived - one.began)
        if one.down >= LARGE:
            earlier = (piece for piece in reversed(ways["down"]) if piece.arrived <= one.ended)
            note(f"{one.method}, down", one.down, one.ended - _until(one.down, earlier).entered)
    return times


def _until(size: int, pieces: Iterable[Piece]) -> Piece:
    """The piece with which so many bytes are complete."""
    for piece in pieces:
        size -= piece.size
        if size <= 0:
            return piece
    raise ValueError("the link carried less than the message has")


def counted(links: LinkControl) -> list[tuple[int, int, int]]:
    counts = [links.counts(silo) for silo in names(SILOS)]
    return [(count["up"], count["down"], count["round_trips"]) for count in counts]


def sparse(parameters: int, rounds: int, delay: float, rate: float) -> dict[str, Any]:
    readings: list[list[tuple[int, int, int]]] = []
    times: dict[str, list[float]] = {}
    with LinkProcess.start() as links:

        def route(silo: str, port: int) -> int:
            return links.open(silo, target=port, traced=True, delay=delay, bytes_per_second=rate)

        def ended(number: int, silos: list[IdleSilo]) -> None:
            if number in (0, rounds):
                readings.append(counted(links))
            for name, silo in zip(names(SILOS), silos, strict=True):
                pieces, transfers, silo.meter.transfers = links.pieces(name), silo.meter.transfers, []
                if number > 0 and transfers is not None:
                    for kind, (needed, took) in wire_shares(transfers, pieces, delay, rate).items():
                        total = times.setdefault(kind, [0.0, 0.0])
                        total[0] += needed
                        total[1] += took

        shape = Shape(SILOS, parameters, FRACTION, BUFFER, rounds)
        figures = asyncio.run(play(shape, warm_up=2, route=route, ended=ended))
    before, after = readings
    up, down, trips = (
        statistics.mean(late[index] - early[index] for early, late in zip(before, after, strict=True)) / rounds
        for index in range(3)
    )
    return {"seconds": figures.seconds, "up": up, "down": down, "round_trips": trips, "transfers": times}


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
        "transfers": {kind: needed / took for kind, (needed, took) in ours["transfers"].items()},
        "transfer_share": sum(one[0] for one in ours["transfers"].values()) / sum(one[1] for one in ours["transfers"].values()),
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
    shares = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in row["transfers"].items())
    print(f"    the wire in the transfers: {100 * row['transfer_share']:.0f} % ({shares})")


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
