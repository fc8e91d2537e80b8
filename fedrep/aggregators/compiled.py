"""Inner loops compiled by numba, where the `speed` extra is installed; numpy does the same work without it.

numpy pays a call per comparator and tile, and needs tiles too long for the first-level cache to make up for it. Compiled,
a few hundred columns stay there through pre-step, network and distances. Of the small products in a Gram matrix BLAS spends
most of its time getting ready; compiled, they keep their sums in registers. All release the GIL and take a span of columns,
so that threads can share the work.
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
    products: Callable[..., None]


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

    return Kernels(compiled(_coordinatewise), compiled(_combine), compiled(_products))


def _coordinatewise(values, first, end, recipe, shares, network, core, edges, middle, out, squared):  # type: ignore[no-untyped-def]
    """Each wire is a row of `values` or, by its `recipe` (rows, in fours) and their `shares`, a mixture of several; a
    negative first entry repeats the wire ~entry.

    `network` rows are (low, high, keeps): 1 the minimum, 2 the maximum, 3 both. The result is the mean of the wires
    core[0]..core[1]-1 and, for each of `edges` wires at the bottom, of that or its rival at the top, whichever is
    nearer to the mean of the wires middle[0]..middle[1]-1. A value that is not finite leaves its row's `squared` distance
    to the result not finite either, and so does a result that is not."""
    n = len(recipe)
    scratch = np.zeros((n, 256), np.float32)
    total = np.zeros(256, np.float32)
    centre = np.empty(256, np.float32)
    share = np.float32(1.0 / (core[1] - core[0] + edges))
    middle_share = np.float32(1.0 / (middle[1] - middle[0]))
    for start in range(first, end, 256):
        stop = min(start + 256, end)
        width = stop - start
        for wire in range(n):
            row = scratch[wire]
            if recipe[wire, 0] < 0:
                same = scratch[~recipe[wire, 0]]
                for c in range(256):
                    row[c] = same[c]
            elif recipe.shape[1] == 1:
                source = values[recipe[wire, 0], start:stop]
                for c in range(width):  # not row[:width] = source, which numba does not vectorise
                    row[c] = source[c]
            else:
                for part in range(0, recipe.shape[1], 4):
                    x0 = values[recipe[wire, part], start:stop]
                    x1 = values[recipe[wire, part + 1], start:stop]
                    x2 = values[recipe[wire, part + 2], start:stop]
                    x3 = values[recipe[wire, part + 3], start:stop]
                    w0, w1, w2, w3 = shares[wire, part], shares[wire, part + 1], shares[wire, part + 2], shares[wire, part + 3]
                    if part == 0:
                        for c in range(width):
                            row[c] = (w0 * x0[c] + w1 * x1[c]) + (w2 * x2[c] + w3 * x3[c])
                    else:
                        for c in range(width):
                            row[c] += (w0 * x0[c] + w1 * x1[c]) + (w2 * x2[c] + w3 * x3[c])
        for step in range(network.shape[0]):
            low, high = scratch[network[step, 0]], scratch[network[step, 1]]
            keeps = network[step, 2]
            if keeps == 3:
                for c in range(256):  # one comparison for both: an instruction each, where min() and max() take several
                    a, b = low[c], high[c]
                    low[c] = a if a < b else b
                    high[c] = b if a < b else a
            elif keeps == 1:
                for c in range(256):
                    low[c] = low[c] if low[c] < high[c] else high[c]
            else:
                for c in range(256):
                    high[c] = high[c] if low[c] < high[c] else low[c]
        total[:] = np.float32(0.0)
        for wire in range(core[0], core[1]):
            row = scratch[wire]
            for c in range(256):
                total[c] += row[c]
        if edges > 0:
            centre[:] = np.float32(0.0)
            for wire in range(middle[0], middle[1]):
                row = scratch[wire]
                for c in range(256):
                    centre[c] += row[c]
            for wire in range(edges):
                low, high = scratch[wire], scratch[wire + n - edges]
                for c in range(256):
                    at = centre[c] * middle_share
                    total[c] += high[c] if high[c] - at < at - low[c] else low[c]
        target = out[start:stop]
        for c in range(width):
            total[c] *= share
            target[c] = total[c]
        for wire in range(values.shape[0]):
            row = values[wire, start:stop]
            gathered = np.float32(0.0)
            for c in range(width):
                difference = row[c] - total[c]
                gathered += difference * difference
            squared[wire] += gathered


def _products(values, first, end, zero, total):  # type: ignore[no-untyped-def]
    """Blocks of four rows by four, of which sixteen sums fit the registers, on and above the diagonal. The kind of `zero`
    is the kind of number they are taken in. `total` is padded to fours; past the last row stands the last row again."""
    last = values.shape[0] - 1
    for start in range(first, end, 1024):
        stop = min(start + 1024, end)
        width = stop - start
        for i in range(0, last + 1, 4):
            x0, x1 = values[i, start:stop], values[min(i + 1, last), start:stop]
            x2, x3 = values[min(i + 2, last), start:stop], values[min(i + 3, last), start:stop]
            for j in range(i, last + 1, 4):
                y0, y1 = values[j, start:stop], values[min(j + 1, last), start:stop]
                y2, y3 = values[min(j + 2, last), start:stop], values[min(j + 3, last), start:stop]
                s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
                s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
                for c in range(width):
                    a0, a1, a2, a3 = x0[c] + zero, x1[c] + zero, x2[c] + zero, x3[c] + zero
                    b0, b1, b2, b3 = y0[c] + zero, y1[c] + zero, y2[c] + zero, y3[c] + zero
                    s00 += a0 * b0
                    s01 += a0 * b1
                    s02 += a0 * b2
                    s03 += a0 * b3
                    s10 += a1 * b0
                    s11 += a1 * b1
                    s12 += a1 * b2
                    s13 += a1 * b3
                    s20 += a2 * b0
                    s21 += a2 * b1
                    s22 += a2 * b2
                    s23 += a2 * b3
                    s30 += a3 * b0
                    s31 += a3 * b1
                    s32 += a3 * b2
                    s33 += a3 * b3
                for k, sums in enumerate(
                    ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
                ):
                    for m in range(4):
                        total[i + k, j + m] += sums[m]


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
