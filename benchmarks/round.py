"""A whole round over real gRPC and TLS: 32 silos of 270,000 parameters, K = 0.05 d, s = 4. Milliseconds and kilobytes.

Server and silos share this machine's cores, so the time holds the work of all 32 silos as well as the server's; the CPU
seconds of both sides are given apart, as the least and the median over turns. Sizes are those of the messages, without TLS and
HTTP/2 framing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.idle_silos import Figures, Shape, play, shares
from benchmarks.machine import save


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.round", description=__doc__)
    parser.add_argument("--silos", type=int, default=32)
    parser.add_argument("--parameters", type=int, default=270_000)
    parser.add_argument("--rounds", type=int, default=20, help="of each turn")
    parser.add_argument("--turns", type=int, default=5, help="each with a new server and new silos")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    shape = Shape(options.silos, options.parameters, 0.05, 4, options.rounds)
    result = best_of([summary(shape, asyncio.run(play(shape))) for _ in range(options.turns)])
    print(
        f"{shape.silos} silos, d = {shape.parameters:,}, K = 0.05 d, s = 4, {result['rounds']} rounds on {result['cores']} cores"
    )
    print(f"  round        {result['ms_per_round_min']:8.0f} ms at best, {result['ms_per_round_median']:.0f} ms median")
    print(
        f"  CPU          {result['cpu_ms_server']:8.0f} ms server, {result['cpu_ms_all_silos']:.0f} ms all silos together, "
        f"the least of {result['turns']} turns"
    )
    print(
        f"               {result['cpu_ms_per_silo']:8.2f} ms a silo, besides training; "
        f"medians {result['cpu_ms_server_median']:.0f} and {result['cpu_ms_per_silo_median']:.2f} ms"
    )
    up, down = result["kb_up_per_silo"], result["kb_down_per_silo"]
    print(f"  per silo     {up + down:8.1f} KB: {up:.1f} up, {down:.1f} down")
    print_server_work(result)
    if options.json:
        save(options.json, result)


def summary(shape: Shape, figures: Figures) -> dict[str, Any]:
    """Per round, of what `play` measured."""
    count = len(figures.seconds)
    return {
        "silos": shape.silos,
        "parameters": shape.parameters,
        "rounds": count,
        "cores": os.cpu_count(),
        "rounds_per_second": count / sum(figures.seconds),
        "ms_per_round_min": 1e3 * min(figures.seconds),
        "ms_per_round_median": 1e3 * statistics.median(figures.seconds),
        "cpu_ms_server": 1e3 * figures.server["cpu"] / count,
        "cpu_ms_all_silos": 1e3 * figures.silo_cpu / count,
        "cpu_ms_per_silo": 1e3 * (figures.silo_cpu - figures.training_cpu) / count / shape.silos,
        "kb_up_per_silo": figures.sent / count / shape.silos / 1e3,
        "kb_down_per_silo": figures.received / count / shape.silos / 1e3,
        "server_peak_mb": figures.server["peak_mb"],
        "server_cpu_ms": {name: 1e3 * seconds / count for name, seconds in shares(figures.server).most_common()},
    }


def best_of(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """The turn in which server and silos together took least CPU, with the medians of all; wall times are over all rounds."""
    best = min(turns, key=lambda turn: turn["cpu_ms_server"] + turn["cpu_ms_all_silos"])
    return best | {
        "turns": len(turns),
        "rounds": sum(turn["rounds"] for turn in turns),
        "ms_per_round_min": min(turn["ms_per_round_min"] for turn in turns),
        "ms_per_round_median": statistics.median(turn["ms_per_round_median"] for turn in turns),
        "cpu_ms_server_median": statistics.median(turn["cpu_ms_server"] for turn in turns),
        "cpu_ms_per_silo_median": statistics.median(turn["cpu_ms_per_silo"] for turn in turns),
    }


def print_server_work(result: dict[str, Any]) -> None:
    for name, milliseconds in result["server_cpu_ms"].items():
        print(f"    server CPU: {name:<26} {milliseconds:7.1f} ms per round")


if __name__ == "__main__":
    main()
