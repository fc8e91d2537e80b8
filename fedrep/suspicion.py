"""Which silos sit in suspected buffers more often than their seats explain: a likelihood ratio for each, over the epochs.

A buffer is suspected when its mean lies more than twice as far from the update as the median buffer's. Its members share the
suspicion, since nobody sees a single silo's values; but seats are drawn anew in every epoch, by a seed that was there before.
A silo that has nothing to do with it sits in a suspected buffer as often as any seat does. The ratio compares this with a silo
that brings the suspicion about with probability p, averaged over several p and over the epoch in which it began.

Rounds of one epoch have the same seats and are no independent evidence: an epoch counts once, with the share of its rounds in
which the buffer was suspected, and only when it is over. Under random seats the ratio of each silo is a martingale that starts at
1, so the probability that it ever reaches x is at most 1/x (Ville), however often somebody looks; over m silos it is at most m/x.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.seats import epoch_of

FAR = 2.0
FEWEST_TO_JUDGE = 3
FALSE_ALARM = 0.01
CAUTION = (
    "A buffer is not a silo: every member of a suspected one is counted. To stand out is a reason to call, not a proof: unusual "
    "data look like an attack, and an attacker that acts beside one silo only makes both of them stand out"
)
_CAUSED = np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.98])  # p: how often a bad silo's own doing makes its buffer suspected


@dataclass(frozen=True)
class Seat:
    """A buffer in one round. `distance` leads from its mean to the update; None if it was not opened or not used."""

    number: int
    members: tuple[str, ...]
    distance: float | None


@dataclass(frozen=True)
class SeatedRound:
    number: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class Standing:
    """`suspected` of the `judged` buffers that the silo sat in. `ratio` is log10 of the likelihood ratio; `chance` is the largest
    probability with which any silo of a federation without a bad one would ever get there."""

    silo: str
    suspected: int
    judged: int
    ratio: float
    chance: float

    @property
    def stands_out(self) -> bool:
        return self.chance <= FALSE_ALARM


Judged = tuple[SeatedRound, dict[int, bool]]  # whether each buffer that could be judged was suspected


def far_away(distances: Mapping[int, float | None]) -> frozenset[int]:
    """The suspected among one round's buffers, by number."""
    known = [distance for distance in distances.values() if distance is not None]
    if len(known) < FEWEST_TO_JUDGE:
        return frozenset()
    limit = FAR * statistics.median_low(known)
    return frozenset(number for number, distance in distances.items() if distance is not None and distance > limit)


class Tally:
    """What the rounds so far tell, kept so that a further one costs little. Rounds come in ascending order."""

    def __init__(self, reshuffle_every: int) -> None:
        self._every = reshuffle_every
        self._told: dict[str, list[int]] = {}  # by silo: suspected, judged
        self._epoch: list[Judged] = []  # the open one
        self._ratios = _Ratios()

    def add(self, item: SeatedRound) -> None:
        marks = _marks(item)
        if not marks:
            return
        if self._epoch and epoch_of(self._epoch[-1][0].number, self._every) != epoch_of(item.number, self._every):
            self._ratios.take(dict(_shares(self._epoch)))
            self._epoch = []
        self._epoch.append((item, marks))
        for seat in item.seats:
            if seat.number in marks:
                for silo in seat.members:
                    counts = self._told.setdefault(silo, [0, 0])
                    counts[0] += marks[seat.number]
                    counts[1] += 1

    def standings(self, over: bool) -> list[Standing]:
        """The most suspicious silo first. Unless the run is `over`, its last epoch is still open."""
        ratios = self._ratios
        if over and self._epoch:
            ratios = ratios.copy()
            ratios.take(dict(_shares(self._epoch)))
        found = []
        for silo, (suspected, judged) in self._told.items():
            ratio = ratios.of(silo)
            found.append(Standing(silo, suspected, judged, ratio, min(1.0, len(self._told) * 10 ** -min(ratio, 300.0))))
        return sorted(found, key=lambda one: (-one.ratio, -one.suspected, one.silo))


def standings(rounds: Iterable[SeatedRound], reshuffle_every: int, over: bool) -> list[Standing]:
    """Of all rounds at once."""
    tally = Tally(reshuffle_every)
    for item in rounds:
        tally.add(item)
    return tally.standings(over)


def sentence(found: Sequence[Standing]) -> str:
    """Whom to call, or that there is nobody: for people."""
    named = [one for one in found if one.stands_out]
    if not found:
        return "No round with three buffers to compare yet."
    if not named:
        return "No silo stands out: the seats explain who sat in suspected buffers."
    others = [one for one in found if not one.stands_out]
    which = " and ".join(f"{one.silo} ({one.suspected} of its {one.judged} buffers suspected)" for one in named)
    following = max((one.suspected for one in others), default=None)
    tail = "" if following is None else f"; the next silo has {following}"
    verb = "stands out" if len(named) == 1 else "stand out"
    return f"{which} {verb}{tail}. By seats alone that happens with probability {max(o.chance for o in named):.1g} at most."


def _marks(item: SeatedRound) -> dict[int, bool]:
    """Whether each buffer that could be judged was suspected."""
    distances = {seat.number: seat.distance for seat in item.seats if seat.distance is not None}
    if len(distances) < FEWEST_TO_JUDGE:
        return {}
    far = far_away(distances)
    return {number: number in far for number in distances}


def _shares(epoch: Sequence[Judged]) -> Iterator[tuple[str, tuple[float, float]]]:
    """For every silo: the share of its rounds in which its buffer was suspected, and that of an average seat in these rounds."""
    members: dict[int, set[str]] = {}
    for item, marks in epoch:
        for seat in item.seats:
            if seat.number in marks:
                members.setdefault(seat.number, set()).update(seat.members)
    seated = [({seat.number: seat.members for seat in item.seats}, marks) for item, marks in epoch]
    for own, silos in members.items():
        for silo in silos:
            there = [marks for seats, marks in seated if own in marks and silo in seats[own]]
            means = {n: _mean([marks[n] for marks in there if n in marks]) for n in members}
            weighed = [(len(members[n]), mean) for n, mean in means.items() if mean is not None]
            share = means[own]
            if share is not None:
                yield silo, (share, sum(size * mean for size, mean in weighed) / sum(size for size, _ in weighed))


def _mean(marks: Sequence[bool]) -> float | None:
    return sum(marks) / len(marks) if marks else None


class _Ratios:
    """The mixture for each silo: over p evenly, over the epoch k of the beginning by weights 1 / (k (k + 1)), the rest "never".
    Before its first seat a silo has the weights of the epochs without it, which add up to k / (k + 1)."""

    def __init__(self) -> None:
        self._epochs = 0
        self._begun: dict[str, NDArray[np.float64]] = {}  # logarithms, one for each p

    def copy(self) -> _Ratios:
        other = _Ratios()
        other._epochs, other._begun = self._epochs, dict(self._begun)
        return other

    def take(self, shares: Mapping[str, tuple[float, float]]) -> None:
        """One epoch: each silo's share beside an average seat's."""
        for silo in shares.keys() - self._begun.keys():
            self._begun[silo] = self._unseen()
        self._epochs += 1
        weight = -math.log(self._epochs * (self._epochs + 1))
        for silo, begun in self._begun.items():
            share, average = shares.get(silo, (0.0, 0.0))
            begun = np.logaddexp(begun, weight)
            if 0 < average < 1:
                begun = begun + np.log(share * (1 + _CAUSED * (1 - average) / average) + (1 - share) * (1 - _CAUSED))
            self._begun[silo] = begun

    def of(self, silo: str) -> float:
        """As a power of ten."""
        begun = self._begun[silo] if silo in self._begun else self._unseen()
        mixed = np.logaddexp.reduce(begun) - math.log(_CAUSED.size)
        return float(np.logaddexp(mixed, -math.log(self._epochs + 1))) / math.log(10)

    def _unseen(self) -> NDArray[np.float64]:
        return np.full(_CAUSED.size, math.log(self._epochs / (self._epochs + 1)) if self._epochs else -math.inf)
