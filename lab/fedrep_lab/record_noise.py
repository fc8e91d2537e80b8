"""How much noise a cell's record epsilon asks for, and what a silo's update is beside it."""

from __future__ import annotations

import math
from functools import lru_cache

from fedrep.record_privacy import Budget
from fedrep_lab.cell import Cell
from fedrep_trainers.record_accountant import noise_for


@lru_cache(maxsize=64)
def noise_of(epsilon: float, delta: float, rate: float, steps: int, rounds: int) -> float:
    """Standard deviation of the noise in units of the clip norm."""
    return noise_for(Budget(epsilon, delta), rate, steps, rounds)


def update_noise(cell: Cell) -> float:
    """Noise per coordinate of an update whose persistent part has the size one, for measurements without data.

    Fresh minibatches alone give one. Privacy adds to it, least of all where all records of a silo pull the same way, so that its
    mean gradient is as long as the clip norm C: C / sqrt(d) per coordinate, beside a noise of sigma C / batch.
    """
    if not cell.record_epsilon:
        return 1.0
    records, parameters = cell.setting("records"), cell.setting("parameters")
    sigma = noise_of(cell.record_epsilon, cell.record_delta, cell.batch_size / records, cell.interval, cell.rounds)
    return math.hypot(1.0, sigma * math.sqrt(parameters) / cell.batch_size)
