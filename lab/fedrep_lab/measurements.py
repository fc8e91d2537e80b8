"""Cells that measure instead of training, by the name of their task."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedrep_lab import leaks, lying_server
from fedrep_lab.attendance import attendance
from fedrep_lab.cell import Cell
from fedrep_lab.membership import membership

MEASUREMENTS: dict[str, Callable[[Cell, np.random.Generator], dict[str, float]]] = {
    "own_coordinates": leaks.own_coordinates,
    "decoys": leaks.decoys,
    "regression": leaks.regression,
    "tiny_range_skipped": lying_server.tiny_range_skipped,
    "tiny_range_applied": lying_server.tiny_range_applied,
    "kept_closed": lying_server.kept_closed,
    "opened_more": lying_server.opened_more,
    "subsets": lying_server.subsets,
    "frequency": lying_server.frequency,
    "attendance": attendance,
}

ON_DATA: dict[str, Callable[[Cell, np.random.Generator, Path | None], dict[str, float]]] = {"membership": membership}
TASKS = (*MEASUREMENTS, *ON_DATA)
_TAKES = {"attendance": ("min_survivors",), "membership": ("records", "trials")}
_OF_SILOS = ("records", "parameters")  # of silos with a record epsilon


def measure(cell: Cell, data_dir: Path | None = None) -> dict[str, Any]:
    cell.take_settings(_TAKES.get(cell.task, _OF_SILOS), f"The task {cell.task}")
    started, busy = time.perf_counter(), time.process_time()
    rng = np.random.default_rng(cell.seed)
    metrics = ON_DATA[cell.task](cell, rng, data_dir) if cell.task in ON_DATA else MEASUREMENTS[cell.task](cell, rng)
    return {
        "parameters": int(metrics.pop("parameters", leaks.PARAMETERS)),
        "metrics": metrics,
        "history": [],
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - busy, 2),
    }
