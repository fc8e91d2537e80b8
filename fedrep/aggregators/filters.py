"""Rules that drop what the data spread most along: FilterL2 and divide-and-conquer.

FilterL2: Steinhardt's filter as used by F2ed-Learning (Wang et al., 2020); without a known variance, the covariance-bound
agnostic stopping of Allouah et al., 2023. DnC: Shejwalkar and Houmansadr, NDSS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedrep.aggregators.gram import ascending
from fedrep.aggregators.outcome import Aggregate, Doubles, check_at_least_one, check_positive
from fedrep.aggregators.prepare import Prepared, PreStep, prepare, with_majority
from fedrep.errors import SettingsError


def filter_l2(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    variance: float | None = None,
    expansion: float = 20.0,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """Rows lose weight by their share in the direction of largest variance; the row furthest along it loses all.

    With a known `variance` of honest rows, this ends once no direction varies more than `expansion` times that. Without
    one it goes on while n - 2f weight remains, and takes the weights that left the least variance.
    """
    check_positive("variance", variance)
    check_positive("expansion", expansion)
    prepared = with_majority("filter_l2", prepare(vectors, byzantine_count, pre, rng))
    points, n, f = prepared.points, prepared.count, prepared.byzantine_count
    inner = points.inner[:n, :n]
    remaining = np.ones(n)
    best, least = remaining, np.inf
    while remaining.sum() >= n - 2 * f:
        largest, spread = _widest_direction(inner, remaining / remaining.sum())
        if largest < least:
            best, least = remaining, largest
        if (variance is not None and largest <= expansion * variance) or spread.max() <= 0.0:
            break
        remaining = remaining * (1.0 - spread / spread.max())
    weights = np.zeros(len(points.inner))
    weights[:n] = best / best.sum()
    return prepared.aggregate(weights)


def dnc(
    vectors: ArrayLike,
    *,
    byzantine_count: int = 0,
    iterations: int = 1,
    sampled: int = 10_000,
    removed: float = 1.0,
    pre: Sequence[PreStep | str] = (),
    rng: np.random.Generator | None = None,
) -> Aggregate:
    """Each iteration looks at `sampled` random coordinates and marks the `removed` * f rows furthest along their widest
    direction, rounded up; the mean of the rows never marked remains, or of those marked least, if none is clean. Below 1
    `removed` would leave attackers in, and is refused.

    Without a generator the coordinates are always the same ones, which an attacker can foresee: pass one in a run.
    """
    check_at_least_one("iterations", iterations)
    check_at_least_one("sampled", sampled)
    check_positive("removed", removed)
    if removed < 1:
        raise SettingsError(f"removed is how many times f rows are marked, so it must be at least 1, not {removed!r}.")
    prepared = with_majority("dnc", prepare(vectors, byzantine_count, pre, rng))
    n = prepared.count
    rng = rng if rng is not None else np.random.default_rng(0)
    marks = np.zeros(n, np.intp)
    dropped = min(n - 1, math.ceil(removed * prepared.byzantine_count - 1e-9))
    for _ in range(iterations):
        sample = _sampled_rows(prepared, sampled, rng)
        centred = sample - sample.mean(axis=0)
        _, spread = _widest_direction(centred @ centred.T, np.full(n, 1.0 / n))
        marks[ascending(-spread)[:dropped]] += 1
    kept = marks == marks.min()
    weights = np.zeros(len(prepared.points.inner))
    weights[:n] = kept / kept.sum()
    return prepared.aggregate(weights)


def _sampled_rows(prepared: Prepared, sampled: int, rng: np.random.Generator) -> Doubles:
    d = prepared.values.shape[1]
    chosen = np.arange(d) if sampled >= d else np.sort(rng.choice(d, sampled, replace=False))
    columns = prepared.values[:, chosen].astype(np.float64)
    return np.asarray(prepared.points.mixing[: prepared.count, : len(columns)] @ columns)


def _widest_direction(inner: Doubles, share: Doubles) -> tuple[float, Doubles]:
    """The largest eigenvalue of the weighted covariance, and each row's squared extent along its eigenvector."""
    seen = inner @ share
    centred = inner - seen[:, None] - seen[None, :] + share @ seen
    root = np.sqrt(share)
    scale = float(np.abs(root[:, None] * centred * root[None, :]).max())
    if scale <= 0.0:
        return 0.0, np.zeros(len(share))
    values, vectors = np.linalg.eigh(root[:, None] * (centred / scale) * root[None, :])
    largest = float(values[-1])
    if largest <= 0.0:
        return 0.0, np.zeros(len(share))
    # <x_i - mean, v> with v = sum_j root_j u_j (x_j - mean) / sqrt(largest)
    along = (centred / scale) @ (root * vectors[:, -1])
    spread = np.where(share > 0.0, along**2 / largest, 0.0)
    return largest * scale, np.asarray(spread)
