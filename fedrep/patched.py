"""Large vectors without copies: one that differs from another in a few places, and one that is a difference of two.

Work on them goes tile by tile, so that each value is read once while everything that is asked about it is worked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.sparsify import guess_threshold, stride_of

Vector = NDArray[np.float32]
Places = NDArray[np.int64]

TILE = 1 << 16  # values: two or three tiles fit a core's own cache
_RUN = 16  # values next to each other that a sample takes: a line of the cache, which costs as much as one of them
_DENSE = 4  # from one changed value in so many on, a copy is cheaper than the list of changes


@dataclass(frozen=True, slots=True)
class Patch:
    """`indices` ascend; a vector has `values` there."""

    indices: Places = field(repr=False)
    values: Vector = field(repr=False)

    def over(self, earlier: Patch | None) -> Patch:
        """Both in one; where both say something, this one counts."""
        if earlier is None:
            return self
        indices = np.concatenate((earlier.indices, self.indices))
        values = np.concatenate((earlier.values, self.values))
        order = np.argsort(indices, kind="stable")
        indices, values = indices[order], values[order]
        last = np.ones(indices.size, np.bool_)
        np.not_equal(indices[1:], indices[:-1], out=last[:-1])
        return Patch(indices[last], values[last])


@dataclass(frozen=True, slots=True)
class Patched:
    """`base`, but for the places of `patch`. Neither is ever changed."""

    base: Vector = field(repr=False)
    patch: Patch | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        return self.base.size

    def with_patch(self, patch: Patch) -> Patched:
        merged = patch.over(self.patch)
        if merged.indices.size * _DENSE > self.base.size:
            return Patched(Patched(self.base, merged).dense())
        return Patched(self.base, merged)

    def dense(self) -> Vector:
        """The vector itself; a copy where it differs from `base`."""
        if self.patch is None:
            return self.base
        whole = self.base.copy()
        whole[self.patch.indices] = self.patch.values
        return whole

    def tiles(self) -> Iterator[Vector]:
        """The vector in its order, one short array after the other; each is valid until the next is asked for."""
        patch, tile = self.patch, np.empty(TILE, np.float32)
        for start in range(0, self.base.size, TILE):
            part = self.base[start : start + TILE]
            if patch is not None:
                first, last = np.searchsorted(patch.indices, (start, start + TILE))
                if first < last:
                    changed = tile[: part.size]
                    np.copyto(changed, part)
                    changed[patch.indices[first:last] - start] = patch.values[first:last]
                    part = changed
            yield part

    def plus(self, other: Vector | Difference, room: Vector | None = None, top: int | None = None) -> Sum:
        """The sum, in `room` if there is one. With `top` its pass also finds where the largest `top` magnitudes can lie."""
        total = np.empty(self.base.size, np.float32) if room is None else room
        with np.errstate(invalid="ignore", over="ignore"):
            return self._sum(other, total, None if top is None else self._guess(other, top))

    def _guess(self, other: Vector | Difference, top: int) -> Any:
        starts = _runs(self.base.size)
        if not starts.size:
            return None
        places = (starts[:, None] + np.arange(_RUN)).ravel()
        added = other.minuend[places] - other.subtrahend[places] if isinstance(other, Difference) else other[places]
        return guess_threshold(np.add(self._sample(starts, places), added, out=added), top, self.base.size)

    def _sample(self, starts: Places, places: Places) -> Vector:
        """With the patch: where values were sent, the base is large and the vector is not."""
        sample, patch = self.base[places], self.patch
        if patch is not None:
            first, last = np.searchsorted(patch.indices, (starts, starts + _RUN))
            run = np.repeat(np.arange(starts.size), last - first)
            changed = np.arange(run.size) + (last - np.cumsum(last - first))[run]
            sample[run * _RUN + patch.indices[changed] - starts[run]] = patch.values[changed]
        return sample

    def _sum(self, other: Vector | Difference, total: Vector, guess: Any) -> Sum:
        peak, magnitude, found = np.float32(0), np.empty(TILE, np.float32), []
        for start, own in zip(range(0, total.size, TILE), self.tiles(), strict=True):
            tile = total[start : start + TILE]
            if isinstance(other, Difference):
                np.subtract(other.minuend[start : start + TILE], other.subtrahend[start : start + TILE], out=tile)
                np.add(own, tile, out=tile)
            else:
                np.add(own, other[start : start + TILE], out=tile)
            size = np.abs(tile, out=magnitude[: tile.size])
            peak = np.maximum(peak, size.max())  # which passes NaN on
            if guess is not None:
                found.append(np.flatnonzero(size >= guess) + start)
        return Sum(total, float(peak), Largest(float(guess), np.concatenate(found)) if found else None)


def _runs(d: int) -> Places:
    """Where the runs of a sample begin that has as many values as one of every `stride_of(d)`-th."""
    return np.arange(0, d - _RUN + 1, _RUN * stride_of(d))


@dataclass(frozen=True, slots=True)
class Largest:
    """All coordinates of a vector with at least this magnitude, ascending."""

    magnitude: float
    places: Places = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sum:
    """`peak` is the largest magnitude, and NaN or infinite if any value is. `largest` is there if it was asked for."""

    vector: Vector = field(repr=False)
    peak: float
    largest: Largest | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """minuend - subtrahend, worked out only where and when it is needed."""

    minuend: Vector = field(repr=False)
    subtrahend: Vector = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.minuend.shape

    def dense(self) -> Vector:
        with np.errstate(invalid="ignore", over="ignore"):
            return self.minuend - self.subtrahend


def dense(vector: Vector | Difference) -> Vector:
    return vector.dense() if isinstance(vector, Difference) else vector
