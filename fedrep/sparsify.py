"""Consensus sparsification (section 3.2): which coordinates a silo proposes, their union, and what stays in its memory.

Coordinate sets are strictly ascending int64 arrays everywhere, so the k-th value on the wire always belongs to the k-th
coordinate. Decoys are drawn from the generator handed in: in a real silo one that nobody can foresee (`Draws`), because whoever
can replay it can tell decoys from real coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.errors import InvalidInputError, NonFiniteError
from fedrep.secagg.draws import Draws

Coordinates = NDArray[np.int64]

# A threshold is guessed from about _SAMPLE magnitudes, or more where that is every _STRIDE-th; below _SMALL the guess costs more
# than it saves.
_STRIDE = 61
_SAMPLE = 1 << 16
_SMALL = 50_000
# Magnitudes are compared in tiles that stay in the cache.
_TILE = 1 << 16
# From one member in _DENSE on, marking them in a table of the population is cheaper than sorting them.
_DENSE = 64


def top_k(update: ArrayLike, k: int, candidates: Coordinates | None = None) -> Coordinates:
    """The coordinates of the k largest magnitudes; among equal ones the lower index wins.

    `candidates`, if there are k or more, are all coordinates from some magnitude on, ascending.
    """
    vector = _real_vector(update)
    if not 1 <= k <= vector.size:
        raise InvalidInputError(f"top-k needs 1 <= k <= d, but k is {k} and the update has d = {vector.size} entries.")
    if candidates is None or candidates.size < k:
        candidates = _candidates(vector, k)
    magnitudes = np.abs(vector if candidates is None else vector[candidates])
    ranked = np.partition(magnitudes, magnitudes.size - k)
    # NaN sorts last and infinity just before it, so a bad entry anywhere in the update is always in this upper part.
    if not np.isfinite(ranked[magnitudes.size - k :]).all():
        raise _non_finite(vector)
    threshold = ranked[magnitudes.size - k]
    chosen = magnitudes > threshold
    missing = k - int(np.count_nonzero(chosen))
    ties = np.flatnonzero(magnitudes == threshold)[:missing]
    chosen[ties] = True
    positions = np.flatnonzero(chosen)
    top: Coordinates = positions if candidates is None else candidates[positions]
    return top


def obfuscate(top: ArrayLike, d: int, alpha: float, rng: np.random.Generator | Draws) -> Coordinates:
    """Replace r ~ Binomial(k, alpha) of the top coordinates by coordinates drawn from everything that was not kept.

    A decoy may therefore be one of the replaced top coordinates: that is what the privacy proof (Theorem 2) counts on.
    """
    if not 0.0 <= alpha <= 1.0:
        raise InvalidInputError(f"alpha is {alpha}; choose a probability between 0 (no decoys) and 1 (only decoys).")
    real = ascending(top, d)
    replaced = int(rng.binomial(real.size, alpha))
    if replaced == 0:
        return real.copy()
    kept = real[draw_distinct(real.size, real.size - replaced, rng)]
    ranks = draw_distinct(d - kept.size, replaced, rng)
    # kept[i] - i coordinates below kept[i] are free, so a rank is moved up by the kept coordinates it passes.
    decoys = ranks + np.searchsorted(kept - np.arange(kept.size), ranks, side="right")
    proposal = np.concatenate((kept, decoys))
    proposal.sort(kind="stable")  # which merges what is sorted already
    return proposal


def propose(
    update: ArrayLike, k: int, alpha: float, rng: np.random.Generator | Draws, candidates: Coordinates | None = None
) -> Coordinates:
    """A silo's proposal I_k: its top-k coordinates, obfuscated. `candidates` as in `top_k`."""
    vector = _real_vector(update)
    return obfuscate(top_k(vector, k, candidates), vector.size, alpha, rng)


def union(proposals: Iterable[ArrayLike]) -> Coordinates:
    """The consensus set I: every coordinate that at least one silo proposed."""
    parts = [_integers(proposal) for proposal in proposals]
    if not parts:
        return np.empty(0, dtype=np.int64)
    together = np.concatenate(parts)
    together.sort(kind="stable")  # which merges what is ascending already, as proposals are
    return _distinct(together)


def gather(vector: NDArray[Any], indices: ArrayLike) -> NDArray[Any]:
    """The values on a coordinate set, in ascending order of coordinate."""
    values = np.asarray(vector)
    return values[ascending(indices, values.size)]


def scatter(values: NDArray[Any], indices: ArrayLike, d: int) -> NDArray[Any]:
    """The d-vector that holds the values on the coordinate set and zero elsewhere."""
    given = np.asarray(values)
    where = ascending(indices, d)
    _same_length(given, where)
    dense = np.zeros(d, dtype=given.dtype)
    dense[where] = given
    return dense


def residual(g: NDArray[Any], indices: ArrayLike, sent: NDArray[Any]) -> NDArray[Any]:
    """The error memory u = g - sent: all of g outside the set, and on it what the sent values did not carry."""
    where = ascending(indices, np.asarray(g).size)
    _same_length(np.asarray(sent), where)
    memory = np.array(g, copy=True)
    memory[where] -= sent
    return memory


def ascending(indices: ArrayLike, d: int) -> Coordinates:
    """The indices as int64, after checking that they are strictly ascending and within [0, d)."""
    given = _integers(indices)
    if given.size == 0:
        return given
    if given[0] < 0 or given[-1] >= d:
        raise InvalidInputError(f"Coordinates must lie in [0, {d}); these run from {given[0]} to {given[-1]}.")
    if given.size > 1 and not bool((given[1:] > given[:-1]).all()):
        first = int(np.argmin(given[1:] > given[:-1])) + 1
        raise InvalidInputError(
            f"Coordinates must be strictly ascending; entry {first} is {given[first]} after {given[first - 1]}."
        )
    return given


def _candidates(vector: NDArray[Any], k: int) -> Coordinates | None:
    """Positions that certainly hold the k largest magnitudes and anything not finite, or None for all of them.

    A strided sample guesses a threshold a little below the k-th magnitude. The guess only decides how much is left to
    sort: if it turns out too high, everything is sorted.
    """
    guess = guess_threshold(vector[:: stride_of(vector.size)], k, vector.size)
    if guess is None:
        return None
    magnitude = np.empty(_TILE, dtype=vector.dtype)
    parts = []
    for start in range(0, vector.size, _TILE):
        tile = vector[start : start + _TILE]
        # "not below" rather than "at least": NaN compares false and must stay among the candidates.
        parts.append(np.flatnonzero(~(np.abs(tile, out=magnitude[: tile.size]) < guess)) + start)
    found: Coordinates = np.concatenate(parts)
    return found if found.size >= k else None


def stride_of(d: int) -> int:
    """Of the sample that a threshold is guessed from; odd, so that it falls in step with no layer's width."""
    return max(_STRIDE, d // _SAMPLE | 1)


def guess_threshold(sample: NDArray[Any], k: int, d: int) -> Any:
    """A magnitude a little below the k-th largest of d values, by a sample of them; None if guessing is not worth it."""
    if d < _SMALL or k > d // 4:
        return None
    magnitudes = np.abs(sample)
    expected = k * magnitudes.size / d
    rank = int(expected + 4.0 * expected**0.5) + 8
    if rank >= magnitudes.size:
        return None
    guess = np.partition(magnitudes, magnitudes.size - rank)[magnitudes.size - rank]
    return guess if guess > 0.0 else None


def draw_distinct(population: int, count: int, rng: np.random.Generator | Draws) -> Coordinates:
    """A uniformly random subset of range(population), ascending, with work and memory in proportion to its size.

    Missing members are drawn with replacement until none is missing. Relabelling the population relabels the result, so
    every subset of this size is equally likely.
    """
    if 2 * count > population:
        left_out = np.ones(population, dtype=np.bool_)
        left_out[draw_distinct(population, population - count, rng)] = False
        return np.flatnonzero(left_out)
    if _DENSE * count > population:
        members = np.zeros(population, dtype=np.bool_)
        missing = count
        while missing:
            members[rng.integers(0, population, size=missing)] = True
            missing = count - int(np.count_nonzero(members))
        return np.flatnonzero(members)
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < count:
        more = rng.integers(0, population, size=count - drawn.size)
        drawn = _sorted_distinct(np.concatenate((drawn, more)))
    return drawn


def _sorted_distinct(values: Coordinates) -> Coordinates:
    values.sort()
    return _distinct(values)


def _distinct(values: Coordinates) -> Coordinates:
    """Of ascending ones."""
    if values.size < 2:
        return values
    new = np.empty(values.size, dtype=np.bool_)
    new[0] = True
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new]


def _real_vector(update: ArrayLike) -> NDArray[Any]:
    vector = np.asarray(update)
    if vector.ndim != 1:
        raise InvalidInputError(f"An update is one vector, but this array has {vector.ndim} dimensions; flatten it first.")
    if vector.dtype.kind in "iub":
        return vector.astype(np.float64)
    if vector.dtype.kind != "f":
        raise InvalidInputError(f"An update holds real numbers, not {vector.dtype}.")
    return vector


def _integers(indices: ArrayLike) -> Coordinates:
    given = np.asarray(indices)
    if given.ndim != 1:
        raise InvalidInputError(f"A coordinate set is one list of integers, not an array of {given.ndim} dimensions.")
    if given.size and given.dtype.kind not in "iu":
        raise InvalidInputError(f"Coordinates are integers, not {given.dtype}.")
    return given.astype(np.int64, copy=False)


def _same_length(values: NDArray[Any], where: Coordinates) -> None:
    if values.shape != where.shape:
        raise InvalidInputError(f"{where.size} coordinates need as many values, but the values have shape {values.shape}.")


def _non_finite(vector: NDArray[Any]) -> NonFiniteError:
    first = int(np.argmin(np.isfinite(vector)))
    return NonFiniteError(
        f"The update holds {vector[first]} at index {first}; every entry must be a finite number. "
        "Check the training for divergence (learning rate, loss scaling)."
    )
