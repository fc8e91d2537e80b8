"""FedREP (Algorithms 1 and 2): consensus sparsification, buffers, a robust rule, error memory.

In real numbers, or in the ring and with the clip range of the service; with silos that do not propose, or propose and then
fall silent, as version 2 of the protocol treats them. Nobody lies here about what became of a silo's values: each one knows.
Coordinates are proposed from the largest entries of g, as in the paper, or of a slow mean of the updates, or they are public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrep.downlink import encode_update
from fedrep.protocol.error_memory import Contribution, ErrorMemory, Fate, Pending, Place
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.thresholds import default_colluders, default_min_survivors, openable_buffers, share_threshold
from fedrep.sparsify import Coordinates, propose, union
from fedrep_lab.methods.interface import (
    ABSENT,
    DROP,
    PROPOSE,
    BufferedRule,
    Matrix,
    Setting,
    Step,
    Vector,
    buffer_groups,
    energy_kept,
    rule_of,
)
from fedrep_lab.methods.ring import Ring
from fedrep_lab.methods.selection import PROPOSED, PublicCoordinates

_SLOWLY = 0.97  # the decay of the mean by which the selection `momentum` ranks

# Where a silo's values lay decides what proves their fate. Here all fates are known, and nothing is proven.
_NOWHERE = Place(RunHash(b""), 0, SiloName(""), 0, b"", b"", 0, 0, 0, {})


@dataclass(frozen=True)
class Turnout:
    """Who proposed, and the survivors of each buffer that is opened."""

    proposed: NDArray[np.bool_]
    groups: list[NDArray[np.int64]]


class FedREP:
    view: ClassVar[str] = "sums over a buffer"
    takes: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        self._setting = setting
        self._rule = rule_of(cell)
        self.k = cell.per_silo(setting.parameters)
        self.memory: Matrix = np.zeros((cell.m, setting.parameters), dtype=np.float32)
        self._ring = Ring(setting) if cell.ring_bits else None
        self._least = default_min_survivors(cell.s, default_colluders(cell.s))
        self._public = None if cell.selection in PROPOSED else PublicCoordinates(setting)
        self._slow: Matrix | None = np.zeros_like(self.memory) if cell.selection == "momentum" else None
        self._forgets = self._public is not None or not cell.method_settings.get("memory", True)
        self._owed: Vector | None = np.zeros(setting.parameters, dtype=np.float32) if cell.downlink_bits else None
        self._again: dict[int, Coordinates] = {}  # what was proposed in rounds that were skipped

    def ahead(self, round_number: int, model: Vector) -> Coordinates | None:
        return None if self._public is None else self._public.choose(round_number, model)

    def step(self, updates: Matrix, round_number: int) -> Step:
        setting, cell = self._setting, self._setting.cell
        g = self.memory + updates
        if self._slow is not None:
            self._slow += (1.0 - _SLOWLY) * (updates - self._slow)
        turnout = self._turnout(round_number)
        agreed = self._consensus(g, turnout.proposed, round_number)
        wanted = np.ascontiguousarray(g[:, agreed])
        kept = energy_kept(g, wanted, cell.honest)
        if not turnout.groups:
            if self._ring is not None:
                self._ring.after_round(g, self.k, turnout.proposed)
            measures = self._measures(turnout)
            return Step(np.zeros(0, np.float32), agreed[:0], agreed.size, 0.0, kept, measures=measures, skipped=True)
        self._again = {}
        server = BufferedRule(self._rule, turnout.groups, setting, round_number)
        clip_range = math.inf
        if self._ring is None:
            sent, result = wanted, server.under_attack(wanted)
        else:
            clip_range = self._ring.range
            sent = self._ring.rounded(wanted, round_number)
            forged = setting.adversary.forge(sent, server.vector)
            result = server.over_means(self._ring.opened_means(forged, turnout.groups, round_number))
            self._ring.after_round(g, self.k, turnout.proposed)
        opened = np.concatenate(turnout.groups)
        if self._ring is None and opened.size == cell.m:
            g[:, agreed] = 0.0  # what `after_opening` gives where nothing is rounded or cut, without its copies
            self.memory = g
        else:
            for silo in opened:  # the others' u is what it was before this training (N1)
                self.memory[silo] = after_opening(self.memory[silo], g[silo], agreed, sent[silo], clip_range)
        if self._forgets:
            self.memory[:] = 0.0
        values = self._descended(result.vector, agreed)
        return Step(values, agreed, agreed.size, agreed.size, kept, result.notes, self._measures(turnout))

    def _descended(self, values: Vector, agreed: Coordinates) -> Vector:
        """The update as silos receive it; what its bits cannot carry the server adds next time."""
        if self._owed is None:
            return values
        down = encode_update(values, self._owed[agreed], self._setting.cell.downlink_bits)
        self._owed[agreed] = down.residual
        return down.values

    def _consensus(self, g: Matrix, proposed: NDArray[np.bool_], round_number: int) -> Coordinates:
        setting, cell = self._setting, self._setting.cell
        if self._public is not None:
            return self._public.agreed
        if self.k == setting.parameters:
            return np.arange(setting.parameters, dtype=np.int64)
        ranked = g if self._slow is None else self._slow
        for silo in np.flatnonzero(proposed).tolist():
            if silo not in self._again:  # the same g: the same proposal
                own = propose(ranked[silo], self.k, cell.alpha, setting.rng(PROPOSE, silo, round_number))
                self._again[silo] = setting.adversary.coordinates(silo, g, self.k, own)
        return union([self._again[silo] for silo in np.flatnonzero(proposed).tolist()])

    def _turnout(self, round_number: int) -> Turnout:
        setting, cell = self._setting, self._setting.cell
        groups = buffer_groups(setting, round_number)
        everybody = np.ones(cell.m, dtype=np.bool_)
        if not cell.dropout and not cell.absence:  # all buffers open, also where no preflight would let a run pass: s = 1
            return Turnout(everybody, groups)
        proposed = self._here(ABSENT, cell.absence, round_number)
        survived = proposed & self._here(DROP, cell.dropout, round_number)
        if np.count_nonzero(survived) < share_threshold(cell.m):  # too few holders confirm, so nobody reveals
            return Turnout(proposed, [])
        left = [group[survived[group]] for group in groups]  # where too few proposed nobody submits, and too few are left here
        return Turnout(proposed, [left[number] for number in sorted(openable_buffers(left, self._least, cell.f))])

    def _here(self, purpose: int, chance: float, round_number: int) -> NDArray[np.bool_]:
        """The worst case: whoever is missing is honest."""
        here: NDArray[np.bool_] = self._setting.rng(purpose, round_number).random(self._setting.cell.m) >= chance
        here[self._setting.cell.honest :] = True
        return here

    def _measures(self, turnout: Turnout) -> dict[str, float]:
        cell = self._setting.cell
        measures = {} if self._ring is None else {"clip_range": self._ring.range}
        if cell.dropout or cell.absence:
            contributing = sum(group.size for group in turnout.groups)
            spoilt = sum(bool((group >= cell.honest).any()) for group in turnout.groups)
            measures |= {"skipped": float(not turnout.groups), "contributing": contributing / cell.m}
            measures["contaminated"] = spoilt / max(1, len(turnout.groups))
        return measures


def after_opening(before: Vector, g: Vector, indices: Coordinates, sent: Vector, clip_range: float) -> Vector:
    """u of a silo whose values were opened, as the service's memory has it (N2)."""
    return _settled(before, g, indices, sent, clip_range, Fate.OPENED)


def after_giving_up(before: Vector, g: Vector, indices: Coordinates, sent: Vector, clip_range: float) -> Vector:
    """u of a silo that has submitted and was shown no proof of what became of it (N1)."""
    return _settled(before, g, indices, sent, clip_range, Fate.GIVEN_UP)


def _settled(before: Vector, g: Vector, indices: Coordinates, sent: Vector, clip_range: float, fate: Fate) -> Vector:
    pending = Pending(_NOWHERE, Contribution(0, 0, g), clip_range, indices, sent)
    return ErrorMemory(before, pending).settle(fate).residual
