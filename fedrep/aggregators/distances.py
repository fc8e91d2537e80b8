"""Rules that need only distances between rows: geometric median, centered clipping, Krum and Multi-Krum.

Geometric median: Weiszfeld's iteration, smoothed (Pillutla et al., 2019). Centered clipping: Karimireddy et al., ICML 2021.
Krum: Blanchard et al., NeurIPS 2017. Scales are relative by default: absolute ones, as the paper's radius of 0.5, turn
either rule into the plain mean when updates are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedrep.aggregators.gram import Points, ascending, majority_core
from fedrep.aggregators.outcome import Aggregate, Doubles, check_at_least_one, check_positive, warn
from fedrep.aggregators.prepare import Prepared, PreStep, prepare, with_majority
from fedrep.errors import SettingsError

Start = Literal["core", "mean", "zero"]


def geometric_median(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    smoothing: float | None = None,
    relative_smoothing: float = 0.1,
    iterations: int = 5,
    start: Start = "core",
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """`smoothing` is the absolute nu; without it, nu is `relative_smoothing` times the median distance
    from the starting point. The default start is the mean of the most compact majority: from the plain mean, a single
    far outlier would take many iterations to leave behind."""
    check_positive("smoothing", smoothing)
    check_positive("relative_smoothing", relative_smoothing)
    check_at_least_one("iterations", iterations)
    prepared = with_majority("geometric_median", prepare(vectors, byzantine_count, pre, rng))
    points = prepared.points
    weights = _started(points, start)
    distances = points.distances_from(weights)
    nu = smoothing if smoothing is not None else relative_smoothing * float(np.median(distances))
    active = False
    for _ in range(iterations):
        if nu == 0.0:
            break  # the median distance is zero, so most rows lie on the starting point: it is the geometric median
        active |= bool((distances > nu).any())
        closeness = 1.0 / np.maximum(distances, nu)
        weights = np.zeros_like(weights)
        weights[: points.count] = closeness / closeness.sum()
        distances = points.distances_from(weights)
    if not active and nu > 0.0 and distances.max() > 0.0:
        warn(
            prepared.notes,
            f"The geometric median had no effect: its smoothing {nu:g} exceeds every distance (at most "
            f"{distances.max():g}), so this is the plain mean. Lower it, or leave it out for a relative one.",
        )
    return prepared.aggregate(weights)


def centered_clipping(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    radius: float | None = None,
    relative_radius: float = 1.0,
    iterations: int = 5,
    start: Start | ArrayLike = "core",
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """`radius` is absolute (the paper's 0.5); without it, each iteration takes `relative_radius` times the median
    distance from its centre. `start` may be a vector, such as the previous aggregate."""
    check_positive("radius", radius)
    check_positive("relative_radius", relative_radius)
    check_at_least_one("iterations", iterations)
    given = None if isinstance(start, str) else start
    prepared = with_majority("centered_clipping", prepare(vectors, byzantine_count, pre, rng, given))
    points = prepared.points
    centre = _started(points, start if isinstance(start, str) else None)
    active, reach, longest = False, 0.0, 0.0
    for _ in range(iterations):
        distances = points.distances_from(centre)
        reach = radius if radius is not None else relative_radius * float(np.median(distances))
        longest = max(longest, float(distances.max()))
        active |= bool((distances >= reach).any())
        factor = np.where(distances > reach, reach / np.maximum(distances, reach or 1.0), 1.0)
        centre = (1.0 - factor.mean()) * centre
        centre[: points.count] += factor / points.count
    if not active and longest > 0.0:
        warn(
            prepared.notes,
            f"Centered clipping had no effect: its radius {reach:g} exceeds every distance (at most {longest:g}), so this "
            "is the plain mean. Lower it, or leave it out for a relative one.",
        )
    return prepared.aggregate(centre)


def krum(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """The row with the smallest sum of squared distances to its n - f - 2 nearest others."""
    prepared = prepare(vectors, byzantine_count, pre, rng)
    return _best_rows("krum", prepared, 1)


def multi_krum(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    selected: int | None = None,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """The mean of the `selected` rows with the best Krum scores, n - f unless told, and never more: some would be Byzantine."""
    prepared = prepare(vectors, byzantine_count, pre, rng)
    most = prepared.count - prepared.byzantine_count
    if selected is None:
        selected = most
    check_at_least_one("selected", selected)
    if selected > most:
        text = f"multi_krum selects {most} rows, not {selected}: {prepared.byzantine_count} of {prepared.count} may be Byzantine."
        warn(prepared.notes, text)
    return _best_rows("multi_krum", prepared, min(selected, most))


def _best_rows(name: str, prepared: Prepared, selected: int) -> Aggregate:
    points, n, f = prepared.points, prepared.count, prepared.byzantine_count
    if n < f + 3:
        raise SettingsError(f"{name} needs at least {f + 3} rows for byzantine_count = {f}; here are {n}.")
    if n < 2 * f + 3:
        text = f"{name} guarantees nothing for {n} rows with byzantine_count = {f}: that takes {2 * f + 3} rows."
        warn(prepared.notes, text)
    squared = points.squared_distances()[:n, :n]
    np.fill_diagonal(squared, np.inf)
    scores = np.sort(squared, axis=1)[:, : n - f - 2].sum(axis=1)
    weights = np.zeros(len(points.inner))
    weights[ascending(scores)[:selected]] = 1.0 / selected
    return prepared.aggregate(weights)


def _started(points: Points, start: str | None) -> Doubles:
    weights = np.zeros(len(points.inner))
    if start is None:
        weights[points.start] = 1.0
    elif start == "zero":
        weights[points.origin] = 1.0
    elif start == "mean":
        weights[: points.count] = 1.0 / points.count
    elif start == "core":
        weights = majority_core(points)
    else:
        raise SettingsError(f'start must be "core", "mean" or "zero", not {start!r}.')
    return weights
