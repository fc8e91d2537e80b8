"""CLT-K (Chen et al., 2020, ScaleCom): one silo after the other decides everybody's coordinates, with error feedback.

Section 3.3 argues that a Byzantine leader breaks its contraction: here it names the coordinates that help least. Values go
through the same buffers and rule as in FedREP, so that only the choice of coordinates differs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedrep.sparsify import top_k
from fedrep_lab.methods.interface import BufferedRule, Matrix, Setting, Step, buffer_groups, energy_kept, rule_of


class CltK:
    view: ClassVar[str] = "sums over a buffer"
    takes: ClassVar[tuple[str, ...]] = ("byzantine_leader",)

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rule = rule_of(setting.cell)
        self._k = max(1, int(setting.cell.ratio * setting.parameters))
        self.memory: Matrix = np.zeros((setting.cell.m, setting.parameters), dtype=np.float32)

    def step(self, updates: Matrix, round_number: int) -> Step:
        setting, cell = self._setting, self._setting.cell
        g = np.add(self.memory, updates, out=updates)
        leader = (round_number - 1) % cell.m
        if cell.method_settings.get("byzantine_leader") and setting.adversary.count:
            leader = cell.m - 1  # the worst case: the attackers have taken the lead for good
        agreed = setting.adversary.coordinates(leader, g, self._k, top_k(g[leader], self._k))
        wanted = np.ascontiguousarray(g[:, agreed])
        groups = buffer_groups(setting, round_number)
        kept = energy_kept(g, wanted, cell.honest)
        result = BufferedRule(self._rule, groups, setting, round_number).under_attack(wanted)
        g[:, agreed] = 0.0
        self.memory = g
        return Step(result.vector, agreed, agreed.size, agreed.size, kept, result.notes)
