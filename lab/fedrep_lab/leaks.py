"""The known leaks of the protocol, measured on independent Gaussian updates, where nothing else helps the server.

`own_coordinates`: where only one silo proposed, its buffer mates are small, so the buffer's sum shows that silo's values.
`decoys`: the same sums tell real coordinates from decoys. `regression`: seats that change with every epoch let the server solve
for what a silo sends round after round. What a server learns that lies besides is in `lying_server`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrep.sparsify import propose, top_k
from fedrep_lab.cell import Cell
from fedrep_lab.lying_server import best_linear_estimate
from fedrep_lab.methods.interface import Seating
from fedrep_lab.record_noise import update_noise

PARAMETERS = 20_000
_REPEATS = 8


def own_coordinates(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Correlation, on a silo's own proposal, of its buffer's sum with its values."""
    k = cell.per_silo(PARAMETERS)
    found = []
    for _ in range(_REPEATS):
        updates = rng.normal(size=(cell.m, PARAMETERS))
        for group in Seating.of(cell, rng).groups(0):
            total = updates[group].sum(axis=0)
            found += [np.corrcoef(total[top], updates[v][top])[0, 1] for v in group for top in [top_k(updates[v], k)]]
    return {"correlation": float(np.mean(found)), "expected_alone": 1.0 / np.sqrt(cell.s)}


def decoys(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """The chance that a real coordinate has a larger sum than a decoy: 0.5 would be no leak at all."""
    k = cell.per_silo(PARAMETERS)
    real, decoy = [], []
    for _ in range(_REPEATS):
        updates = rng.normal(size=(cell.m, PARAMETERS))
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
    groups, sums = [], []
    seating = Seating.of(cell, rng)
    for number in range(cell.rounds):
        updates = persistent + update_noise(cell) * rng.normal(size=(cell.m, d))
        for group in seating.groups(number):
            groups.append(group)
            sums.append(updates[group].sum(axis=0))
    estimate = best_linear_estimate(cell, groups, sums)
    found = [np.corrcoef(estimate[v], persistent[v])[0, 1] for v in range(cell.m)]
    return {"correlation": float(np.mean(found))}


def _auc(above: Any, below: Any) -> float:
    ranks = np.argsort(np.argsort(np.concatenate([above, below]), kind="stable"), kind="stable") + 1
    return float((ranks[: above.size].sum() - above.size * (above.size + 1) / 2) / (above.size * below.size))
