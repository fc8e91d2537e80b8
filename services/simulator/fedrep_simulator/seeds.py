"""Where a simulation's randomness comes from: one number, and what it is drawn for.

A silo of the service draws obfuscation and rounding from the system, unpredictably. Here both follow from the seed, the silo, the
round and how often it drew in that round, so that a simulation that is taken up again ends with the same bits. Nothing of this is
secret, and keys and masks, which leave no trace in the model, are still the system's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedrep.protocol.silo_identity import Randomness
from fedrep.secagg.transcript import digest


def seed_bytes(seed: int, purpose: str) -> bytes:
    return digest("fedrep/simulation", seed, purpose)


def generator(seed: int, purpose: str, name: str, round_number: int, draw: int = 0) -> np.random.Generator:
    drawn = digest("fedrep/simulation", seed, purpose, name, round_number, draw)
    return np.random.default_rng(int.from_bytes(drawn, "little"))


@dataclass
class SiloDice:
    """One silo's draws; `round` is asked at each of them."""

    seed: int
    silo: str
    round: Callable[[], int]
    _drawn: tuple[int, int] = field(default=(0, 0))

    def draw(self) -> np.random.Generator:
        number = self.round()
        before = self._drawn[1] if self._drawn[0] == number else 0
        self._drawn = number, before + 1
        return generator(self.seed, "silo", self.silo, number, before)

    def randomness(self) -> Randomness:
        return Randomness(secrets.token_bytes, self.draw, self.draw)
