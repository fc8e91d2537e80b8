"""Our aggregators against byzfl 0.0.11, interleaved in one run: `python -m benchmarks.aggregators [--quick] [--json PATH]`.

The peer lives in `.bench/byzfl`; both sides run as idle-between-commands processes on the same array, and the peer counts with
the faster of its numpy and torch paths. Times are the minimum over repeats; the ratio of processor time stands beside that of
elapsed time, because it suffers less from whatever else runs on the machine. Settings are chosen so that both sides compute
the same thing; where the definitions differ by themselves is printed below the table.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.environment import ROOT, peer_python
from benchmarks.machine import save
from benchmarks.measuring import Worker

REQUIREMENTS = ["byzfl==0.0.11", "torch==2.13.0"]
RESULTS = ROOT / "benchmarks" / "results" / "aggregators.json"
BYZANTINE = 6
# Ratio wanted at d = 5M; half of it at 270k; none at 13.5k.
TARGETS = {
    "mean": None,
    "median": 12,
    "trimmed_mean": 4,
    "meamed": None,
    "krum": 10,
    "multi_krum": 10,
    "geometric_median": 20,
    "centered_clipping": 20,
    "nnm+median": 20,
    "nnm+trimmed_mean": 20,
    "nnm+meamed": 20,
    "nnm+krum": 20,
    "nnm+multi_krum": 20,
    "nnm+geometric_median": 20,
    "nnm+centered_clipping": 20,
    "arc+nnm+geometric_median": 20,
}
DIFFERENCES = (
    "Krum and Multi-Krum: byzfl sums n - f - 1 neighbours, we the paper's n - f - 2; here it is called with f + 1.",
    "Multi-Krum: with f + 1 byzfl averages n - f - 1 rows; we are asked for as many (our default is n - f).",
    "Geometric median and centered clipping: byzfl starts at zero with absolute scales, and keeps the last centre between "
    "calls of one object; ours starts at the most compact majority with relative scales unless told, and keeps nothing.",
    "ARC and clipping: byzfl overwrites its input; ours never does.",
    "NaN and infinity: byzfl lets them through (its geometric median drops infinite rows); ours refuses them by name.",
    "FilterL2: byzfl has its relative CAF, whose power iteration starts at random, so that two calls differ, and does not end "
    "if one row holds 1e8; ours is deterministic and ends; not compared.",
)


@dataclass(frozen=True)
class Outcome:
    rule: str
    n: int
    d: int
    ours_ms: float
    peer_ms: float | None
    peer_path: str
    ratio: float | None
    ours_cpu_ms: float
    peer_cpu_ms: float | None
    cpu_ratio: float | None
    target: float | None
    ours_extra_mb: float
    peer_extra_mb: float | None
    disagreement: float | None


def measure(ours: Worker, peer: Worker, rule: str, n: int, d: int, repeats: int, folder: Path) -> Outcome:
    ways = [] if _peer_bytes(rule, n, d) > _free_bytes() else ["numpy", "torch"]
    best: dict[str, float] = {}
    busy: dict[str, float] = {}
    for _ in range(repeats):
        for way, side in [("ours", ours), *((way, peer) for way in ways)]:
            answer = side.ask(do="time", rule=rule, f=BYZANTINE, path="numpy" if way == "ours" else way)
            if "error" in answer and way == "ours":
                raise SystemExit(f"{rule} failed at n = {n}, d = {d}: {answer['error']}")
            if "error" in answer:
                raise SystemExit(f"byzfl's {rule} failed on its {way} path: {answer['error']}")
            best[way] = min(best.get(way, np.inf), answer["seconds"])
            busy[way] = min(busy.get(way, np.inf), answer["cpu_seconds"])
    fastest = min((way for way in best if way != "ours"), key=best.__getitem__, default="")
    extra = ours.ask(do="memory", rule=rule, f=BYZANTINE, path="numpy")["bytes"]
    peer_extra = peer.ask(do="memory", rule=rule, f=BYZANTINE, path=fastest).get("bytes") if fastest else None
    target = TARGETS[rule] if d > 1_000_000 else (TARGETS[rule] or 0) / 2 or None if d > 100_000 else None
    return Outcome(
        rule, n, d,
        ours_ms=best["ours"] * 1e3,
        peer_ms=best[fastest] * 1e3 if fastest else None,
        peer_path=fastest or "not run: too little memory",
        ratio=best[fastest] / best["ours"] if fastest else None,
        ours_cpu_ms=busy["ours"] * 1e3,
        peer_cpu_ms=min(busy[way] for way in ways) * 1e3 if ways else None,
        cpu_ratio=min(busy[way] for way in ways) / busy["ours"] if ways else None,
        target=target,
        ours_extra_mb=extra / 1e6,
        peer_extra_mb=None if peer_extra is None else peer_extra / 1e6,
        disagreement=_disagreement(ours, peer, rule, folder) if "numpy" in best else None,
    )  # fmt: skip


def _disagreement(ours: Worker, peer: Worker, rule: str, folder: Path) -> float:
    for name, side in (("ours", ours), ("peer", peer)):
        side.ask(do="save", rule=rule, f=BYZANTINE, path="numpy", to=str(folder / f"{name}.npy"))
    mine, theirs = (np.load(folder / f"{name}.npy").astype(np.float64) for name in ("ours", "peer"))
    return float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))


def _peer_bytes(rule: str, n: int, d: int) -> int:
    """byzfl's NNM gathers n times n - f rows; its scipy distances are float64 copies."""
    return n * (n - BYZANTINE) * d * 4 + n * d * 8 if "nnm" in rule else 3 * n * d * 8


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024 * 8 // 10
    return 0


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(title=f"f = {BYZANTINE}, float32; minimum over interleaved repeats; extra memory beyond input and output")
    columns = [
        "rule",
        "n",
        "d",
        "ours ms",
        "byzfl ms",
        "path",
        "ratio",
        "cpu ratio",
        "target",
        "ours MB",
        "byzfl MB",
        "differs by",
    ]
    for column in columns:
        table.add_column(column, justify="left" if column in ("rule", "path") else "right", no_wrap=True)
    for row in outcomes:
        met = row.ratio is not None and row.target is not None and row.ratio >= row.target
        colour = "green" if met else "red" if row.ratio is not None and row.target is not None else ""
        ratio = _shown(row.ratio, "{:.1f}x")
        table.add_row(
            row.rule, str(row.n), f"{row.d:,}", f"{row.ours_ms:.2f}", _shown(row.peer_ms, "{:.2f}"), row.peer_path,
            f"[{colour}]{ratio}[/]" if colour else ratio, _shown(row.cpu_ratio, "{:.1f}x"), _shown(row.target, "{:g}x"),
            f"{row.ours_extra_mb:.1f}", _shown(row.peer_extra_mb, "{:.0f}"), _shown(row.disagreement, "{:.1e}"),
        )  # fmt: skip
    return table


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def compare(rules: list[str], rows: list[int], sizes: list[int], *, quick: bool) -> Iterator[Outcome]:
    worker = str(Path(__file__).with_name("aggregators_worker.py"))
    ours = Worker([sys.executable, worker, "fedrep"])
    peer = Worker([str(peer_python("byzfl", REQUIREMENTS)), worker, "byzfl"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n, d in product(rows, sizes):
            vectors = np.random.default_rng(n + d).standard_normal((n, d), dtype=np.float32)
            vectors[:BYZANTINE] += 1.0
            np.save(folder / "vectors.npy", vectors)
            for side in (ours, peer):
                side.ask(do="load", path=str(folder / "vectors.npy"))
            for rule in rules:
                yield measure(ours, peer, rule, n, d, 3 if quick or d > 1_000_000 else 10, folder)
    ours.close()
    peer.close()


def _save(path: Path, outcomes: list[Outcome]) -> None:
    """After every outcome: a long run that is stopped keeps what it has measured."""
    report: dict[str, Any] = {"peer": REQUIREMENTS, "python": platform.python_version(), "numpy": np.__version__}
    report |= {"cores": os.cpu_count(), "f": BYZANTINE, "rows": [asdict(outcome) for outcome in outcomes]}
    report["differences"] = list(DIFFERENCES)
    save(path, report)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Our aggregators against byzfl, interleaved.")
    parser.add_argument("--quick", action="store_true", help="n = 16 and d up to 270k only, fewer repeats")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    parser.add_argument("--rules", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--rows", nargs="*", type=int, default=None)
    parser.add_argument("--sizes", nargs="*", type=int, default=None)
    options = parser.parse_args(arguments)
    rows = options.rows or ([16] if options.quick else [16, 32])
    sizes = options.sizes or ([13_500, 270_000] if options.quick else [13_500, 270_000, 5_000_000])
    console = Console(width=None if sys.stdout.isatty() else 160)
    outcomes: list[Outcome] = []
    for outcome in compare(options.rules, rows, sizes, quick=options.quick):
        outcomes.append(outcome)
        console.print(f"{outcome.rule}, n = {outcome.n}, d = {outcome.d:,}: {_shown(outcome.ratio, '{:.1f}x')}", highlight=False)
        _save(options.json, outcomes)
    console.print(_table(outcomes))
    for text in DIFFERENCES:
        console.print(f"- {text}", highlight=False)


if __name__ == "__main__":
    main()
