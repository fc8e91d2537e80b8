"""Batcher's odd-even merge sorting network (1968), pruned to what a coordinate-wise rule reads, run on rows of a tile.

A comparator is two vectorised calls (minimum, maximum) for a whole tile, so a column costs no branch and no Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedrep.aggregators.outcome import Values


@dataclass(frozen=True)
class Comparator:
    low: int
    high: int
    keep_low: bool
    keep_high: bool


@lru_cache(maxsize=64)
def pruned_network(n: int, exact: frozenset[int], together: frozenset[int]) -> tuple[Comparator, ...]:
    """Comparators that put the right value on every wire in `exact`, and the right set of values on `together`.

    Walking backwards: a comparator whose outputs nobody reads goes, and so does one between two wires of `together`,
    because a sum does not care for their order.
    """
    needed = set(exact)
    summed = set(together) - needed
    kept: list[Comparator] = []
    for low, high in reversed(_batcher(n)):
        if low in summed and high in summed:
            continue
        keep_low, keep_high = low in needed or low in summed, high in needed or high in summed
        if not (keep_low or keep_high):
            continue
        kept.append(Comparator(low, high, keep_low, keep_high))
        summed -= {low, high}
        needed |= {low, high}
    return tuple(reversed(kept))


def run(network: Sequence[Comparator], rows: list[Values], spare: list[Values]) -> None:
    """Replaces entries of `rows`; the arrays that were there at first are read only."""
    owned: set[int] = set()
    for step in network:
        a, b = rows[step.low], rows[step.high]
        if step.keep_low:
            rows[step.low] = np.minimum(a, b, out=spare.pop())
        if step.keep_high:
            rows[step.high] = np.maximum(a, b, out=spare.pop())
        for wire, old, kept in ((step.low, a, step.keep_low), (step.high, b, step.keep_high)):
            if wire in owned:
                spare.append(old)
                owned.discard(wire)
            if kept:
                owned.add(wire)


def _batcher(n: int) -> list[tuple[int, int]]:
    """For the next power of two, less the wires that would hold plus infinity."""
    size = 1 << (n - 1).bit_length() if n > 1 else 1
    pairs: list[tuple[int, int]] = []
    p = 1
    while p < size:
        k = p
        while k >= 1:
            for j in range(k % p, size - k, 2 * k):
                for i in range(min(k, size - j - k)):
                    if (i + j) // (p * 2) == (i + j + k) // (p * 2) and i + j + k < n:
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return pairs
