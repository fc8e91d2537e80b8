"""RCGD-EF (Ghosh et al., 2021): top-K with error feedback, and a mean over the silos with the shortest vectors.

Every silo sends its own K coordinates in the clear. The server drops the fraction of silos whose vectors are longest, at
least the Byzantine ones, and averages the rest. The answer is dense: the union of everybody's coordinates.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrep.sparsify import top_k
from fedrep_lab.methods.interface import Matrix, Setting, Step, energy_kept


class RcgdEf:
    view: ClassVar[str] = "each silo's values"
    takes: ClassVar[tuple[str, ...]] = ("trimmed",)

    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        self._setting = setting
        self._k = max(1, int(cell.ratio * setting.parameters))
        self._trimmed = int(cell.method_settings.get("trimmed", cell.f))
        self.memory: Matrix = np.zeros((cell.m, setting.parameters), dtype=np.float32)

    def step(self, updates: Matrix, round_number: int) -> Step:  # noqa: ARG002  every method is told the round
        g = np.add(self.memory, updates, out=updates)
        sent = np.zeros_like(g)
        for silo, row in enumerate(g):
            chosen = top_k(row, self._k)
            sent[silo, chosen] = row[chosen]
        honest = self._setting.cell.honest
        kept = energy_kept(g, sent, honest)
        self.memory = np.subtract(g, sent, out=g)
        forged = self._setting.adversary.forge(sent, self._mean_of_shortest)
        if self._setting.adversary.forges:
            for silo in range(honest, len(forged)):  # a message has room for K coordinates, whoever sends it
                allowed = top_k(forged[silo], self._k)
                cut = np.zeros_like(forged[silo])
                cut[allowed] = forged[silo, allowed]
                forged[silo] = cut
        result = self._mean_of_shortest(forged)
        return Step(result, None, self._k, float(np.count_nonzero(result)), kept)

    def _mean_of_shortest(self, values: Matrix) -> NDArray[np.float32]:
        lengths = np.einsum("ij,ij->i", values, values, dtype=np.float64)
        kept = np.argsort(lengths, kind="stable")[: len(values) - self._trimmed]
        mean: NDArray[np.float32] = values[kept].mean(axis=0)
        return mean
