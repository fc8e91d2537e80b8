"""Logistic regression with scikit-learn's SGDClassifier, without PyTorch, on scikit-learn's handwritten digits.

A trainer is any object with these members; `python -m pydoc fedrep_trainers.trainer` says what each promises.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import f1_score, log_loss

from fedrep_trainers import Evaluation, ModelLayout, TrainerSettings, TrainResult

Vector = NDArray[np.float32]
Arrays = Mapping[str, NDArray[np.generic]]


def rows(settings: TrainerSettings) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Here all silos share one public set; a real silo loads its own file, named under [trainer.options] in client.toml."""
    table = load_digits()
    order = np.random.default_rng(settings.seed).permutation(len(table.target))
    return table.data[order] / 16.0, table.target[order].astype(np.int64)


class SklearnTrainer:
    def __init__(self, settings: TrainerSettings) -> None:
        inputs, labels = rows(settings)
        self._held_out = inputs[:360], labels[:360]
        own = slice(360 + settings.shard_index % settings.shard_count, None, settings.shard_count)
        self._own = inputs[own], labels[own]
        self._settings = settings
        self._classes = np.unique(labels)
        self._classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=settings.learning_rate, alpha=1e-4)
        self._classifier.partial_fit(self._own[0][:1], self._own[1][:1], classes=self._classes)  # makes coef_ and intercept_
        self._shapes = {"coef_": self._classifier.coef_.shape, "intercept_": self._classifier.intercept_.shape}
        self.layout = ModelLayout.of(self._shapes.items())

    def initial(self) -> Vector:
        return np.zeros(self.layout.size, dtype=np.float32)

    def train(self, model: Vector, round_number: int) -> TrainResult:
        """One pass over this silo's rows, `interval` times. Every random choice follows from seed, shard and round."""
        self._load(model)
        inputs, labels = self._own
        self._classifier.random_state = int(
            np.random.default_rng([self._settings.seed, self._settings.shard_index, round_number]).integers(2**31)
        )
        for _ in range(self._settings.interval):
            self._classifier.partial_fit(inputs, labels)
        loss = log_loss(labels, self._classifier.predict_proba(inputs), labels=self._classes)
        return TrainResult(model=self._vector(), loss=float(loss), samples=len(labels) * self._settings.interval)

    def evaluate(self, model: Vector) -> Evaluation:
        self._load(model)
        inputs, labels = self._held_out
        chances = self._classifier.predict_proba(inputs)
        found = self._classes[chances.argmax(axis=1)]
        return Evaluation(
            loss=float(log_loss(labels, chances, labels=self._classes)),
            accuracy=float(np.mean(found == labels)),
            samples=len(labels),
            metrics={"f1": float(f1_score(labels, found, average="macro"))},
        )

    def state(self) -> Arrays:
        """Nothing lives from round to round: the learning rate is constant, and the shuffle follows from the round."""
        return {}

    def load_state(self, state: Arrays) -> None:
        pass

    def export(self, model: Vector) -> dict[str, NDArray[np.generic]]:
        """For `fedrep client export`: the attributes of an SGDClassifier by name."""
        return {name: array.astype(np.float64) for name, array in self.layout.split(model).items()}

    def _load(self, model: Vector) -> None:
        self.layout.require_vector(model)
        for name, values in self.layout.split(model).items():
            setattr(self._classifier, name, values.astype(np.float64))
        self._classifier.t_ = 1.0

    def _vector(self) -> Vector:
        return self.layout.join({name: getattr(self._classifier, name) for name in self._shapes})


def build(settings: TrainerSettings) -> SklearnTrainer:
    """What client.toml names as user_code."""
    return SklearnTrainer(settings)
