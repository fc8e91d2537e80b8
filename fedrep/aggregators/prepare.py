"""Pre-steps before a rule, each linear once the Gram matrix has fixed its coefficients, so they cost no pass over d.

NNM: Allouah et al., AISTATS 2023. ARC: Allouah et al., 2024. Bucketing: Karimireddy et al., ICLR 2022; FedREP's buffers are a
form of it, and f then counts contaminated buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.aggregators.gram import Points, ascending, points_of
from fedrep.aggregators.outcome import (
    LARGEST,
    Aggregate,
    Doubles,
    Values,
    as_rows,
    check_at_least_one,
    check_count,
    check_positive,
    warn,
)
from fedrep.aggregators.tiles import CHUNK, SMALL_PRODUCT, combine, each_chunk, tiles
from fedrep.errors import InvalidInputError, SettingsError


@dataclass(frozen=True)
class Call:
    """What a pre-step may use besides the points."""

    byzantine_count: int
    rng: np.random.Generator
    notes: list[str]


class PreStep(Protocol):
    def mix(self, points: Points, call: Call) -> Doubles:
        """The new rows, each as an affine combination of the points."""
        ...

    def rows_after(self, n: int) -> int: ...


@dataclass(frozen=True)
class Nnm:
    """Each row becomes the mean of its n - f nearest rows, itself included."""

    def mix(self, points: Points, call: Call) -> Doubles:
        n, f = points.count, call.byzantine_count
        squared = points.squared_distances()[:n, :n]
        np.fill_diagonal(squared, -1.0)  # a row is its own nearest, also among twins
        nearest = ascending(squared)[:, : n - f]
        rows = np.zeros((n, len(points.inner)))
        np.put_along_axis(rows, nearest, 1.0 / (n - f), axis=1)
        return rows

    def rows_after(self, n: int) -> int:
        return n


@dataclass(frozen=True)
class Arc:
    """The floor(2 f (n - f) / n) longest rows are shortened to the length of the next one."""

    def mix(self, points: Points, call: Call) -> Doubles:
        n, f = points.count, call.byzantine_count
        norms = points.norms()
        clipped = 2 * f * (n - f) // n
        return _shortened(points, norms, float(np.sort(norms)[n - clipped - 1]))

    def rows_after(self, n: int) -> int:
        return n


@dataclass(frozen=True)
class Clip:
    """Rows longer than `radius` are shortened to it; without one, to `relative_radius` times the median length."""

    radius: float | None = None
    relative_radius: float = 1.0

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_positive("relative_radius", self.relative_radius)

    def mix(self, points: Points, call: Call) -> Doubles:
        norms = points.norms()
        radius = self.radius if self.radius is not None else self.relative_radius * float(np.median(norms))
        if 0.0 < norms.max() < radius:
            warn(call.notes, f"Clipping had no effect: its radius {radius:g} exceeds every length (at most {norms.max():g}).")
        return _shortened(points, norms, radius)

    def rows_after(self, n: int) -> int:
        return n


@dataclass(frozen=True)
class Bucketing:
    """Rows are shuffled and averaged in buckets of `size`, the last one perhaps smaller."""

    size: int = 2

    def __post_init__(self) -> None:
        check_at_least_one("size", self.size)

    def mix(self, points: Points, call: Call) -> Doubles:
        shuffled = call.rng.permutation(points.count)
        rows = np.zeros((self.rows_after(points.count), len(points.inner)))
        for bucket, first in zip(rows, range(0, points.count, self.size), strict=True):
            members = shuffled[first : first + self.size]
            bucket[members] = 1.0 / len(members)
        return rows

    def rows_after(self, n: int) -> int:
        return -(-n // self.size)


PRE_STEPS: dict[str, Callable[..., PreStep]] = {"nnm": Nnm, "arc": Arc, "clip": Clip, "bucketing": Bucketing}


@dataclass(frozen=True, eq=False)
class Prepared:
    """The caller's rows, and what the pre-steps made of them, known only as points."""

    values: Values
    byzantine_count: int
    notes: list[str]
    start: NDArray[np.floating] | None = None
    mixed: Points | None = None

    @cached_property
    def original(self) -> Points:
        return points_of(self.values, self.start)

    @property
    def points(self) -> Points:
        return self.original if self.mixed is None else self.mixed

    @property
    def mixing(self) -> Doubles | None:
        """The rows in terms of the caller's; None where they are the caller's."""
        return None if self.mixed is None else self.mixed.mixing[: self.mixed.count, : len(self.values)]

    @property
    def count(self) -> int:
        return len(self.values) if self.mixed is None else self.mixed.count

    def aggregate(self, weights: Doubles) -> Aggregate:
        """The rule's affine combination of the points, written out in one pass over the caller's rows."""
        share = weights @ self.points.mixing
        n = len(self.values)
        vector = combine(self.values, share[:n])
        if self.start is not None:
            for at in tiles(0, len(vector), CHUNK):
                vector[at] += (share[n + 1] * self.start[at]).astype(np.float32)
        original = self.original
        arrival = np.argmax(original.mixing[:n, :n], axis=1)  # original points are the rows in canonical order
        distances = np.empty(n)
        distances[arrival] = original.distances_from(original.mixing @ share)
        return Aggregate(vector, share[:n], distances, tuple(self.notes))


def prepare(
    vectors: ArrayLike,
    byzantine_count: int,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
    start: ArrayLike | None = None,
) -> Prepared:
    values = as_rows(vectors)
    f = check_count(byzantine_count, len(values))
    plain = Prepared(values, f, [], None if start is None else _start_of(start, values.shape[1]))
    if not pre:
        return plain
    call = Call(f, rng if rng is not None else np.random.default_rng(0), plain.notes)
    points = plain.original
    for step in pre:
        if isinstance(step, str):
            if step not in PRE_STEPS:
                raise SettingsError(f"There is no pre-step {step!r}; choose from {', '.join(PRE_STEPS)}.")
            step = PRE_STEPS[step]()
        check_count(f, points.count)
        points = points.mixed(step.mix(points, call))
    mixed = replace(plain, mixed=points)
    mixed.__dict__["original"] = plain.original  # carry the cached Gram matrix over: it cost a pass over d
    return mixed


def with_majority(name: str, prepared: Prepared) -> Prepared:
    n, f = prepared.count, prepared.byzantine_count
    if n < 2 * f + 1:
        raise SettingsError(f"{name} needs at least {2 * f + 1} rows for byzantine_count = {f}; here are {n}.")
    return prepared


def nnm(vectors: ArrayLike, *, byzantine_count: int) -> NDArray[np.float32]:
    return _written_out(vectors, byzantine_count, Nnm())


def arc(vectors: ArrayLike, *, byzantine_count: int) -> NDArray[np.float32]:
    return _written_out(vectors, byzantine_count, Arc())


def clip(
    vectors: ArrayLike, *, byzantine_count: int = 0, radius: float | None = None, relative_radius: float = 1.0
) -> NDArray[np.float32]:
    return _written_out(vectors, byzantine_count, Clip(radius, relative_radius))


def bucketing(
    vectors: ArrayLike, *, byzantine_count: int = 0, size: int = 2, rng: np.random.Generator | None = None
) -> NDArray[np.float32]:
    return _written_out(vectors, byzantine_count, Bucketing(size), rng)


def _written_out(
    vectors: ArrayLike, byzantine_count: int, step: PreStep, rng: np.random.Generator | None = None
) -> NDArray[np.float32]:
    """The pre-step on its own, with its (n, d) result in the caller's order of rows."""
    prepared = prepare(vectors, byzantine_count, [step], rng)
    mixing = prepared.mixing
    assert mixing is not None  # a pre-step was just applied
    if len(mixing) == len(prepared.values) and not isinstance(step, Bucketing):
        arrival = np.argmax(prepared.original.mixing[: len(mixing), : len(mixing)], axis=1)
        mixing = mixing[np.argsort(arrival)]
    values = prepared.values
    coefficients = mixing.astype(values.dtype)
    out = np.empty((len(mixing), values.shape[1]), np.float32)

    def work(first: int, end: int) -> None:
        for at in tiles(first, end, max(256, SMALL_PRODUCT // coefficients.size)):
            out[:, at] = coefficients @ values[:, at]

    each_chunk(work, values.shape[1])
    return out


def _shortened(points: Points, norms: Doubles, radius: float) -> Doubles:
    factor = np.where(norms > radius, radius / np.maximum(norms, radius or 1.0), 1.0)
    rows = np.zeros((points.count, len(points.inner)))
    np.fill_diagonal(rows[:, : points.count], factor)
    rows[:, points.origin] = 1.0 - factor
    return rows


def _start_of(start: ArrayLike, d: int) -> NDArray[np.floating]:
    vector = np.asarray(start)
    if vector.dtype not in (np.float32, np.float64):
        vector = vector.astype(np.float64)
    if vector.shape != (d,):
        raise InvalidInputError(f"The starting point must have shape ({d},), not {vector.shape}.")
    usable = (vector <= LARGEST) & (vector >= -LARGEST)
    if not usable.all():
        at = int(np.argmin(usable))
        raise InvalidInputError(
            f"The starting point cannot be used: coordinate {at} is {vector[at]}, beyond float32 or not a number."
        )
    return vector
