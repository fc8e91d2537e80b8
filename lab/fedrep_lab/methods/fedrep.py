"""FedREP (Algorithms 1 and 2): consensus sparsification, buffers, a robust rule, error memory.

In real numbers, or in the ring and with the clip range of the service; with silos that propose and then fall silent, as
the service treats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrep.buffers import sizes
from fedrep.protocol.clip_range import CLIP_RATE_LIMIT, QUIET_FRACTION, QUIET_ROUNDS
from fedrep.protocol.thresholds import default_colluders, default_min_survivors
from fedrep.quantize import RingFormat, quantize, value_bits
from fedrep.sparsify import Coordinates, propose, union
from fedrep_lab.methods.interface import (
    DROP,
    PROPOSE,
    ROUND_UP,
    BufferedRule,
    Matrix,
    Setting,
    Step,
    buffer_groups,
    energy_kept,
    rule_of,
)


class FedREP:
    view: ClassVar[str] = "sums over a buffer"

    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        self._setting = setting
        self._rule = rule_of(cell)
        # K = m d means that everybody proposes everything: SHARE.
        self.k = min(setting.parameters, max(1, round(cell.ratio * setting.parameters) // cell.m))
        self.memory: Matrix = np.zeros((cell.m, setting.parameters), dtype=np.float32)
        self._ring = Ring.of(setting) if cell.ring_bits else None
        self._least = default_min_survivors(cell.s, default_colluders(cell.s))

    def step(self, updates: Matrix, round_number: int) -> Step:
        setting, cell = self._setting, self._setting.cell
        g = np.add(self.memory, updates, out=updates)
        agreed = self._consensus(g, round_number)
        wanted = np.ascontiguousarray(g[:, agreed])
        groups, survivors = self._opened(round_number)
        sent = wanted if self._ring is None else self._ring.rounded(wanted, setting, round_number)
        honest = cell.m - setting.adversary.count
        kept = energy_kept(g, np.einsum("ij,ij->i", wanted[:honest], wanted[:honest], dtype=np.float64), honest)
        if not groups:
            self.memory = g
            return Step(np.zeros(0, np.float32), agreed[:0], agreed.size, 0.0, kept, measures={"skipped": 1.0})
        server = BufferedRule(self._rule, groups, setting, round_number)
        forged = setting.adversary.forge(sent, server.vector)
        result = server.aggregate(forged if self._ring is None else self._ring.bounded(forged))
        self._remember(g, agreed, wanted, sent, survivors)
        measures = {}
        if self._ring is not None:
            self._ring.after_round(float(np.abs(result.vector).max()))
            measures["clip_range"] = self._ring.range
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

    def _opened(self, round_number: int) -> tuple[list[NDArray[np.int64]], NDArray[np.bool_]]:
        """The survivors of each buffer that may be opened, and for every silo whether its values were."""
        setting, cell = self._setting, self._setting.cell
        groups = buffer_groups(setting, round_number)
        if not cell.dropout:
            return groups, np.ones(cell.m, dtype=np.bool_)
        present = setting.rng(DROP, round_number).random(cell.m) >= cell.dropout
        present[cell.m - setting.adversary.count :] = True  # the worst case: every missing silo is an honest one
        opened = [left for group in groups if (left := group[present[group]]).size >= self._least]
        if len(opened) < (1 if cell.f == 0 else max(cell.f + 1, 3)):
            opened = []
        included = np.zeros(cell.m, dtype=np.bool_)
        for group in opened:
            included[group] = True
        return opened, included

    def _remember(self, g: Matrix, agreed: Coordinates, wanted: Matrix, sent: Matrix, survivors: NDArray[np.bool_]) -> None:
        """u = g - sent for those whose values were opened; the others keep all of g."""
        rest = np.where(survivors[:, None], wanted - sent, wanted)
        g[:, agreed] = rest
        self.memory = g


@dataclass
class Ring:
    """The service's quantization: q bits in a ring, stochastic rounding, and a range that follows the updates."""

    format: RingFormat
    range: float
    quiet: int = 0
    clip_rate: float = 0.0

    @classmethod
    def of(cls, setting: Setting) -> Ring:
        cell = setting.cell
        bits = value_bits(cell.ring_bits, sizes(cell.m, cell.s)[0])
        return cls(RingFormat(cell.ring_bits, bits), cell.initial_range)

    def rounded(self, wanted: Matrix, setting: Setting, round_number: int) -> Matrix:
        rows = [
            quantize(row, self.range, self.format, setting.rng(ROUND_UP, silo, round_number)) for silo, row in enumerate(wanted)
        ]
        self.clip_rate = float(np.median([row.clip_rate for row in rows]))
        return np.stack([row.dequantized for row in rows])

    def bounded(self, values: Matrix) -> Matrix:
        """A sum outside the range proves a lie, so an attacker stays inside it."""
        return np.clip(values, -self.range, self.range)

    def after_round(self, largest_update: float) -> None:
        if self.clip_rate > CLIP_RATE_LIMIT:
            self.range, self.quiet = 2 * self.range, 0
            return
        self.quiet = self.quiet + 1 if largest_update < self.range * QUIET_FRACTION else 0
        if self.quiet >= QUIET_ROUNDS:
            self.range, self.quiet = self.range / 2, 0
