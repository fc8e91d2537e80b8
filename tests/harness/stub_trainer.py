"""The trainer of tests: small, quick, and without torch, so that a process with it starts in a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep_trainers.layout import ModelLayout, Vector
from fedrep_trainers.trainer import Evaluation, TrainResult

PARAMETERS = 200


class StubTrainer:
    """Least squares with momentum on a few made-up samples: a round costs microseconds, and depends on the saved state.

    `seconds` makes it slow; `before_training` may raise, or note that it was called.
    """

    def __init__(
        self,
        number: int = 0,
        parameters: int = PARAMETERS,
        *,
        seconds: float = 0.0,
        before_training: Callable[[int], None] | None = None,
    ) -> None:
        rng = np.random.default_rng([7, number])
        truth = np.random.default_rng(7).normal(size=parameters)
        self._inputs = rng.normal(size=(64, parameters)).astype(np.float32)
        self._targets = (self._inputs @ truth + 0.1 * rng.normal(size=64)).astype(np.float32)
        self._momentum = np.zeros(parameters, np.float32)
        self._seconds = seconds
        self._before_training = before_training
        self.layout = ModelLayout.of([("weight", (parameters,))])
        self.trained_rounds: list[int] = []

    def initial(self) -> Vector:
        return np.zeros(self.layout.size, dtype=np.float32)

    def train(self, model: Vector, round_number: int) -> TrainResult:
        self.layout.require_vector(model)
        if self._before_training is not None:
            self._before_training(round_number)
        time.sleep(self._seconds)
        error = self._inputs @ model - self._targets
        gradient = (self._inputs.T @ error) / len(error)
        self._momentum = (0.9 * self._momentum + 0.1 * gradient).astype(np.float32)
        self.trained_rounds.append(round_number)
        return TrainResult(model - np.float32(0.1) * self._momentum, float(np.mean(error**2)), len(error))

    def evaluate(self, model: Vector) -> Evaluation:
        error = self._inputs @ model - self._targets
        loss = float(np.mean(error**2))
        return Evaluation(loss, accuracy=1 / (1 + loss), samples=len(error))

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"momentum": self._momentum.copy()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._momentum = np.array(state["momentum"], dtype=np.float32)
