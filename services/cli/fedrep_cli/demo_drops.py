"""Which silo of the demo dies next: at random, but never more of them in one round than the drop rate allows."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass
class _Loss:
    when: float
    back_in: int | None = None  # the round in which the server heard of it again; it takes part in the next one


class Drops:
    """A silo is lost from its death until the end of the round in which it came back: its keys of that round are gone."""

    def __init__(self, names: Collection[str], rate: float, chance: random.Random) -> None:
        self._names = sorted(names)
        self._room = rate * len(self._names)
        self._chance = chance
        self._lost: dict[str, _Loss] = {}

    def next_victim(self, now: float, round_number: int, last_seen: Mapping[str, float]) -> str | None:
        """Asked a few times a second; `last_seen` is when the server last heard of each silo, by the same clock as `now`."""
        for name, loss in list(self._lost.items()):
            if loss.back_in is None and last_seen.get(name, 0.0) > loss.when:
                loss.back_in = round_number
            elif loss.back_in is not None and round_number > loss.back_in:
                del self._lost[name]
        victim = self._chance.choice(self._names)
        room = self._room - len(self._lost)
        # Half a silo of room is half a chance; with room for several, some time should still pass between two deaths.
        if victim in self._lost or self._chance.random() >= 0.5 * min(room, 1.0):
            return None
        self._lost[victim] = _Loss(now)
        return victim
