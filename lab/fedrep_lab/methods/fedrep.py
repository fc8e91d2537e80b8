"""FedREP (Algorithms 1 and 2): consensus sparsification, buffers, a robust rule, error memory.

In real numbers, or in the ring and with the clip range of the service; with silos that propose and then fall silent, as
the service treats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.thresholds import default_colluders, default_min_survivors, openable_buffers, share_threshold
from fedrep.sparsify import Coordinates, propose, union
from fedrep_lab.methods.interface import (
    DROP,
    PROPOSE,
    BufferedRule,
    Matrix,
    Setting,
    Step,
    buffer_groups,
    energy_kept,
    rule_of,
)
from fedrep_lab.methods.ring import Ring


@dataclass(frozen=True)
class Turnout:
    """The survivors of each buffer that may be opened, and for every silo whether it survived and whether it was opened."""

    groups: list[NDArray[np.int64]]
    survived: NDArray[np.bool_]

    @property
    def opened(self) -> NDArray[np.bool_]:
        included = np.zeros(self.survived.size, dtype=np.bool_)
        for group in self.groups:
            included[group] = True
        return included


class FedREP:
    view: ClassVar[str] = "sums over a buffer"

    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        self._setting = setting
        self._rule = rule_of(cell)
        self.k = cell.per_silo(setting.parameters)
        self.memory: Matrix = np.zeros((cell.m, setting.parameters), dtype=np.float32)
        self._ring = Ring(setting) if cell.ring_bits else None
        self._least = default_min_survivors(cell.s, default_colluders(cell.s))

    def step(self, updates: Matrix, round_number: int) -> Step:
        setting, cell = self._setting, self._setting.cell
        g = np.add(self.memory, updates, out=updates)
        agreed = self._consensus(g, round_number)
        wanted = np.ascontiguousarray(g[:, agreed])
        turnout = self._turnout(round_number)
        kept = energy_kept(g, wanted, cell.honest)
        if not turnout.groups:
            self.memory = g
            return Step(np.zeros(0, np.float32), agreed[:0], agreed.size, 0.0, kept, measures={"skipped": 1.0})
        server = BufferedRule(self._rule, turnout.groups, setting, round_number)
        measures = {}
        if self._ring is None:
            sent, result = wanted, server.under_attack(wanted)
        else:
            sent = self._ring.rounded(wanted, round_number)
            forged = setting.adversary.forge(sent, server.vector)
            result = server.over_means(self._ring.opened_means(forged, turnout.groups, round_number))
            self._ring.after_round(turnout.survived, result.vector)
            measures["clip_range"] = self._ring.range
        self._remember(g, agreed, wanted, sent, turnout.opened)
        return Step(result.vector, agreed, agreed.size, agreed.size, kept, result.notes, measures)

    def _consensus(self, g: Matrix, round_number: int) -> Coordinates:
        setting, cell = self._setting, self._setting.cell
        if self.k == setting.parameters:
            return np.arange(setting.parameters, dtype=np.int64)
        proposals = []
        for silo in range(cell.m):
            own = propose(g[silo], self.k, cell.alpha, setting.rng(PROPOSE, silo, round_number))
            proposals.append(setting.adversary.coordinates(silo, g, self.k, own))
        return union(proposals)

    def _turnout(self, round_number: int) -> Turnout:
        setting, cell = self._setting, self._setting.cell
        groups = buffer_groups(setting, round_number)
        if not cell.dropout:  # every buffer opens, also in cells that no preflight would let pass, such as those with s = 1
            return Turnout(groups, np.ones(cell.m, dtype=np.bool_))
        survived = setting.rng(DROP, round_number).random(cell.m) >= cell.dropout
        survived[cell.honest :] = True  # the worst case: every missing silo is an honest one
        if np.count_nonzero(survived) < share_threshold(cell.m):  # too few holders confirm, so nobody reveals
            return Turnout([], survived)
        left = [group[survived[group]] for group in groups]
        return Turnout([left[number] for number in sorted(openable_buffers(left, self._least, cell.f))], survived)

    def _remember(self, g: Matrix, agreed: Coordinates, wanted: Matrix, sent: Matrix, opened: NDArray[np.bool_]) -> None:
        """u = g - sent for those whose values were opened; the others keep all of g."""
        g[:, agreed] = np.where(opened[:, None], wanted - sent, wanted)
        self.memory = g
