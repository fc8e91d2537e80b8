"""The rows as points known only by their inner products: n x n float64 instead of n x d.

Every distance a rule needs follows from the Gram matrix, and every pre-step and iterate is an affine combination of the
rows and the origin, so one pass over d builds the matrix and one more combines. Tiles are multiplied in float32 and
summed in float64. Where rows lie much closer to each other than to the origin, float32 products lose their distances, so
the pass is repeated in float64 on differences to the most central row; and so it is where products are too large or too small
for float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedrep.aggregators.compiled import kernels_for
from fedrep.aggregators.outcome import LARGEST, SMALLEST, Doubles, Values, refuse_nonfinite
from fedrep.aggregators.tiles import SMALL_PRODUCT, each_chunk, tiles

# Squared distance over squared norm; float32 tiles leave about 1e-7 of the norm, so 1e-3 keeps four digits or more.
_CANCELLED = 1e-3
_ALWAYS_DOUBLE = 1 << 19  # elements; below this a float64 pass costs well under a millisecond
_STRIP = 8
_TIE = 1e-6  # relative; values closer than this count as equal, so rounding cannot decide between rows


@dataclass(frozen=True, eq=False)
class Points:
    """`count` rows, then the origin, then perhaps a starting point.

    `inner` holds their inner products about the most central row: small numbers for the rows that agree, whatever the
    outliers are. `mixing` writes each point as an affine combination of the caller's rows, the origin and the start.
    """

    count: int
    inner: Doubles
    mixing: Doubles

    @property
    def origin(self) -> int:
        return self.count

    @property
    def start(self) -> int:
        return self.count + 1

    def squared_distances(self) -> Doubles:
        """Between all points, the origin included."""
        return _squared_distances(self.inner)

    def distances_from(self, weights: Doubles) -> Doubles:
        """From the affine combination `weights` of the points to each row."""
        seen = self.inner @ weights
        squared = np.diagonal(self.inner) - 2.0 * seen + weights @ seen
        return np.sqrt(np.maximum(squared[: self.count], 0.0))

    def norms(self) -> Doubles:
        at = np.zeros(len(self.inner))
        at[self.origin] = 1.0
        return self.distances_from(at)

    def mixed(self, rows: Doubles) -> Points:
        """The points after a pre-step whose new rows are the combinations `rows`."""
        step = np.vstack([rows, np.eye(len(self.inner))[self.count :]])
        return Points(len(rows), step @ self.inner @ step.T, step @ self.mixing)


def points_of(values: Values, start: NDArray[np.floating] | None = None) -> Points:
    """The rows in an order that depends on their contents alone, so that ties fall alike for every order of arrival."""
    n = len(values)
    order, twin = _canonical_order(values)
    double = values.dtype == np.float64 or values.size <= _ALWAYS_DOUBLE
    raw = _products(values, start, double=double)
    if not (np.abs(raw) < LARGEST**2).all():  # as far as float32 products reach, and only far outliers or NaN get there
        refuse_nonfinite(values)
        raw = _products(values, start, double=True)
    elif not double and _has_underflowed(raw, values):
        raw = _products(values, start, double=True)
    central = _most_central(_squared_distances(raw)[:n, :n])
    if _is_cancelled(raw, twin, n):
        raw = _products(values, start, double=True, reference=central)
    inner = raw - raw[central] - raw[:, [central]] + raw[central, central]
    for row in range(n):
        if twin[row] != row:
            inner[row] = inner[twin[row]]
            inner[:, row] = inner[:, twin[row]]
    everything = np.concatenate([order, np.arange(n, len(raw))])
    return Points(n, inner[np.ix_(everything, everything)], np.eye(len(raw))[everything])


def ascending(values: Doubles) -> NDArray[np.intp]:
    """Stable argsort along the last axis in which values within a rounding error of each other keep their order."""
    rough = np.argsort(values, axis=-1, kind="stable")
    sorted_values = np.take_along_axis(values, rough, axis=-1)
    gap = np.diff(sorted_values, axis=-1) > _TIE * np.abs(sorted_values[..., 1:])
    group = np.concatenate([np.zeros_like(rough[..., :1]), np.cumsum(gap, axis=-1)], axis=-1)
    back = np.argsort(group * values.shape[-1] + rough, axis=-1, kind="stable")
    return np.take_along_axis(rough, back, axis=-1)


def majority_core(points: Points) -> Doubles:
    """A starting point no minority can move: the mean of the most compact majority around a single row."""
    n = points.count
    squared = points.squared_distances()[:n, :n]
    nearest = ascending(squared)[:, : n // 2 + 1]
    reach = np.take_along_axis(squared, nearest, axis=1).sum(axis=1)
    weights = np.zeros(len(points.inner))
    weights[nearest[ascending(reach)[0]]] = 1.0 / nearest.shape[1]
    return weights


def _squared_distances(inner: Doubles) -> Doubles:
    norms = np.diagonal(inner)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2.0 * inner, 0.0)
    np.fill_diagonal(squared, 0.0)
    return squared


def _most_central(squared: Doubles) -> int:
    return int(np.argmin(np.sort(squared, axis=1)[:, len(squared) // 2]))


def _has_underflowed(raw: Doubles, values: Values) -> bool:
    """Whether a row that is not zero has a squared norm so small that float32 products may have lost more than 1e-4 of it."""
    small = np.flatnonzero(np.diagonal(raw)[: len(values)] < 1e4 * SMALLEST * values.shape[1])
    return any(bool(values[row].any()) for row in small.tolist())


def _is_cancelled(raw: Doubles, twin: NDArray[np.intp], n: int) -> bool:
    norms = np.diagonal(raw)
    close = _squared_distances(raw) < _CANCELLED * np.maximum(norms[:, None], norms[None, :])
    close[:n, :n] &= twin[:, None] != twin[None, :]
    np.fill_diagonal(close, False)
    return bool(close.any())


def _products(values: Values, start: NDArray[np.floating] | None, *, double: bool, reference: int | None = None) -> Doubles:
    """Inner products of the rows, the origin and the start; about the row `reference`, if one is given."""
    n, d = values.shape
    extra = 1 if start is None else 2
    plain = reference is None and start is None and (not double or values.dtype == np.float64)
    width = min(4096, max(256, SMALL_PRODUCT // (_STRIP * n))) if not double else max(256, (1 << 17) // n)
    kernels = kernels_for(values) if reference is None and start is None else None

    def work(first: int, end: int) -> Doubles:
        total = np.zeros((n + extra, n + extra))
        if kernels is not None:
            padded = np.zeros((-(-n // 4) * 4,) * 2)
            kernels.products(values, first, end, np.float64(0.0) if double else np.float32(0.0), padded)
            total[:n, :n] = padded[:n, :n]
            return total
        for at in tiles(first, end, width):
            tile = values[:, at]
            if plain:
                _add_products(tile, total[:n, :n])
                continue
            points = np.zeros((n + extra, tile.shape[1]), np.float64 if double else np.float32)
            points[:n] = tile
            if start is not None:
                points[n + 1] = start[at]
            if reference is not None:
                points -= points[reference].copy()
            total += points @ points.T
        return total

    total = np.sum(each_chunk(work, d), axis=0)
    return np.asarray(np.triu(total) + np.triu(total, 1).T)


def _add_products(tile: Values, total: Doubles) -> None:
    """Upper triangle only, in strips. A strip never meets itself as a square: BLAS would then take its slower path for
    symmetric products."""
    n = len(tile)
    for row in range(0, n, _STRIP):
        if row and row + _STRIP >= n:
            total[row:, row - 1 :] += tile[row:] @ tile[row - 1 :].T
        else:
            total[row : row + _STRIP, row:] += tile[row : row + _STRIP] @ tile[row:].T


def _canonical_order(values: Values) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows sorted by content, and for each row the first row it equals (itself, if none)."""
    head = np.ascontiguousarray(values[:, :64])
    order = np.lexsort(head.T[::-1])
    twin = np.arange(len(values))
    same = (head[order[1:]] == head[order[:-1]]).all(axis=1)
    if not same.any():
        return order, twin
    compare = lru_cache(maxsize=None)(lambda a, b: _compare(values[a], values[b]))
    order = np.array(sorted(order.tolist(), key=cmp_to_key(compare)))
    for before, after in pairwise(order.tolist()):
        if compare(before, after) == 0:
            twin[after] = twin[before]
    return order, twin


def _compare(left: Values, right: Values) -> int:
    width = 64
    first = 0
    while first < len(left):
        a, b = left[first : first + width], right[first : first + width]
        differs = a != b
        if differs.any():
            at = int(np.argmax(differs))
            return -1 if a[at] < b[at] else 1
        first, width = first + width, 1 << 16
    return 0
