"""How long proposals are waited for: by what each silo of the round lately took, and never longer than the run grants.

A silo that nobody has timed yet gets all the time of the manifest. One whose time was cut counts with the time it had, so that
its next round gives it several times as much, up to all of it: a slow silo is late once or twice, and never shut out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedrep.protocol.manifests import SiloName

LATELY = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """`factor` 0: proposals are always waited for until the deadline. `times` holds each silo's last few, newest last."""

    factor: float
    floor: float
    times: Mapping[SiloName, tuple[float, ...]] = field(default_factory=dict)

    def after(self, silo: SiloName, seconds: float) -> Pace:
        """The silo proposed after so many seconds, or had not when its time was over."""
        lately = (*self.times.get(silo, ()), seconds)[-LATELY:]
        return replace(self, times={**self.times, silo: lately})

    def seconds(self, roster: Iterable[SiloName], granted: float) -> float:
        slowest = 0.0
        for silo in roster:
            if silo not in self.times:
                return granted
            slowest = max(slowest, *self.times[silo])
        return min(granted, max(self.floor, self.factor * slowest)) if self.factor else granted
