"""Which records a step sees, and the noise on their sum: from the operating system's secure randomness, and from nothing else.

Every call takes a fresh 256-bit key from `secrets` and reads an AES-256-CTR keystream with it, so there is no state that could be
seeded, saved, restored, or copied by a fork. numpy's and torch's generators are made for statistics: from enough of their output
the rest can be computed, and what they hide could be subtracted. The normal deviates are double precision (Box and Muller) and
end at 9.5 standard deviations; the rounding of floating-point noise is not covered by the guarantee.
"""

from __future__ import annotations

import math
import random
import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrep.secagg.draws import Draws
from fedrep.secagg.keys import SecretBytes

_WORD = 2.0**-64
_PAIRS_AT_ONCE = 1 << 16


def chosen(records: int, rate: float) -> NDArray[np.int64]:
    """The positions of a Poisson sample: each record is in it with probability `rate`, whatever becomes of the others."""
    if rate >= 1.0:
        return np.arange(records)
    return np.flatnonzero(words(records) < np.uint64(int(rate * 2**64)))


def normals(count: int) -> Tensor:
    """Independent standard normal deviates in double precision."""
    pairs = (count + 1) // 2
    result = torch.empty(2, pairs, dtype=torch.float64)
    drawn = words(2 * pairs).reshape(2, pairs)
    for start in range(0, pairs, _PAIRS_AT_ONCE):
        radius_words, angle_words = drawn[:, start : start + _PAIRS_AT_ONCE]
        radius = torch.from_numpy((radius_words + 0.5) * _WORD).log_().mul_(-2.0).sqrt_()  # half a word up: never the log of 0
        angle = torch.from_numpy(angle_words * (2.0 * math.pi * _WORD))
        piece = result[:, start : start + _PAIRS_AT_ONCE]
        torch.mul(radius, angle.cos(), out=piece[0])
        torch.mul(radius, angle.sin(), out=piece[1])
    return result.view(-1)[:count]


def reseed_others() -> None:
    """The generators that dropout and a data set's own transforms draw from, in the order in which records were drawn.

    By a known seed the mask of one record would tell whether another, before it, was drawn; what a step costs counts on nobody
    knowing that.
    """
    torch.manual_seed(secrets.randbits(63))
    np.random.seed(np.frombuffer(secrets.token_bytes(32), np.uint32))
    random.seed(secrets.randbits(256))


def words(count: int) -> NDArray[np.uint64]:
    """Unpredictable 64-bit numbers."""
    return Draws(SecretBytes(secrets.token_bytes(32))).words(count)
