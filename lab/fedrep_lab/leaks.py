"""The known leaks of the protocol, measured on independent Gaussian updates, where nothing else helps the server.

`own_coordinates`: where only one silo proposed, its buffer mates are small, so the buffer's sum shows that silo's values.
`decoys`: the same sums tell real coordinates from decoys. `regression`: buffers that are drawn anew every round let the
server solve for what a silo sends round after round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedrep.sparsify import propose, top_k
from fedrep_lab.cell import Cell
from fedrep_lab.methods.interface import Seating

_PARAMETERS = 20_000
_REPEATS = 8


def own_coordinates(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Correlation, on a silo's own proposal, of its buffer's sum with its values."""
    k = cell.per_silo(_PARAMETERS)
    found = []
    for _ in range(_REPEATS):
        updates = rng.normal(size=(cell.m, _PARAMETERS))
        for group in Seating.of(cell, rng).groups(0):
            total = updates[group].sum(axis=0)
            found += [np.corrcoef(total[top], updates[v][top])[0, 1] for v in group for top in [top_k(updates[v], k)]]
    return {"correlation": float(np.mean(found)), "expected_alone": 1.0 / np.sqrt(cell.s)}


def decoys(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """The chance that a real coordinate has a larger sum than a decoy: 0.5 would be no leak at all."""
    k = cell.per_silo(_PARAMETERS)
    real, decoy = [], []
    for _ in range(_REPEATS):
        updates = rng.normal(size=(cell.m, _PARAMETERS))
        for group in Seating.of(cell, rng).groups(0):
            total = np.abs(updates[group].sum(axis=0))
            for v in group:
                proposal = propose(updates[v], k, cell.alpha, rng)
                is_real = np.isin(proposal, top_k(updates[v], k))
                real.append(total[proposal[is_real]])
                decoy.append(total[proposal[~is_real]])
    return {"auc": _auc(np.concatenate(real), np.concatenate(decoy))}


def regression(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Correlation of a silo's persistent update with the server's least-squares estimate after `rounds` rounds."""
    d = 2_000
    persistent = rng.normal(size=(cell.m, d))
    rows, sums = [], []
    seating = Seating.of(cell, rng)
    for number in range(cell.rounds):
        updates = persistent + rng.normal(size=(cell.m, d))
        for group in seating.groups(number):
            member = np.zeros(cell.m)
            member[group] = 1.0
            rows.append(member)
            sums.append(updates[group].sum(axis=0))
    design, seen = np.array(rows), np.array(sums)
    # Ridge: the prior variance of an update is one, the noise of a sum s; the best linear estimate for Gaussians.
    estimate = np.linalg.solve(design.T @ design + cell.s * np.eye(cell.m), design.T @ seen)
    found = [np.corrcoef(estimate[v], persistent[v])[0, 1] for v in range(cell.m)]
    return {"correlation": float(np.mean(found))}


MEASUREMENTS: dict[str, Callable[[Cell, np.random.Generator], dict[str, float]]] = {
    "own_coordinates": own_coordinates,
    "decoys": decoys,
    "regression": regression,
}


def measure(cell: Cell, data_dir: Path | None = None) -> dict[str, Any]:  # noqa: ARG001  like a training cell
    started, busy = time.perf_counter(), time.process_time()
    metrics = MEASUREMENTS[cell.task](cell, np.random.default_rng(cell.seed))
    return {
        "parameters": _PARAMETERS,
        "metrics": metrics,
        "history": [],
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - busy, 2),
    }


def _auc(above: Any, below: Any) -> float:
    ranks = np.argsort(np.argsort(np.concatenate([above, below]), kind="stable"), kind="stable") + 1
    return float((ranks[: above.size].sum() - above.size * (above.size + 1) / 2) / (above.size * below.size))
