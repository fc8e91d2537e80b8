"""Lots that nobody can foresee: numbers from an AES-256-CTR keystream, by the names that numpy's generators have for them.

numpy's generators are made for statistics: from enough of their output the rest can be computed, and with it which coordinates of
a proposal are decoys.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrep.secagg.keys import SecretBytes
from fedrep.secagg.keystream import PIECE_BYTES, Keystream

_WORDS = 1 << 64


class Draws:
    """A key serves one of these."""

    def __init__(self, key: SecretBytes) -> None:
        self._stream = Keystream(key)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Unpredictable 64-bit numbers."""
        drawn = np.empty(count, dtype=np.uint64)
        memory = drawn.view(np.uint8)
        for start in range(0, memory.size, PIECE_BYTES):
            self._stream.fill(memory[start : start + PIECE_BYTES])
        return drawn

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        """Each of low .. high - 1 equally likely: words beyond the last whole multiple of their number are drawn again."""
        span = high - low
        usable, words = _WORDS - _WORDS % span, self.words(size)
        if usable < _WORDS:
            while (beyond := np.flatnonzero(words >= np.uint64(usable))).size:
                words[beyond] = self.words(beyond.size)
        words %= np.uint64(span)
        return words.astype(np.int64) + low

    def binomial(self, n: int, p: float) -> int:
        """How many of n lots win, each with probability p, or a little more: p may be less than one word in all."""
        return n if p >= 1.0 else int(np.count_nonzero(self.words(n) < np.uint64(math.ceil(p * _WORDS))))
