"""Whether a record was trained on, guessed from what a training gives away: no better than (epsilon, delta) allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.record_privacy import Budget
from fedrep_trainers.record_accountant import noise_for
from fedrep_trainers.settings import PrivacySettings
from tests.trainers.private_trainers import dot_trainer

TRAININGS = 500  # with the canary, and as many without
BUDGET = Budget(epsilon=1.0, delta=1e-3)
RECORDS, BATCH, STEPS = 8, 4, 2


def shifts(with_canary: bool, noise: float, trainings: int) -> NDArray[np.float64]:
    """What somebody who knows all other records sees of the canary in the model after each training, in units of C / BATCH."""
    records = np.zeros((RECORDS, 3))
    records[0] = [0.0, 500.0, 0.0] if with_canary else 0.0  # far above the clip norm: clipping is what bounds it
    records[1:] = np.random.default_rng(0).normal(scale=0.1, size=(RECORDS - 1, 3)) * [1.0, 0.0, 1.0]
    privacy = PrivacySettings(epsilon=BUDGET.epsilon, delta=BUDGET.delta, noise=noise)
    trainer = dot_trainer(records, privacy, batch_size=BATCH, interval=STEPS)
    trainer.privacy(None)
    start = trainer.initial()
    return BATCH * np.array([float((start - trainer.train(start, 0).model)[1]) for _ in range(trainings)])


def test_a_canary_is_guessed_no_better_than_the_bound_and_without_noise_far_better() -> None:
    noise = noise_for(BUDGET, BATCH / RECORDS, STEPS, 1)
    present, absent = shifts(True, noise, TRAININGS), shifts(False, noise, TRAININGS)
    odds, uncertain = math.exp(BUDGET.epsilon), 5.0 * math.sqrt(0.25 / TRAININGS)
    for least in (0.5, 2.0, 20.0):  # "it was there", says whoever sees at least so much
        right, wrong = np.mean(present > least), np.mean(absent > least)
        assert right <= odds * (wrong + uncertain) + BUDGET.delta + uncertain
    most = (odds - 1.0 + 2.0 * BUDGET.delta) / (odds + 1.0)
    assert np.mean(present > 0.5) - np.mean(absent > 0.5) <= most
    few = 100
    bare = np.mean(shifts(True, 1e-6, few) > 0.5) - np.mean(shifts(False, 1e-6, few) > 0.5)
    assert bare > most, "without noise the same guess works, so the test can tell"
    drawn = 1.0 - (1.0 - BATCH / RECORDS) ** STEPS
    assert bare == pytest.approx(drawn, abs=5.0 * math.sqrt(drawn * (1.0 - drawn) / few)), "wherever the canary was drawn"
