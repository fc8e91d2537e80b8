"""The service's arithmetic without its cryptography: values quantized into the ring, summed there, opened as means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrep.buffers import sizes
from fedrep.protocol.clip_range import ClipRange, range_bits
from fedrep.quantize import LARGEST_RANGE, SMALLEST_RANGE, Quantized, RingFormat, open_mean, quantize, value_bits
from fedrep_lab.methods.interface import ROUND_UP, Matrix, Setting, Vector


class Ring:
    """q bits in a ring as a run with these settings has them, and a range R that follows the updates."""

    # A cell sets no limits to R, so these are what the ring itself can work with.
    smallest_range = SMALLEST_RANGE
    largest_range = LARGEST_RANGE

    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        self.format = RingFormat(cell.ring_bits, value_bits(cell.ring_bits, sizes(cell.m, cell.s)[0]))
        self._setting = setting
        self._range = ClipRange(cell.initial_range)
        self._honest: list[Quantized] = []

    @property
    def range(self) -> float:
        return self._range.value

    def rounded(self, wanted: Matrix, round_number: int) -> Matrix:
        """What everybody's values stand for once they are in the ring."""
        self._honest = [self._quantized(row, silo, round_number) for silo, row in enumerate(wanted)]
        return np.stack([row.dequantized for row in self._honest])

    def opened_means(self, forged: Matrix, groups: list[NDArray[np.int64]], round_number: int) -> Matrix:
        """The buffers as the server opens them. Attackers stay within the range: a sum outside it would prove a lie."""
        levels = [row.levels for row in self._honest]
        if self._setting.adversary.forges:
            for silo in range(self._setting.cell.honest, len(levels)):
                levels[silo] = self._quantized(forged[silo], silo, round_number).levels
        means = []
        for group in groups:
            total = np.sum([levels[silo] for silo in group], axis=0, dtype=self.format.dtype)  # modulo 2^B
            means.append(open_mean(total, group.size, self.range, self.format))
        return np.stack(means)

    def after_round(self, g: Matrix, per_silo: int, proposed: NDArray[np.bool_]) -> None:
        """R moves by the two bits of each proposal (N3); an attacker's are those of an honest silo in its place."""
        bits = [range_bits(row, self.range, per_silo) for row, speaks in zip(g, proposed, strict=True) if speaks]
        self._range = self._range.after_round(bits, self._setting.cell.f, self)

    def _quantized(self, row: Vector, silo: int, round_number: int) -> Quantized:
        return quantize(row, self.range, self.format, self._setting.rng(ROUND_UP, silo, round_number))
