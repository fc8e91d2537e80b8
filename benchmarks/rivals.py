"""Whole systems side by side: the cost of a round, and what two poisoned silos of ten do to the model in 30 rounds.

    python -m benchmarks.rivals [--quick] [--repeats N] [--seconds S]      (make bench-peers runs it with the other comparisons)

Rounds: ten silos that train nothing, d = 270,000. The systems take turns, several times over; the first round of a turn in a
simulated engine, which starts its workers, does not count. Poisoned: ten silos train on digits, two of them send ten times the
opposite of what they learned. Flower's Krum under SecAgg+ gets nothing to choose from but the sum, and says nothing; FedREP's
rule sees the means of buffers of two. FedREP sends a twentieth of the coordinates in a round, in both parts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import rival_systems as systems
from benchmarks.environment import ROOT
from benchmarks.resumable import Steps, add_options

RESULTS = ROOT / "benchmarks" / "results" / "rivals.json"
ROUNDS, POISONED_ROUNDS = 6, 30
Step = Callable[[], dict[str, Any]]

ROUND_STEPS: dict[str, Step] = {
    "FedREP, gRPC and TLS: secure, robust, compressed": lambda: systems.ours("idle", 20),
    "Flower simulated, FedAvg": lambda: systems.flower_simulated("idle", ROUNDS, "mean", secagg=False),
    "Flower simulated, SecAgg+": lambda: systems.flower_simulated("idle", ROUNDS, "mean", secagg=True),
    "NVFlare simulated, FedAvg": lambda: systems.nvflare_simulated("idle", ROUNDS),
    "Flower deployed, FedAvg": lambda: systems.flower_deployed(2, secagg=False),
    "Flower deployed, SecAgg+": lambda: systems.flower_deployed(1, secagg=True),
}
POISONED_STEPS: dict[str, Step] = {
    "nobody poisoned, plain mean": lambda: systems.undisturbed(POISONED_ROUNDS),
    "FedREP: buffers of two, geometric median": lambda: systems.ours("digits", POISONED_ROUNDS),
    "Flower SecAgg+ with Krum": lambda: systems.flower_simulated("digits", POISONED_ROUNDS, "krum", secagg=True),
    "Flower SecAgg+ with FedAvg": lambda: systems.flower_simulated("digits", POISONED_ROUNDS, "mean", secagg=True),
    "Flower Krum without SecAgg": lambda: systems.flower_simulated("digits", POISONED_ROUNDS, "krum", secagg=False),
    "NVFlare FedAvg": lambda: systems.nvflare_simulated("digits", POISONED_ROUNDS),
}
STARTS_IN_A_ROUND = "simulated"  # such an engine starts its workers in the first round of a turn, which does not count


def rounds_of(name: str, steps: dict[str, dict[str, Any]]) -> list[float]:
    turns = [step["seconds"] for key, step in steps.items() if key.startswith(f"round: {name}, turn ")]
    return [seconds for turn in turns for seconds in (turn[1:] if STARTS_IN_A_ROUND in name else turn)]


def summary(steps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    rounds = []
    for name in ROUND_STEPS:
        seconds = rounds_of(name, steps)
        if seconds:
            best, median = 1e3 * min(seconds), 1e3 * statistics.median(seconds)
            rounds.append({"system": name, "best_ms": best, "median_ms": median, "rounds": len(seconds)})
    poisoned = [
        {
            "system": name,
            "accuracy": steps[f"poisoned: {name}"]["accuracies"][-1],
            "by_round": steps[f"poisoned: {name}"]["accuracies"],
        }
        for name in POISONED_STEPS
        if f"poisoned: {name}" in steps
    ]
    return {"rounds": rounds, "poisoned": poisoned, "peers": [*systems.FLOWER, systems.NVFLARE[0]]}


def show(figures: dict[str, Any]) -> None:
    print(f"a round of {systems.SILOS} silos that train nothing, d = {systems.PARAMETERS:,}")
    for row in figures["rounds"]:
        counted = f"of {row['rounds']} rounds"
        print(f"  {row['system']:<50} {row['best_ms']:>9,.0f} ms at best {row['median_ms']:>9,.0f} ms median {counted}")
    print(f"accuracy after {POISONED_ROUNDS} rounds, two of ten silos poisoned")
    for row in figures["poisoned"]:
        print(f"  {row['system']:<50} {row['accuracy']:>9.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each system")
    parser.add_argument("--quick", action="store_true", help="one turn, and Flower's deployment engine left out")
    parser.add_argument("--part", choices=["rounds", "poisoned"], help="only one of the two")
    add_options(parser, RESULTS)
    options = parser.parse_args()
    steps = Steps(Path(options.json), options.seconds, fresh=options.fresh)
    left_out = ("Flower deployed",) if options.quick else ()
    wanted = [
        (f"round: {name}, turn {turn}", step)
        for turn in range(1, 2 if options.quick else options.repeats + 1)
        for name, step in ROUND_STEPS.items()
        if not name.startswith(left_out or ("-",))
    ]
    wanted = [] if options.part == "poisoned" else wanted
    if options.part != "rounds":
        wanted += [(f"poisoned: {name}", step) for name, step in POISONED_STEPS.items()]
    complete = steps.play(wanted)
    figures = summary(steps.done)
    steps.keep(**figures)
    show(figures)
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
