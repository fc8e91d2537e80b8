"""The sizing table of docs/operations.md: what a server needs for so many silos, parameters and coordinates.

Memory and bytes belong to the software; CPU and round times also to this machine, where the server and all silos share the
cores. Training time, which a real round consists of, is not in them. `--write` puts the table into the guide.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.idle_silos import Shape, play
from benchmarks.round import summary

GUIDE = Path(__file__).parents[1] / "docs" / "operations.md"
START, END = "<!-- sizing: python -m benchmarks.sizing --write -->", "<!-- end of sizing -->"
FRACTION = 0.05
SHAPES = ((8, 100_000), (16, 1_000_000), (32, 1_000_000), (64, 1_000_000), (32, 5_000_000))
HEAD = (
    "| silos | d | K | server memory (peak) | up, per silo and round | down, per silo and round "
    "| server CPU per round | round, without training |",
    "|---|---|---|---|---|---|---|---|",
)


def row(silos: int, parameters: int, rounds: int) -> dict[str, Any]:
    shape = Shape(silos, parameters, FRACTION, 4, rounds, "geometric_median" if silos >= 16 else "mean", int(silos >= 16))
    return summary(shape, asyncio.run(play(shape, warm_up=0)))


def text(result: dict[str, Any]) -> str:
    d = result["parameters"]
    cells = (
        str(result["silos"]),
        f"{d:,}",
        f"{round(FRACTION * d):,}",
        f"{result['server_peak_mb']:.0f} MB",
        f"{result['kb_up_per_silo']:.0f} kB",
        f"{result['kb_down_per_silo']:.0f} kB",
        f"{result['cpu_ms_server']:.0f} ms",
        f"{result['ms_per_round_min']:.0f} ms",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/operations.md")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results = []
    lines = list(HEAD)
    for silos, parameters in SHAPES:
        results.append(row(silos, parameters, options.rounds))
        lines.append(text(results[-1]))
        print(lines[-1], flush=True)
    lines += [
        "",
        f"Fastest of {options.rounds} rounds, K/d = {FRACTION}, buffers of 4; the way down and the memory have the first "
        "model in them, which all silos fetch at once; "
        f"{results[0]['cores']} cores for the server and all silos.",
    ]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.write:
        before, _, rest = GUIDE.read_text().partition(START)
        _, _, after = rest.partition(END)
        GUIDE.write_text(before + "\n".join([START, *lines, END]) + after)


if __name__ == "__main__":
    main()
