"""Mean, and the rules that look at each coordinate alone.

Median and trimmed mean: Yin et al., ICML 2018. MeaMed: Xie et al., 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.aggregators.network import Comparator, pruned_network, run
from fedrep.aggregators.outcome import LARGEST, Aggregate, Doubles, Values, refuse_nonfinite
from fedrep.aggregators.prepare import Prepared, PreStep, prepare
from fedrep.aggregators.tiles import combine, each_chunk, tiles
from fedrep.errors import InvalidInputError, SettingsError

Finish = Callable[[list[Values]], Values]

_TILE_ELEMENTS = 1 << 17  # half a megabyte of float32: with the network's scratch it stays in a core's second-level cache


def mean(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    weights: ArrayLike | None = None,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """`weights`, one per row, need not add up to one: the number of survivors behind each buffer will do."""
    prepared = prepare(vectors, byzantine_count, pre, rng)
    share = _shares(weights, prepared.count)
    if prepared.mixing is not None:
        anchors = len(prepared.points.inner) - prepared.count
        return prepared.aggregate(np.concatenate([share, np.zeros(anchors)]))
    vector = combine(prepared.values, share)
    if not np.abs(vector).max() < LARGEST or prepared.values.dtype == np.float64:
        refuse_nonfinite(prepared.values)
    return Aggregate(vector, weights=share)


def median(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """Between two middle values, their mean."""
    prepared = _with_majority("median", prepare(vectors, byzantine_count, pre, rng))
    n = prepared.count
    middle = [n // 2] if n % 2 else [n // 2 - 1, n // 2]
    return _coordinatewise(prepared, frozenset(), frozenset(middle), lambda rows: _average(rows, middle))


def trimmed_mean(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    fraction: float | str | None = None,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """Without the f smallest and f largest values, or without `fraction` of them on each side (the paper: "7/16")."""
    prepared = prepare(vectors, byzantine_count, pre, rng)
    n = prepared.count
    trimmed = prepared.byzantine_count if fraction is None else int(_fraction(fraction) * n)
    if 2 * trimmed >= n:
        raise SettingsError(f"Trimming {trimmed} values from each side of {n} leaves none: use more rows or trim less.")
    kept = list(range(trimmed, n - trimmed))
    return _coordinatewise(prepared, frozenset(), frozenset(kept), lambda rows: _average(rows, kept))


def meamed(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """The mean of the n - f values nearest to the median; of two equally near, the smaller.

    Those values are neighbours in sorted order, so every window of n - f holds the same core, and each of the f
    values below it competes with exactly one value above.
    """
    prepared = _with_majority("meamed", prepare(vectors, byzantine_count, pre, rng))
    n, f = prepared.count, prepared.byzantine_count
    size = n - f
    middle = [n // 2] if n % 2 else [n // 2 - 1, n // 2]
    edges = [*range(f), *range(size, n)]
    core = list(range(f, size))

    def finish(rows: list[Values]) -> Values:
        centre = _average(rows, middle)
        total = _average(rows, core) * (len(core) / size)
        for low in range(f):
            below, above = rows[low], rows[low + size]
            total += np.where(above - centre < centre - below, above, below) / size
        return total

    exact = frozenset([*edges, *middle]) if f else frozenset(middle)
    return _coordinatewise(prepared, exact, frozenset(core), finish)


def _coordinatewise(prepared: Prepared, exact: frozenset[int], together: frozenset[int], finish: Finish) -> Aggregate:
    values, mixing = prepared.values, prepared.mixing
    network = pruned_network(prepared.count, exact, together)
    n, d = values.shape
    out = np.empty(d, np.float32)
    width = max(512, _TILE_ELEMENTS // max(n, prepared.count))
    coefficients = None if mixing is None else mixing.astype(values.dtype)

    def work(first: int, end: int) -> Doubles:
        scratch = np.empty((prepared.count + 2, width), values.dtype)
        ones = np.ones(width, values.dtype)
        squared = np.zeros(n)
        for at in tiles(first, end, width):
            tile = values[:, at]
            size = tile.shape[1]
            _look_for_nonfinite(values, tile, ones[:size])
            rows = list(tile) if coefficients is None else list(coefficients @ tile)
            _finish_tile(network, rows, scratch[:, :size], finish, out[at])
            for row in range(n):
                squared[row] += _squared_distance(tile[row], out[at], scratch[0, :size])
        return squared

    squared = np.sum(each_chunk(work, d), axis=0)
    return Aggregate(out, distances=np.sqrt(squared), notes=tuple(prepared.notes))


def _finish_tile(
    network: Sequence[Comparator], rows: list[Values], scratch: Values, finish: Finish, out: NDArray[np.float32]
) -> None:
    sorted_rows = list(rows)
    run(network, sorted_rows, list(scratch))
    out[:] = finish(sorted_rows)
    if not np.isfinite(out).all():  # sums beyond float32: once more in float64
        wide = [row.astype(np.float64) for row in rows]
        run(network, wide, list(np.empty((len(wide) + 2, len(out)))))
        out[:] = np.clip(finish(wide), -LARGEST, LARGEST)


def _look_for_nonfinite(values: Values, tile: Values, ones: Values) -> None:
    """A row's sum is finite unless it holds NaN or infinity, or is far too long, which the exact check then tells."""
    for row in tile:
        if not abs(float(np.dot(row, ones))) < LARGEST:
            refuse_nonfinite(values)
            return


def _squared_distance(row: Values, centre: NDArray[np.float32], scratch: Values) -> float:
    difference = np.subtract(row, centre, out=scratch)
    squared = float(np.dot(difference, difference))
    if not np.isfinite(squared):
        wide = difference.astype(np.float64)
        squared = float(np.dot(wide, wide))
    return squared


def _average(rows: list[Values], wires: Sequence[int]) -> Values:
    if len(wires) == 1:
        return rows[wires[0]].copy()
    total = rows[wires[0]] + rows[wires[1]]
    for wire in wires[2:]:
        total += rows[wire]
    total *= 1.0 / len(wires)
    return total


def _with_majority(name: str, prepared: Prepared) -> Prepared:
    if prepared.count < 2 * prepared.byzantine_count + 1:
        raise SettingsError(
            f"{name} needs an honest majority: {prepared.count} rows with byzantine_count = "
            f"{prepared.byzantine_count}; use at least {2 * prepared.byzantine_count + 1} rows."
        )
    return prepared


def _shares(weights: ArrayLike | None, n: int) -> Doubles:
    if weights is None:
        return np.full(n, 1.0 / n)
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (n,):
        raise InvalidInputError(f"The mean needs one weight per row: {n} rows, weights of shape {given.shape}.")
    if not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
        raise InvalidInputError("The mean's weights must be finite, not negative, and not all zero.")
    return np.asarray(given / given.sum())


def _fraction(fraction: float | str) -> Fraction:
    try:
        exact = Fraction(fraction).limit_denominator(10_000)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise SettingsError(f'fraction must be a number or a text like "7/16", not {fraction!r}.') from error
    if not 0 <= exact < Fraction(1, 2):
        raise SettingsError(f"fraction is trimmed from each side, so it must be in [0, 1/2), not {fraction!r}.")
    return exact
