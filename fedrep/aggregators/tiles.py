"""Streaming over d: cache-sized tiles inside fixed chunks, chunks spread over threads (numpy releases the GIL).

Chunks do not depend on the number of threads and their results are added in order, so neither does any result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrep.aggregators.compiled import kernels_for
from fedrep.aggregators.outcome import LARGEST, Doubles, Values

T = TypeVar("T")

CHUNK = 1 << 16
# OpenBLAS multiplies small matrices (m n k up to 1e6) without packing and without threads of its own: twice as fast here.
SMALL_PRODUCT = 1_000_000
# OpenBLAS starts threads of its own for a matrix-vector product above 4 * 9216 elements; ours are enough.
_VECTOR_PRODUCT = 36_000


def each_chunk(work: Callable[[int, int], T], d: int) -> list[T]:
    edges = [*range(0, d, CHUNK), d]
    spans = list(pairwise(edges))
    threads = min(len(spans), _cores())

    def quietly(span: tuple[int, int]) -> T:
        with np.errstate(all="ignore"):  # an overflow is looked for where it can happen, and dealt with there
            return work(*span)

    if threads == 1:
        return [quietly(span) for span in spans]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(quietly, spans))


def tiles(first: int, end: int, width: int) -> Iterator[slice]:
    for start in range(first, end, width):
        yield slice(start, min(start + width, end))


def combine(values: Values, weights: Doubles) -> NDArray[np.float32]:
    """The weighted sum of the rows, in one pass."""
    n, d = values.shape
    used = np.flatnonzero(weights)
    out = np.zeros(d, np.float32)
    if len(used) == 0:
        return out
    if len(used) == 1 and weights[used[0]] == 1.0:  # Krum: a copy, without a float64 row in between
        np.copyto(out, values[used[0]], casting="same_kind")
        return out
    exact = weights.astype(np.float64)
    native = exact.astype(values.dtype)
    width = max(1024, _VECTOR_PRODUCT // n)
    kernels = kernels_for(values)

    def work(first: int, end: int) -> None:
        if kernels is not None:
            kernels.combine(values, first, end, native, out)
        else:
            for at in tiles(first, end, width):
                out[at] = native @ values[:, at]
        if not np.isfinite(out[first:end]).all():  # a sum beyond float32, or a row that is itself not finite
            for at in tiles(first, end, width):
                out[at] = np.clip(exact @ values[:, at].astype(np.float64), -LARGEST, LARGEST)

    each_chunk(work, d)
    return out


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1
