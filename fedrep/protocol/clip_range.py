"""The clip range R between rounds: a power of two times where it started, moved by two bits that each silo sends (N3).

The bits are about all of g and come with the proposal, before I exists, so that no answer depends on a set the server chooses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrep.patched import TILE, Largest

QUIET_ROUNDS = 5
QUIET_FRACTION = 1 / 8
CLIPPED_SHARE = 100


class RangeLimits(Protocol):
    """What a run manifest says about R."""

    @property
    def smallest_range(self) -> float: ...

    @property
    def largest_range(self) -> float: ...


@dataclass(frozen=True, slots=True)
class RangeBits:
    """What one silo says about its g."""

    clips: bool
    quiet: bool


def range_bits(
    g: NDArray[np.float32], clip_range: float, per_silo: int, peak: float | None = None, largest: Largest | None = None
) -> RangeBits:
    """ "clips": more than max(1, k/100) of all d values outside +-R; "quiet": all below R/8. `peak` is the largest of |g|."""
    if peak is None:
        peak = max(float(g.max(initial=0.0)), -float(g.min(initial=0.0)))
    values = g
    if largest is not None and largest.magnitude <= clip_range:  # then whatever lies outside is among them
        values = g[largest.places]
    outside = _outside(values, clip_range) if peak > clip_range else 0
    return RangeBits(outside > max(1, per_silo / CLIPPED_SHARE), peak < clip_range * QUIET_FRACTION)


def _outside(g: NDArray[np.float32], clip_range: float) -> int:
    magnitude, found = np.empty(TILE, g.dtype), 0
    for start in range(0, g.size, TILE):
        tile = g[start : start + TILE]
        found += int(np.count_nonzero(np.abs(tile, out=magnitude[: tile.size]) > clip_range))
    return found


def is_range(value: float, initial: float) -> bool:
    """Whether a value is the initial range times a power of two."""
    return value > 0 and initial > 0 and math.isfinite(value) and math.frexp(value)[0] == math.frexp(initial)[0]


@dataclass(frozen=True, slots=True)
class ClipRange:
    """R as the next manifest states it. `quiet` counts rounds in a row in which all but f of the proposers were quiet."""

    value: float
    quiet: int = 0

    def after_round(self, bits: Collection[RangeBits], byzantine: int, run: RangeLimits) -> ClipRange:
        """`bits` of those who proposed; a missing bit is a no. More than f silos have to say it, so that f cannot steer R."""
        if not bits:
            return self
        if _count(each.clips for each in bits) > byzantine:
            return self._moved(2 * self.value, run)
        quiet = self.quiet + 1 if _count(each.quiet for each in bits) >= max(len(bits) - byzantine, 1) else 0
        return self._moved(self.value / 2, run) if quiet >= QUIET_ROUNDS else ClipRange(self.value, quiet)

    def _moved(self, value: float, run: RangeLimits) -> ClipRange:
        """Within the limits, and never to a limit that is no power of two away."""
        return ClipRange(value if run.smallest_range <= value <= run.largest_range else self.value)


def _count(said: Iterable[bool]) -> int:
    return sum(said)
