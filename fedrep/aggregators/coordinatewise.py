"""Mean, and the rules that look at each coordinate alone.

Median and trimmed mean: Yin et al., ICML 2018. MeaMed: Xie et al., 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.aggregators.compiled import Kernels, kernels_for
from fedrep.aggregators.network import Comparator, pruned_network, run
from fedrep.aggregators.outcome import LARGEST, Aggregate, Doubles, Values, refuse_nonfinite
from fedrep.aggregators.prepare import Prepared, PreStep, prepare, with_majority
from fedrep.aggregators.tiles import CHUNK, SMALL_PRODUCT, combine, each_chunk, tiles
from fedrep.errors import InvalidInputError, SettingsError

# A megabyte of float32: near a core's second-level cache, and long enough that threads seldom wait for the interpreter lock.
_TILE_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Plan:
    """What a rule reads from a sorted column: the mean of `core` and, for each of the lowest `edges` values, of that or
    its rival n - edges places above, whichever is nearer to the mean of `middle`."""

    core: range
    edges: int = 0
    middle: range = range(0)

    def network(self, n: int) -> tuple[Comparator, ...]:
        exact = [*range(self.edges), *range(n - self.edges, n), *self.middle] if self.edges else []
        return pruned_network(n, frozenset(exact), frozenset(self.core))

    def finish(self, rows: list[Values]) -> Values:
        total = _average(rows, self.core)
        if not self.edges:
            return total
        centre = _average(rows, self.middle)
        size = len(self.core) + self.edges
        total *= len(self.core) / size
        for low in range(self.edges):
            below, above = rows[low], rows[low + size]
            total += np.where(above - centre < centre - below, above, below) / size
        return total


def mean(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    weights: ArrayLike | None = None,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """`weights`, one per row, need not add up to one: the number of survivors behind each buffer will do. What a pre-step
    makes of several rows weighs as much as they do on average."""
    prepared = prepare(vectors, byzantine_count, pre, rng)
    share = _shares(weights, len(prepared.values))
    if prepared.mixing is not None:
        anchors = len(prepared.points.inner) - prepared.count
        return prepared.aggregate(np.concatenate([_mixed_shares(share, prepared.mixing), np.zeros(anchors)]))
    vector = combine(prepared.values, share)
    if not (vector.max() < LARGEST and vector.min() > -LARGEST) or prepared.values.dtype == np.float64:
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
    prepared = with_majority("median", prepare(vectors, byzantine_count, pre, rng))
    return _coordinatewise(prepared, Plan(core=_middle(prepared.count)))


def trimmed_mean(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    fraction: float | str | None = None,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """Without the f smallest and f largest values, or without `fraction` of them on each side (the paper: "7/16") if that is
    more: of fewer rows than planned the same fraction may be fewer than f."""
    prepared = prepare(vectors, byzantine_count, pre, rng)
    n = prepared.count
    trimmed = max(prepared.byzantine_count, 0 if fraction is None else int(_fraction(fraction) * n))
    if 2 * trimmed >= n:
        raise SettingsError(f"Trimming {trimmed} values from each side of {n} leaves none: use more rows or trim less.")
    return _coordinatewise(prepared, Plan(core=range(trimmed, n - trimmed)))


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
    prepared = with_majority("meamed", prepare(vectors, byzantine_count, pre, rng))
    n, f = prepared.count, prepared.byzantine_count
    return _coordinatewise(prepared, Plan(core=range(f, n - f), edges=f, middle=_middle(n)))


@dataclass(frozen=True, eq=False)
class Mixture:
    """What the pre-steps make of the caller's rows: the distinct new rows, as coefficients, and the one each wire holds.
    NNM gives every row of a cluster the same neighbours, so there are often far fewer rows to compute than wires."""

    distinct: Values
    held: NDArray[np.intp]

    @staticmethod
    def of(prepared: Prepared) -> Mixture | None:
        if prepared.mixing is None:
            return None
        distinct, held = np.unique(prepared.mixing.astype(prepared.values.dtype), axis=0, return_inverse=True)
        return Mixture(distinct, held.reshape(-1))

    def recipe(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """For each wire the rows it takes and their shares, in fours; the complement of a wire, where it repeats that."""
        most = int(np.count_nonzero(self.distinct, axis=1).max(initial=1))
        taken = np.argsort(self.distinct == 0.0, axis=1, kind="stable")[:, :most]
        padding = ((0, 0), (0, -most % 4))
        shares = np.pad(np.take_along_axis(self.distinct, taken, axis=1), padding)[self.held]
        recipe = np.pad(taken, padding)[self.held]
        first = np.unique(self.held, return_index=True)[1][self.held]
        repeats = first != np.arange(len(first))
        recipe[repeats, 0] = ~first[repeats]
        return recipe, shares

    def apply(self, tile: Values, out: Values) -> list[Values]:
        made = np.matmul(self.distinct, tile, out=out[:, : tile.shape[1]])
        return [made[row] for row in self.held]


def _coordinatewise(prepared: Prepared, plan: Plan) -> Aggregate:
    values, mixture = prepared.values, Mixture.of(prepared)
    n, d = values.shape
    out = np.empty(d, np.float32)
    network = plan.network(prepared.count)
    kernels = kernels_for(values)
    compiled = None if kernels is None else _compiled(kernels, values, mixture, network, plan, out)
    width = min(CHUNK, max(512, _TILE_ELEMENTS // max(n, prepared.count)))
    if mixture is not None:
        width = max(512, min(width, SMALL_PRODUCT // mixture.distinct.size))

    def work(first: int, end: int) -> Doubles:
        done = None if compiled is None else compiled(first, end)
        if done is not None:
            return done
        squared = np.zeros(n)
        scratch = np.empty((prepared.count + 2, width), values.dtype)
        ones = np.ones(width, values.dtype)
        mixed = np.empty((0 if mixture is None else len(mixture.distinct), width), values.dtype)
        for at in tiles(first, end, width):
            tile = values[:, at]
            size = tile.shape[1]
            if mixture is None:
                _look_for_nonfinite(values, tile, ones[:size])  # else the Gram matrix has shown it already
            rows = list(tile) if mixture is None else mixture.apply(tile, mixed)
            _sort_tile(network, rows, scratch[:, :size], plan, out[at])
            squared += _squared_distances(values, at, out[at], scratch[0, :size])
        return squared

    squared = np.sum(each_chunk(work, d), axis=0)
    return Aggregate(out, distances=np.sqrt(squared), notes=tuple(prepared.notes))


def _compiled(
    kernels: Kernels,
    values: Values,
    mixture: Mixture | None,
    network: Sequence[Comparator],
    plan: Plan,
    out: NDArray[np.float32],
) -> Callable[[int, int], Doubles | None]:
    """Work on a span of columns that returns the squared distances per row, or None where a result went beyond float32,
    which the careful way must then sort out."""
    n = len(values)
    as_they_are = np.arange(n)[:, None], np.ones((n, 1), np.float32)
    recipe, shares = as_they_are if mixture is None else mixture.recipe()
    steps = np.array([(step.low, step.high, step.keep_low + 2 * step.keep_high) for step in network], np.int64).reshape(-1, 3)
    core, middle = (np.array([wires.start, wires.stop]) for wires in (plan.core, plan.middle or plan.core))

    def work(first: int, end: int) -> Doubles | None:
        squared = np.zeros(n)
        kernels.coordinatewise(values, first, end, recipe, shares, steps, core, plan.edges, middle, out, squared)
        odd = np.flatnonzero(~np.isfinite(squared))
        if len(odd) == 0:
            return squared
        if not np.isfinite(values[odd, first:end]).all():
            refuse_nonfinite(values)
        return _repaired(squared, values, slice(first, end), out[first:end]) if np.isfinite(out[first:end]).all() else None

    return work


def _sort_tile(network: Sequence[Comparator], rows: list[Values], scratch: Values, plan: Plan, out: NDArray[np.float32]) -> None:
    sorted_rows = list(rows)
    run(network, sorted_rows, list(scratch))
    out[:] = plan.finish(sorted_rows)
    if not np.isfinite(out).all():  # sums beyond float32: once more in float64
        wide = [row.astype(np.float64) for row in rows]
        run(network, wide, list(np.empty((len(wide) + 2, len(out)))))
        out[:] = np.clip(plan.finish(wide), -LARGEST, LARGEST)


def _look_for_nonfinite(values: Values, tile: Values, ones: Values) -> None:
    """A row's sum is finite unless it holds NaN or infinity, or is far too long, which the exact check then tells."""
    for row in tile:
        if not abs(float(np.dot(row, ones))) < LARGEST:
            refuse_nonfinite(values)
            return


def _squared_distances(values: Values, at: slice, centre: NDArray[np.float32], scratch: Values) -> Doubles:
    squared = np.zeros(len(values))
    for row in range(len(values)):
        difference = np.subtract(values[row, at], centre, out=scratch)
        squared[row] = np.dot(difference, difference)
    return _repaired(squared, values, at, centre)


def _repaired(squared: Doubles, values: Values, at: slice, centre: NDArray[np.float32]) -> Doubles:
    """Squares beyond float32, as a far outlier gives them, once more in float64."""
    for row in np.flatnonzero(~np.isfinite(squared)).tolist():
        wide = values[row, at].astype(np.float64) - centre
        squared[row] = np.dot(wide, wide)
    return squared


def _average(rows: list[Values], wires: Sequence[int]) -> Values:
    if len(wires) == 1:
        return rows[wires[0]].copy()
    total = rows[wires[0]] + rows[wires[1]]
    for wire in wires[2:]:
        total += rows[wire]
    total *= 1.0 / len(wires)
    return total


def _middle(n: int) -> range:
    return range((n - 1) // 2, n // 2 + 1)


def _shares(weights: ArrayLike | None, n: int) -> Doubles:
    if weights is None:
        return np.full(n, 1.0 / n)
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (n,):
        raise InvalidInputError(f"The mean needs one weight per row: {n} rows, weights of shape {given.shape}.")
    if not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
        raise InvalidInputError("The mean's weights must be finite, not negative, and not all zero.")
    return np.asarray(given / given.sum())


def _mixed_shares(share: Doubles, mixing: Doubles) -> Doubles:
    """Of the mixed rows, from those of the caller's; a row that was shortened weighs what it did, down to length zero."""
    parts = np.abs(mixing)
    whole = parts.sum(axis=1)
    mixed = np.divide(parts @ share, whole, out=np.full(len(mixing), share.mean()), where=whole > 0)
    return np.asarray(mixed / mixed.sum())


def _fraction(fraction: float | str) -> Fraction:
    try:
        exact = Fraction(fraction).limit_denominator(10_000)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise SettingsError(f'fraction must be a number or a text like "7/16", not {fraction!r}.') from error
    if not 0 <= exact < Fraction(1, 2):
        raise SettingsError(f"fraction is trimmed from each side, so it must be in [0, 1/2), not {fraction!r}.")
    return exact
