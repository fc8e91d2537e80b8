"""What a server that lies learns under version 2, on independent Gaussian updates: the attacks that version 1 fell to.

Each silo's local update is its persistent one plus as much noise of fresh minibatches, from a model that the server holds still.
What a silo keeps between two trainings is decided by the service's own error memory. `by_design` is the correlation that the same
number of fresh trainings in the same groups would give a server that only looks. With a record epsilon the noise is larger.

`tiny_range_skipped`: R = 1e-6, so that sums are sums of signs, and every round is opened and denied. `tiny_range_applied`: the
same R, answered with G = 0. `kept_closed`: one silo is kept from being opened while its mates are. `opened_more`: one silo is
opened more often than the others, with few coordinates, and then with many. `subsets`: other survivors of one buffer in every
round. `frequency`: nothing but the proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedrep.buffers import sizes
from fedrep.protocol.thresholds import default_colluders, default_min_survivors
from fedrep.quantize import RingFormat, quantize, value_bits
from fedrep.sparsify import Coordinates, propose, top_k, union
from fedrep_lab.cell import Cell
from fedrep_lab.methods.fedrep import after_giving_up, after_opening
from fedrep_lab.methods.interface import Matrix, Seating, Vector
from fedrep_lab.record_noise import update_noise

_TINY = 1e-6
_PARAMETERS = 2_000
_VICTIMS = 8


def best_linear_estimate(cell: Cell, groups: list[NDArray[np.int64]], sums: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Ridge: the prior variance of an update is one, the noise of a sum that of s silos; for Gaussians nothing is better."""
    noise = cell.s * update_noise(cell) ** 2
    design = np.zeros((len(groups), cell.m))
    for row, group in zip(design, groups, strict=True):
        row[group] = 1.0
    return np.linalg.solve(design.T @ design + noise * np.eye(cell.m), design.T @ np.array(sums)).astype(np.float64)


def local_updates(cell: Cell, persistent: Matrix, number: int, rng: np.random.Generator) -> Matrix:  # noqa: ARG001  of that round
    """Silos train again, from the same model."""
    return persistent + np.float32(update_noise(cell)) * rng.normal(size=persistent.shape).astype(np.float32)


def tiny_range_skipped(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Correlation with the values of the first training, from sums of signs. Silos see no proof: all is given up."""
    seating = Seating.of(cell, rng)
    persistent = rng.normal(size=(cell.m, _PARAMETERS)).astype(np.float32)
    memory = np.zeros_like(persistent)
    agreed = np.arange(_PARAMETERS, dtype=np.int64)
    ring = RingFormat(16, value_bits(16, sizes(cell.m, cell.s)[0]))
    groups: list[NDArray[np.int64]] = []
    seen: list[NDArray[np.float64]] = []
    honest: list[NDArray[np.float64]] = []
    first = persistent
    for number in range(cell.rounds):
        updates = local_updates(cell, persistent, number, rng)
        first = updates if number == 0 else first
        g = memory + updates
        sent = np.stack([quantize(row, _TINY, ring, rng).dequantized for row in g])
        for silo in range(cell.m):
            memory[silo] = after_giving_up(memory[silo], g[silo], agreed, sent[silo], _TINY)
        for group in seating.groups(number):
            groups.append(group)
            seen.append(sent[group].sum(axis=0, dtype=np.float64) / _TINY)
            honest.append(updates[group].sum(axis=0, dtype=np.float64))
    return {
        "correlation": _mean_correlation(best_linear_estimate(cell, groups, seen), first),
        "by_design": _mean_correlation(best_linear_estimate(cell, groups, honest), first),
    }


def tiny_range_applied(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """After `rounds` rounds with a tiny R and G = 0, in which all of a buffer are opened, one sum with a wide R."""

    def kept(_: int, before: Vector, g: Vector, agreed: Coordinates) -> Vector:
        return after_opening(before, g, agreed, np.clip(g, -_TINY, _TINY), _TINY)

    return _one_sum(cell, rng, kept)


def kept_closed(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """After `rounds` rounds one sum: of a silo that was kept closed in all of them and of mates that were opened in all."""

    def kept(silo: int, before: Vector, g: Vector, agreed: Coordinates) -> Vector:
        if silo == 0:
            return after_giving_up(before, g, agreed[:0], g[:0], np.inf)  # proposed, and called lost: nothing was submitted
        return after_opening(before, g, agreed, g, np.inf)

    return _one_sum(cell, rng, kept)


def _one_sum(
    cell: Cell, rng: np.random.Generator, kept: Callable[[int, Vector, Vector, Coordinates], Vector]
) -> dict[str, float]:
    """Correlation of the sum over a buffer with its first silo's persistent update; `kept` is what a round leaves in a memory."""
    found, design = [], []
    agreed = np.arange(_PARAMETERS, dtype=np.int64)
    for _ in range(_VICTIMS):
        persistent = rng.normal(size=(cell.s, _PARAMETERS)).astype(np.float32)
        memory = np.zeros_like(persistent)
        for number in range(cell.rounds):
            g = memory + local_updates(cell, persistent, number, rng)
            memory = np.stack([kept(silo, memory[silo], g[silo], agreed) for silo in range(cell.s)])
        updates = local_updates(cell, persistent, cell.rounds, rng)
        found.append(_correlation((memory + updates).sum(axis=0), persistent[0]))
        design.append(_correlation(updates.sum(axis=0), persistent[0]))
    return {"correlation": float(np.mean(found)), "by_design": float(np.mean(design))}


def opened_more(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """After `rounds` rounds one sum over coordinates that were left out of I until then, where the victim's memory has grown."""
    least = default_min_survivors(cell.s, default_colluders(cell.s))
    k = cell.per_silo(_PARAMETERS)
    found, design = [], []
    for _ in range(_VICTIMS):
        seating = Seating.of(cell, rng)
        persistent = rng.normal(size=(cell.m, _PARAMETERS)).astype(np.float32)
        memory = np.zeros_like(persistent)
        times = np.zeros(cell.m)
        for number in range(cell.rounds):
            mates = _mates(seating, number)
            opened = [0, *mates[np.argsort(times[mates], kind="stable")][: least - 1].tolist()]
            g = memory[opened] + local_updates(cell, persistent[opened], number, rng)
            agreed = union([top_k(row, k) for row in g])  # a silo submits only if I holds all that it proposed
            for row, silo in zip(g, opened, strict=True):
                memory[silo] = after_opening(memory[silo], row, agreed, row[agreed], np.inf)
            times[opened] += 1
        mates = _mates(seating, cell.rounds)
        last = [0, *mates[np.argsort(times[mates], kind="stable")][: least - 1].tolist()]
        updates = local_updates(cell, persistent[last], cell.rounds, rng)
        found.append(_correlation((memory[last] + updates).sum(axis=0), persistent[0]))
        design.append(_correlation(updates.sum(axis=0), persistent[0]))
    return {"correlation": float(np.mean(found)), "by_design": float(np.mean(design))}


def _mates(seating: Seating, number: int) -> NDArray[np.int64]:
    """Of silo 0."""
    return next(group[group != 0] for group in seating.groups(number) if 0 in group)


def subsets(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """After `rounds` rounds of one epoch, in each of which as many of a buffer as may be are called lost, in turn."""
    least = default_min_survivors(cell.s, default_colluders(cell.s))
    chosen = [np.array(survivors) for survivors in combinations(range(cell.s), least)]
    groups = [chosen[number % len(chosen)] for number in range(cell.rounds)]
    found = []
    for _ in range(_VICTIMS):
        persistent = rng.normal(size=(cell.s, _PARAMETERS))
        noise = update_noise(cell)
        sums = [(persistent[group] + noise * rng.normal(size=(group.size, _PARAMETERS))).sum(axis=0) for group in groups]
        found.append(_mean_correlation(best_linear_estimate(cell, groups, sums)[: cell.s], persistent))
    return {"correlation": float(np.mean(found))}


def frequency(cell: Cell, rng: np.random.Generator) -> dict[str, float]:
    """Correlation of how often a silo proposed a coordinate, of K in each round, with the size of its persistent update there."""
    k = max(1, round(cell.ratio * _PARAMETERS))
    found = []
    for _ in range(_VICTIMS):
        persistent = rng.normal(size=_PARAMETERS).astype(np.float32)
        memory, counts = np.zeros_like(persistent), np.zeros(_PARAMETERS)
        for number in range(cell.rounds):
            g = memory + local_updates(cell, persistent, number, rng)
            proposal = propose(g, k, cell.alpha, rng)
            counts[proposal] += 1
            memory = after_opening(memory, g, proposal, g[proposal], np.inf)
        found.append(_correlation(counts, np.abs(persistent)))
    return {"correlation": float(np.mean(found))}


def _mean_correlation(estimates: NDArray[np.float64], truth: Matrix | NDArray[np.float64]) -> float:
    return float(np.mean([_correlation(one, other) for one, other in zip(estimates, truth, strict=True)]))


def _correlation(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    return float(np.corrcoef(one, other)[0, 1])
