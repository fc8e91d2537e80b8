"""Coordinates that anybody can work out: where the model has moved furthest since it began, and some drawn from a public seed.

Noise that hides a training record also hides which values of an update are large: a silo's top k are then nearly random, and an
error memory piles the noise up. What is public already says better where learning takes place, costs no epsilon, and is known
before training, so that gradients can be cut to it before they are clipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.secagg.draws import Draws
from fedrep.secagg.keys import SecretBytes
from fedrep.sparsify import draw_distinct

# The rest is where the model has moved furthest. Without any draw a coordinate that never moved would never be learnt.
DRAWN_SHARE = 0.2


def public_coordinates(
    moved: NDArray[np.float32], count: int, seed: bytes, drawn_share: float = DRAWN_SHARE
) -> NDArray[np.int64]:
    """`count` coordinates, sorted: those of the largest |moved|, and a share drawn from the others by `seed`, 32 bytes."""
    if not 1 <= count <= moved.size:
        raise InvalidInputError(f"{count} coordinates cannot be chosen out of {moved.size}")
    distance = np.abs(moved)
    most = min(count - int(drawn_share * count), int(np.count_nonzero(distance)))
    furthest = _largest(distance, most)
    others = np.ones(moved.size, dtype=np.bool_)
    others[furthest] = False
    free = np.flatnonzero(others)
    draws = Draws(SecretBytes(seed))  # none of numpy's, which may draw otherwise in another version
    drawn = free[draw_distinct(free.size, count - most, draws)]
    return np.sort(np.concatenate([furthest, drawn])).astype(np.int64)


def _largest(distance: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Among equals the first ones: everybody must come to the same set."""
    if not count:
        return np.empty(0, dtype=np.int64)
    least = np.partition(distance, distance.size - count)[distance.size - count]
    above = np.flatnonzero(distance > least)
    return np.concatenate([above, np.flatnonzero(distance == least)[: count - above.size]])


def own_part(coordinates: NDArray[np.int64], place: int, members: int) -> NDArray[np.int64]:
    """What the member at `place` proposes: every m-th, so that all of them together propose all."""
    return coordinates[place::members]


def only(update: NDArray[np.float32], coordinates: NDArray[np.int64]) -> NDArray[np.float32]:
    """The update on these coordinates, zero elsewhere."""
    if update.ndim != 1 or coordinates[-1] >= update.size:
        return update  # no vector of this model: whoever takes it says so
    kept = np.zeros_like(update)
    kept[coordinates] = update[coordinates]
    return kept
