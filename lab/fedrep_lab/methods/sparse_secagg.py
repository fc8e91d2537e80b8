"""SparseSecAgg (Ergun et al., 2021): every pair of silos draws random coordinates from a common seed, and a silo sends what
any of its pairs drew. No error feedback and no robustness; the server sees the sum over all silos.

With `unbiased` (Ergun's rule, the default) values are divided by the chance of being sent. Without it the expected step is
shorter by that factor, which a larger rate makes up for: the paper's best rate for it, 5, is ten times FedREP's.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedrep_lab.methods.interface import METHOD, Matrix, Setting, Step


class SparseSecAgg:
    view: ClassVar[str] = "the sum over all silos"
    takes: ClassVar[tuple[str, ...]] = ("unbiased",)

    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        self._setting = setting
        # A silo is in m - 1 pairs, and sends a coordinate unless none of them drew it.
        self._pair_chance = 1.0 - (1.0 - cell.ratio) ** (1.0 / max(1, cell.m - 1))
        self._scale = np.float32(1.0 / cell.ratio if cell.method_settings.get("unbiased", True) else 1.0)

    def step(self, updates: Matrix, round_number: int) -> Step:
        sends = self._patterns(round_number)
        # Attackers forge updates and scale them as everybody does; where their pairs drew nothing, their masks would not cancel.
        forged = self._setting.adversary.forge(updates, lambda values: values.mean(axis=0))
        sent = np.where(sends, forged * self._scale, np.float32(0))
        return Step(sent.mean(axis=0), None, float(sends.sum(axis=1).mean()), float(np.count_nonzero(sends.any(axis=0))))

    def _patterns(self, round_number: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        m, d = self._setting.cell.m, self._setting.parameters
        sends = np.zeros((m, d), dtype=np.bool_)
        rng = self._setting.rng(METHOD, round_number)
        for first in range(m):
            for second in range(first + 1, m):
                drawn = rng.choice(d, size=rng.binomial(d, self._pair_chance), replace=False, shuffle=False)
                sends[first, drawn] = True
                sends[second, drawn] = True
        return sends
