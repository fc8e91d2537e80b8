"""What a round costs as it grows: with d, with m, with s and with K/d. Time by part, bytes and memory, with fitted exponents.

    python -m benchmarks.scaling [--quick] [--axis d ...] [--repeats N] [--seconds S]

Each point is a process of its own, with a server in another, real daemons and mutual TLS; silos train nothing. The points take
turns, and a call goes on with those that are missing. An exponent is the slope of the least-squares line through the logarithms;
the last step's own slope stands beside it, since fixed costs flatten the first ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.idle_silos import Shape, play
from benchmarks.resumable import Steps, add_options
from benchmarks.round import summary
from benchmarks.silo_timers import install_silo_timers, silo_shares

RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"


@dataclass(frozen=True)
class Point:
    silos: int
    parameters: int
    buffer_size: int
    fraction: float

    @property
    def rounds(self) -> int:
        return 3 if self.parameters >= 10**7 or self.silos > 64 else 8

    @property
    def name(self) -> str:
        return f"m = {self.silos}, d = {self.parameters}, s = {self.buffer_size}, K/d = {self.fraction}"


AXES: dict[str, dict[float, Point]] = {
    "d": {d: Point(4, d, 2, 0.05) for d in (10**5, 10**6, 10**7, 10**8)},
    "m": {m: Point(m, 270_000, 4, 0.05) for m in (8, 16, 32, 64, 128, 255)},
    "s": {s: Point(32, 270_000, s, 0.05) for s in (2, 4, 8, 16)},
    "K/d": {share: Point(8, 1_000_000, 4, share) for share in (0.01, 0.02, 0.05, 0.1, 0.2)},
}
QUICK: dict[str, tuple[float, ...]] = {"d": (10**5, 10**6), "m": (8, 16), "s": (2, 4), "K/d": (0.01, 0.05)}
QUANTITIES = {
    "best_ms": "round, best ms",
    "median_ms": "round, median ms",
    "server_ms": "server CPU, ms",
    "silo_ms": "CPU per silo, ms",
    "kb_up": "kB up per silo",
    "kb_down": "kB down per silo",
    "server_mb": "server peak, MB",
    "silo_mb": "peak per silo, MB",
}


def measure(point: Point) -> dict[str, Any]:
    """In this process."""
    install_silo_timers()
    shape = Shape(point.silos, point.parameters, point.fraction, point.buffer_size, point.rounds)
    figures = asyncio.run(play(shape, warm_up=1))
    count = len(figures.seconds)
    parts = {name: 1e3 * seconds / count / point.silos for name, seconds in silo_shares(figures.silo_cpu).most_common()}
    more = {"seconds": figures.seconds, "silo_cpu_ms": parts, "silos_peak_mb": figures.silo_peak_mb}
    return summary(shape, figures) | more


def measured_apart(point: Point) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--point", json.dumps(asdict(point))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        return {"failed": f"ended with {done.returncode}: {tail}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def row(value: float, point: Point, turns: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [second for turn in turns for second in turn["seconds"]]
    least = min(turns, key=lambda turn: turn["cpu_ms_server"])
    return {
        "at": value,
        **asdict(point),
        "best_ms": 1e3 * min(seconds),
        "median_ms": 1e3 * statistics.median(seconds),
        "rounds": len(seconds),
        "server_ms": least["cpu_ms_server"],
        "silo_ms": min(turn["cpu_ms_all_silos"] for turn in turns) / point.silos,
        "kb_up": statistics.median(turn["kb_up_per_silo"] for turn in turns),
        "kb_down": statistics.median(turn["kb_down_per_silo"] for turn in turns),
        "server_mb": min(turn["server_peak_mb"] for turn in turns),
        "silo_mb": min(turn["silos_peak_mb"] for turn in turns) / point.silos,
        "server_parts": least["server_cpu_ms"],
        "silo_parts": least["silo_cpu_ms"],
    }


def slope(xs: list[float], ys: list[float]) -> float:
    """Of the line of least squares through the logarithms."""
    return statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys]).slope


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    if len(rows) < 2:
        return {}
    at = [line["at"] for line in rows]
    series = {name: [line[name] for line in rows] for name in QUANTITIES}
    return {name: {"fit": slope(at, ys), "last": slope(at[-2:], ys[-2:])} for name, ys in series.items()}


def evaluate(steps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    axes = {}
    for axis, points in AXES.items():
        rows, failed = [], []
        for value, point in points.items():
            turns = [step for name, step in steps.items() if name.startswith(f"{point.name}, turn ")]
            good = [turn for turn in turns if "failed" not in turn]
            failed += [{"at": value, "why": turn["failed"]} for turn in turns if "failed" in turn][: 0 if good else 1]
            if good:
                rows.append(row(value, point, good))
        axes[axis] = {"rows": rows, "exponents": exponents(rows), "failed": failed}
    return axes


def show(axes: dict[str, Any]) -> None:
    for axis, result in axes.items():
        if not result["rows"]:
            continue
        print(f"{axis:>10} " + " ".join(f"{text:>17}" for text in QUANTITIES.values()))
        for line in result["rows"]:
            print(f"{line['at']:>10,g} " + " ".join(f"{line[name]:>17,.1f}" for name in QUANTITIES))
        for kind in ("fit", "last"):
            cells = [f"{result['exponents'][name][kind]:>17.2f}" if result["exponents"] else "" for name in QUANTITIES]
            print(f"{'exponent' if kind == 'fit' else 'last step':>10} " + " ".join(cells))
        for failure in result["failed"]:
            print(f"{failure['at']:>10,g} failed: {failure['why'].splitlines()[-1]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--axis", nargs="*", choices=list(AXES), default=list(AXES))
    parser.add_argument("--repeats", type=int, default=2, help="turns of each point")
    parser.add_argument("--quick", action="store_true", help="the small end of each axis, one turn")
    parser.add_argument("--parameters-at-most", type=float, default=math.inf, help="leave out models larger than this")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    add_options(parser, RESULTS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(Point(**json.loads(options.point)))))
        return 0
    wanted: dict[str, Point] = {}
    for turn in range(1, 2 if options.quick else options.repeats + 1):
        for axis in options.axis:
            for value, point in AXES[axis].items():
                if point.parameters <= options.parameters_at_most and (not options.quick or value in QUICK[axis]):
                    wanted[f"{point.name}, turn {turn}"] = point
    steps = Steps(Path(options.json), options.seconds, fresh=options.fresh)
    complete = steps.play((name, lambda point=point: measured_apart(point)) for name, point in wanted.items())  # type: ignore[misc]
    axes = evaluate(steps.done)
    steps.keep(axes=axes, quantities=QUANTITIES)
    show(axes)
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
