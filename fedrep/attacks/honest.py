"""What an omniscient attacker computes from the honest updates, and the checks all attacks share."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.errors import InvalidInputError, NonFiniteError

Vectors = NDArray[Any]

# Statistics are taken over column tiles: memory beyond input and output does not grow with d.
_TILE: Final = 1 << 16


def checked(honest: ArrayLike, byzantine_count: int) -> Vectors:
    vectors = np.asarray(honest)
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InvalidInputError(f"honest updates come as an (h, d) array with at least one row, not with shape {vectors.shape}.")
    if operator.index(byzantine_count) < 0:
        raise InvalidInputError(f"there cannot be {byzantine_count} Byzantine silos.")
    if vectors.dtype.kind in "iub":
        vectors = vectors.astype(np.float64)
    if vectors.dtype.kind != "f":
        raise InvalidInputError(f"updates hold real numbers, not {vectors.dtype}.")
    finite = np.isfinite(vectors)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise NonFiniteError(f"honest update {row} holds {vectors[row, column]} at index {column}.")
    return vectors


def tiles(vectors: Vectors) -> Iterator[NDArray[np.float64]]:
    for start in range(0, vectors.shape[1], _TILE):
        yield vectors[:, start : start + _TILE].astype(np.float64, copy=False)


def mean_of(vectors: Vectors) -> NDArray[np.float64]:
    return np.concatenate([tile.mean(axis=0) for tile in tiles(vectors)])


def deviation_of(vectors: Vectors) -> NDArray[np.float64]:
    """Standard deviation per coordinate, of the honest silos as a whole population."""
    return np.concatenate([tile.std(axis=0) for tile in tiles(vectors)])


def centred_gram(vectors: Vectors) -> NDArray[np.float64]:
    """Inner products of the updates after subtracting their mean: small numbers, so distances lose no digits."""
    gram = np.zeros((len(vectors), len(vectors)))
    for tile in tiles(vectors):
        centred = tile - tile.mean(axis=0)
        gram += centred @ centred.T
    return gram


def squared_distances(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    squares = np.diag(gram)
    distances: NDArray[np.float64] = np.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def repeat(vector: NDArray[Any], count: int, like: Vectors) -> Vectors:
    """`count` rows of the attackers' common vector, in the honest updates' type, free to be written to."""
    return np.tile(vector.astype(like.dtype), (count, 1))


def needed(rng: np.random.Generator | None, attack: str) -> np.random.Generator:
    if rng is None:
        raise InvalidInputError(f"the attack {attack!r} draws at random; hand it a numpy generator.")
    return rng
