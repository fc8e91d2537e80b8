"""Local training beside the protocol: a slow trainer makes the silo a bystander of the round, never an absentee."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep.errors import FedrepError
from fedrep.protocol.model_state import ModelState
from services.client.trainer import Trainer, TrainerState, TrainResult

log = structlog.get_logger(__name__)


class TrainingFailedError(FedrepError):
    """User code, data or device failed; the text is the trainer's own."""

    default_reason = "TRAINING_FAILED"


@dataclass(frozen=True, slots=True)
class Trained:
    """`update` is w^t - w_k^{t+1}, and `state` the trainer's state after exactly this training."""

    version: int
    update: NDArray[np.float32]
    loss: float
    samples: int
    seconds: float
    state: TrainerState


class Training:
    """At most one training runs at a time; one for an older model version is waited for and thrown away."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._task: asyncio.Task[Trained] | None = None
        self._version: int | None = None
        self._before: TrainerState = {}

    async def result(self, model: ModelState, round_number: int, seconds: float) -> Trained | None:
        """The update for this version, or None if it is not ready in time; asking again goes on waiting for it."""
        if self._task is not None and self._version != model.version:
            await asyncio.wait({self._task})
            self._forget()
        if self._task is None:
            self._version, self._before = model.version, self.trainer.state()
            self._task = asyncio.create_task(self._train(model, round_number))
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        if not done:
            return None
        task, self._task = self._task, None
        return task.result()

    def _forget(self) -> None:
        """An update nobody used leaves no trace: momentum goes back with it."""
        self._task = None
        self.trainer.load_state(self._before)

    async def _train(self, model: ModelState, round_number: int) -> Trained:
        started = time.monotonic()
        try:
            result: TrainResult = await asyncio.to_thread(self.trainer.train, model.vector, round_number)
        except FedrepError as error:
            raise TrainingFailedError(str(error)) from error
        except Exception as error:  # user code may raise anything; the round is left, the silo goes on
            log.exception("training_failed")
            raise TrainingFailedError(f"{type(error).__name__}: {error}") from error
        update = model.vector - result.model
        if not np.isfinite(update).all():
            raise TrainingFailedError("the local update holds NaN or infinity; lower the learning rate or clip gradients")
        return Trained(model.version, update, result.loss, result.samples, time.monotonic() - started, self.trainer.state())
