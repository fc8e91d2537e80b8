"""Trainings that are charged, in a process of their own too: it starts with few imports, and may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np

from fedrep.errors import RefusedError
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_effects import Train, Trained, TrainingFailed, TrainingRefused
from fedrep.record_privacy import Stated, TrainingPrivacy
from fedrep_silo.audit import Audit
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.training import Training
from fedrep_trainers.layout import Vector
from fedrep_trainers.settings import PrivacySettings
from fedrep_trainers.trainer import Allowance, TrainResult
from tests.harness.stub_trainer import PARAMETERS, StubTrainer

PRIVACY = PrivacySettings(epsilon=1.0, delta=1e-5)
MODEL = ModelState.initial(np.zeros(PARAMETERS, np.float32))


class StatingTrainer(StubTrainer):
    """Says that each of its trainings is (0.4, 0)-private, and counts them."""

    statement: TrainingPrivacy | None = Stated(0.4)

    def privacy(self, allowance: Allowance | None) -> TrainingPrivacy | None:  # noqa: ARG002 - the protocol's
        return self.statement


def books(folder: Path, privacy: PrivacySettings | None = PRIVACY) -> RecordBooks:
    return RecordBooks(folder, privacy)


def training(folder: Path, trainer: StubTrainer, privacy: PrivacySettings | None = PRIVACY) -> Training:
    return Training(trainer, trainer.state(), books(folder, privacy), Audit(folder / "audit.jsonl"))


def trained(training: Training, run: str = "run", round_number: int = 1) -> Trained | TrainingFailed | TrainingRefused:
    start_from = training.trainer.state()
    return asyncio.run(training.carry_out(Train(MODEL, round_number, start_from, run, 10)))


def charge_until_refused(folder: Path, run: str) -> int:
    trainer, count = StatingTrainer(), 0
    trainer.statement = Stated(0.1)
    while True:
        try:
            books(folder, PrivacySettings(epsilon=2.0 + 1e-9, delta=1e-5)).charge(run, trainer, 1)
        except RefusedError:
            return count
        count += 1


def die(folder: Path, moment: str) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Dying(StatingTrainer):
        def privacy(self, allowance: Allowance | None) -> TrainingPrivacy | None:
            if moment == "before":
                kill()
            return super().privacy(allowance)

        def train(self, model: Vector, round_number: int) -> TrainResult:
            if moment == "during":
                kill()
            return super().train(model, round_number)

    trained(training(folder, Dying()))
    kill()
