"""What Byzantine silos propose instead of their top-k coordinates (appendix C.2).

Each takes one update, or several to choose from, and k, and returns k coordinates in ascending order.
"""

# ruff: noqa: ARG001  every attack takes a generator, whether it draws or not
from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedrep.attacks.honest import checked, mean_of, needed
from fedrep.errors import InvalidInputError
from fedrep.sparsify import Coordinates, top_k


def smallest_coordinates(updates: ArrayLike, k: int, rng: np.random.Generator | None = None) -> Coordinates:
    """minAtk: the k smallest magnitudes of one update, or of the mean of several."""
    vector = np.asarray(updates)
    magnitudes = np.abs(vector if vector.ndim == 1 else mean_of(checked(vector, 0)))
    if not 1 <= k <= magnitudes.size:
        raise InvalidInputError(f"k = {k} coordinates cannot be chosen out of {magnitudes.size}.")
    return np.sort(np.argsort(magnitudes, kind="stable")[:k])


def random_coordinates(updates: ArrayLike, k: int, rng: np.random.Generator | None = None) -> Coordinates:
    """randAtk: any k coordinates."""
    d = int(np.asarray(updates).shape[-1])
    if not 1 <= k <= d:
        raise InvalidInputError(f"k = {k} coordinates cannot be chosen out of {d}.")
    return np.sort(needed(rng, "random").choice(d, size=k, replace=False))


def same_coordinates(updates: ArrayLike, k: int, rng: np.random.Generator | None = None) -> Coordinates:
    """sameAtk: what the owner of this update, or a random one of several, proposes itself (without obfuscation)."""
    vectors = np.asarray(updates)
    if vectors.ndim == 1:
        return top_k(vectors, k)
    return top_k(vectors[int(needed(rng, "same").integers(len(vectors)))], k)
