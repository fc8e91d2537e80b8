"""Inner loops compiled by numba, where the `speed` extra is installed; numpy does the same work without it.

numpy pays a call per comparator and tile, and needs tiles too long for the first-level cache to make up for it. Compiled,
512 columns stay there through the whole network. They release the GIL and take a span of columns, so that
threads can share the work. (The Gram matrix stays with BLAS: a compiled loop was no faster.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from fedrep.aggregators.outcome import Values

WORTHWHILE = 1 << 16  # elements; below this numpy is done before numba is even imported
# Sums may be reordered, but NaN and infinity must stay what they are: they are how bad rows are found.
_ORDERLESS = {"reassoc", "contract", "nsz"}


@dataclass(frozen=True)
class Kernels:
    coordinatewise: Callable[..., None]
    combine: Callable[..., None]
    distances: Callable[..., None]


def kernels_for(values: Values) -> Kernels | None:
    if values.dtype != np.float32 or not values.flags.c_contiguous or values.size < WORTHWHILE:
        return None
    return _load()


@lru_cache(maxsize=1)
def _load() -> Kernels | None:
    try:
        numba = import_module("numba")
    except ImportError:
        return None

    def compiled(function: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, Any] = {"nogil": True, "fastmath": _ORDERLESS, "error_model": "numpy"}
        try:
            made: Callable[..., None] = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no place to keep compiled code, as in a read-only container
            made = numba.njit(**options)(function)
        return made

    return Kernels(compiled(_coordinatewise), compiled(_combine), compiled(_distances))


def _coordinatewise(values, first, end, network, core, edges, middle, out, sums, squared):  # type: ignore[no-untyped-def]
    """`network` rows are (low, high, keeps): 1 the minimum, 2 the maximum, 3 both. The result is the mean of the wires
    core[0]..core[1]-1 and, for each of `edges` wires at the bottom, of that or its rival at the top, whichever is
    nearer to the mean of the wires middle[0]..middle[1]-1."""
    n = values.shape[0]
    window = n - edges
    scratch = np.zeros((n, 512), np.float32)
    total = np.empty(512, np.float32)
    centre = np.empty(512, np.float32)
    share = np.float32(1.0 / (core[1] - core[0] + edges))
    middle_share = np.float32(1.0 / (middle[1] - middle[0]))
    for start in range(first, end, 512):
        width = min(512, end - start)
        for wire in range(n):
            source, row = values[wire, start : start + width], scratch[wire]
            for c in range(width):
                row[c] = source[c]
            added = np.float32(0.0)
            for c in range(512):
                added += row[c]
            sums[wire] += added
        for step in range(network.shape[0]):
            low, high = scratch[network[step, 0]], scratch[network[step, 1]]
            keeps = network[step, 2]
            if keeps == 3:
                for c in range(512):
                    a = low[c]
                    b = high[c]
                    low[c] = min(a, b)
                    high[c] = max(a, b)
            elif keeps == 1:
                for c in range(512):
                    low[c] = min(low[c], high[c])
            else:
                for c in range(512):
                    high[c] = max(low[c], high[c])
        total[:] = np.float32(0.0)
        for wire in range(core[0], core[1]):
            row = scratch[wire]
            for c in range(512):
                total[c] += row[c]
        if edges > 0:
            centre[:] = np.float32(0.0)
            for wire in range(middle[0], middle[1]):
                row = scratch[wire]
                for c in range(512):
                    centre[c] += row[c]
            for wire in range(edges):
                low, high = scratch[wire], scratch[wire + window]
                for c in range(512):
                    at = centre[c] * middle_share
                    total[c] += high[c] if high[c] - at < at - low[c] else low[c]
        target = out[start : start + width]
        for c in range(width):
            total[c] *= share
            target[c] = total[c]
        for wire in range(n):
            row = values[wire, start : start + width]
            gathered = np.float32(0.0)
            for c in range(width):
                difference = row[c] - total[c]
                gathered += difference * difference
            squared[wire] += gathered


def _combine(values, first, end, weights, out):  # type: ignore[no-untyped-def]
    n = values.shape[0]
    for start in range(first, end, 2048):
        width = min(2048, end - start)
        target = out[start : start + width]
        for c in range(width):
            target[c] = np.float32(0.0)
        for row in range(0, n - 3, 4):
            x0 = values[row, start : start + width]
            x1 = values[row + 1, start : start + width]
            x2 = values[row + 2, start : start + width]
            x3 = values[row + 3, start : start + width]
            w0, w1, w2, w3 = weights[row], weights[row + 1], weights[row + 2], weights[row + 3]
            for c in range(width):
                target[c] += (w0 * x0[c] + w1 * x1[c]) + (w2 * x2[c] + w3 * x3[c])
        for row in range(n - n % 4, n):
            x0 = values[row, start : start + width]
            w0 = weights[row]
            for c in range(width):
                target[c] += w0 * x0[c]


def _distances(values, first, end, centre, squared):  # type: ignore[no-untyped-def]
    width = end - first
    for wire in range(values.shape[0]):
        row = values[wire, first:end]
        gathered = np.float32(0.0)
        for c in range(width):
            difference = row[c] - centre[c]
            gathered += difference * difference
        squared[wire] += gathered
