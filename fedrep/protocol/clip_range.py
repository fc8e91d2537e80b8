"""The clip range R between rounds: doubled when silos clip, halved when updates stay small for long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

CLIP_RATE_LIMIT = 0.001
QUIET_ROUNDS = 5
QUIET_FRACTION = 1 / 8


class RangeLimits(Protocol):
    """What a run manifest says about R."""

    @property
    def smallest_range(self) -> float: ...

    @property
    def largest_range(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ClipRange:
    """R as the next manifest states it. `quiet` counts rounds in a row whose largest update stayed far below R."""

    value: float
    quiet: int = 0

    def after_round(self, clip_rates: Sequence[float], largest_update: float, run: RangeLimits) -> ClipRange:
        """`clip_rates` are the survivors' own reports: a median, so that a minority cannot steer R."""
        rates = [rate for rate in clip_rates if 0.0 <= rate <= 1.0]  # a NaN would sort anywhere, and move the median
        if rates and median(rates) > CLIP_RATE_LIMIT:
            return ClipRange(min(2 * self.value, run.largest_range))
        quiet = self.quiet + 1 if largest_update < self.value * QUIET_FRACTION else 0
        if quiet >= QUIET_ROUNDS:
            return ClipRange(max(self.value / 2, run.smallest_range))
        return ClipRange(self.value, quiet)
