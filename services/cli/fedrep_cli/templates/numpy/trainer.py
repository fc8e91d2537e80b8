"""Logistic regression in numpy alone, on made-up measurements of two groups.

A trainer is any object with these members; `python -m pydoc fedrep_trainers.trainer` says what each promises.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedrep_trainers import Evaluation, ModelLayout, TrainerSettings, TrainResult

Vector = NDArray[np.float32]
Arrays = Mapping[str, NDArray[np.generic]]
FEATURES = 64


def rows(settings: TrainerSettings, part: int, count: int) -> tuple[Vector, Vector]:
    """Two clouds of points. A real silo loads its own file, named under [trainer.options] in client.toml."""
    apart = np.random.default_rng(settings.seed).standard_normal(FEATURES) / 6
    rng = np.random.default_rng([settings.seed, part])
    labels = rng.integers(0, 2, count)
    inputs = rng.standard_normal((count, FEATURES)) + np.where(labels[:, None] == 1, apart, -apart)
    return inputs.astype(np.float32), labels.astype(np.float32)


class LogisticRegression:
    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        inputs, labels = rows(settings, 1, 2000)
        own = slice(settings.shard_index % settings.shard_count, None, settings.shard_count)  # each silo has its own part
        self._own = inputs[own], labels[own]
        self._held_out = rows(settings, 0, 1000)
        self._momentum = np.zeros(FEATURES + 1, dtype=np.float32)
        self.layout = ModelLayout.of([("weight", (FEATURES,)), ("bias", (1,))])

    def initial(self) -> Vector:
        return np.zeros(self.layout.size, dtype=np.float32)

    def train(self, model: Vector, round_number: int) -> TrainResult:
        """`interval` steps of momentum SGD. Every random choice follows from seed, shard and round."""
        self.layout.require_vector(model)  # before anything changes: a refused model leaves the state as it was
        rng = np.random.default_rng([self._settings.seed, self._settings.shard_index, round_number])
        trained, momentum, losses = model.copy(), self._momentum.copy(), []
        beta, rate = np.float32(self._settings.momentum), np.float32(self._settings.learning_rate)
        for _ in range(self._settings.interval):
            chosen = rng.choice(len(self._own[1]), self._settings.batch_size, replace=False)
            inputs, labels = self._own[0][chosen], self._own[1][chosen]
            chances, loss = judged(trained, inputs, labels)
            gradient = np.append((chances - labels) @ inputs, np.sum(chances - labels)) / np.float32(len(labels))
            momentum = beta * momentum + (1 - beta) * gradient.astype(np.float32)
            trained = trained - rate * momentum
            losses.append(loss)
        self._momentum = momentum
        return TrainResult(model=trained, loss=float(np.mean(losses)), samples=self._settings.batch_size * len(losses))

    def evaluate(self, model: Vector) -> Evaluation:
        self.layout.require_vector(model)
        inputs, labels = self._held_out
        chances, loss = judged(model, inputs, labels)
        hits = (chances > 0.5) == (labels > 0.5)
        brier = float(np.mean((chances - labels) ** 2))
        return Evaluation(loss=loss, accuracy=float(np.mean(hits)), samples=len(labels), metrics={"brier": brier})

    def state(self) -> Arrays:
        """What lives from round to round; copies."""
        return {"momentum": self._momentum.copy()}

    def load_state(self, state: Arrays) -> None:
        self._momentum = np.array(state["momentum"], dtype=np.float32)

    def export(self, model: Vector) -> dict[str, NDArray[np.generic]]:
        """For `fedrep client export`."""
        return {name: array.copy() for name, array in self.layout.split(model).items()}


def judged(model: Vector, inputs: Vector, labels: Vector) -> tuple[Vector, float]:
    """The chance of being in the second group, and the mean logistic loss."""
    scores = inputs @ model[:-1] + model[-1]
    loss = np.mean(np.logaddexp(0, scores) - labels * scores)
    return (1 / (1 + np.exp(-scores))).astype(np.float32), float(loss)


def build(settings: TrainerSettings) -> LogisticRegression:
    """What client.toml names as user_code."""
    return LogisticRegression(settings)
