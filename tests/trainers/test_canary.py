"""Whether a record was trained on, guessed from what a training gives away: no better than (epsilon, delta) allows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrep.record_privacy import Budget
from fedrep_trainers.record_accountant import noise_for
from fedrep_trainers.settings import PrivacySettings
from tests.trainers.private_trainers import dot_trainer

TRAININGS = 500  # with the canary, and as many without
BUDGET = Budget(epsilon=1.0, delta=1e-3)
RECORDS, BATCH, STEPS = 8, 4, 2


def guessed(with_canary: bool, noise: float, trainings: int) -> float:
    """How often somebody who knows all other records, and saw the model, says that the canary was among them."""
    records = np.zeros((RECORDS, 3))
    records[0] = [0.0, 500.0, 0.0] if with_canary else 0.0  # far above the clip norm: clipping is what bounds it
    records[1:] = np.random.default_rng(0).normal(scale=0.1, size=(RECORDS - 1, 3)) * [1.0, 0.0, 1.0]
    privacy = PrivacySettings(epsilon=BUDGET.epsilon, delta=BUDGET.delta, noise=noise)
    trainer = dot_trainer(records, privacy, batch_size=BATCH, interval=STEPS)
    trainer.privacy(None)
    start = trainer.initial()
    # The canary moves coordinate 1 by 1 / BATCH in each of the two steps that draws it.
    seen = [float((start - trainer.train(start, 0).model)[1]) for _ in range(trainings)]
    return float(np.mean(np.array(seen) > 0.5 / BATCH))


def test_a_canary_is_guessed_no_better_than_the_bound_and_without_noise_far_better() -> None:
    noise = noise_for(BUDGET, BATCH / RECORDS, STEPS, 1)
    right, wrong = guessed(True, noise, TRAININGS), guessed(False, noise, TRAININGS)
    most = (math.exp(BUDGET.epsilon) - 1.0 + 2.0 * BUDGET.delta) / (math.exp(BUDGET.epsilon) + 1.0)
    assert right - wrong <= most
    few = 100
    bare = guessed(True, 1e-6, few) - guessed(False, 1e-6, few)
    assert bare > most, "without noise the same guess works, so the test can tell"
    drawn = 1.0 - (1.0 - BATCH / RECORDS) ** STEPS
    assert bare == pytest.approx(drawn, abs=5.0 * math.sqrt(drawn * (1.0 - drawn) / few)), "wherever the canary was drawn"
