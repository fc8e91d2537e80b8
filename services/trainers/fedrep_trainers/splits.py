"""Cutting one data set into shards, to try a federation out on a single machine. Real silos bring their own data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import SettingsError

_DIRICHLET_DRAWS = 1000


def iid_split(count: int, shards: int, seed: int) -> list[NDArray[np.int64]]:
    """Uniformly at random, sizes differing by at most one: the paper's setting."""
    if shards > count:
        raise SettingsError(f"{count} samples cannot be cut into {shards} shards; use fewer shards")
    order = np.random.default_rng([seed, count]).permutation(count)
    return [np.sort(piece) for piece in np.array_split(order, shards)]


def dirichlet_split(labels: NDArray[np.int64], shards: int, alpha: float, seed: int, least: int = 2) -> list[NDArray[np.int64]]:
    """Each class is dealt out in proportions from Dirichlet(alpha): the smaller alpha, the fewer classes a shard sees.

    Drawn again until every shard has `least` samples, so that no silo is without data (Hsu et al., 2019, do likewise).
    """
    rng = np.random.default_rng([seed, labels.size])
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_DIRICHLET_DRAWS):
        dealt: list[list[NDArray[np.int64]]] = [[] for _ in range(shards)]
        for members in by_class:
            proportions = rng.dirichlet(np.full(shards, alpha))
            cuts = np.round(np.cumsum(proportions)[:-1] * members.size).astype(np.int64)
            for shard, piece in zip(dealt, np.split(rng.permutation(members), cuts), strict=True):
                shard.append(piece)
        split = [np.sort(np.concatenate(pieces)) for pieces in dealt]
        if min(shard.size for shard in split) >= least:
            return split
    raise SettingsError(
        f"no Dirichlet({alpha:g}) split of {labels.size} samples into {shards} shards left each with {least} samples; "
        "raise dirichlet_alpha or use fewer shards"
    )
