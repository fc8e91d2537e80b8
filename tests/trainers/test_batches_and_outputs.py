"""Every usual form of a batch and of a module's output trains to the same bits; metrics are made of all outputs at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedrep.errors import SettingsError
from fedrep_trainers.contract import check_trainer, failures
from fedrep_trainers.predictions import Metrics, Predictions
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer

INPUTS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 2
CROSS_ENTROPY = nn.CrossEntropyLoss()


class Rows(Dataset[Any]):
    def __init__(self, row: Callable[[Tensor, Tensor], Any]) -> None:
        self._row = row

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int) -> Any:
        return self._row(INPUTS[index], LABELS[index])


class Classifier(nn.Module):
    """`answer` makes of logits and labels what a kind of model returns."""

    def __init__(self, answer: Callable[[Tensor, Tensor | None], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self._answer = answer

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        return self._answer(self.linear(inputs), labels)


class Answer:
    """As an object of transformers: attributes."""

    def __init__(self, loss: Tensor | None, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


def own(logits: Tensor, labels: Tensor | None) -> Tensor:
    assert labels is not None
    loss: Tensor = CROSS_ENTROPY(logits, labels)
    return loss


def pair(inputs: Tensor, label: Tensor) -> Any:
    return inputs, label


def named(inputs: Tensor, label: Tensor) -> Any:
    return {"inputs": inputs, "labels": label}


def trainer_of(
    row: Callable[[Tensor, Tensor], Any] = pair,
    answer: Callable[[Tensor, Tensor | None], Any] = lambda logits, _: logits,
    loss: Any = CROSS_ENTROPY,
    metrics: Metrics | None = None,
) -> TorchTrainer:
    torch.manual_seed(1)
    return TorchTrainer(
        Classifier(answer),
        train=DataLoader(Rows(row), batch_size=4, shuffle=True),
        evaluation=DataLoader(Rows(row), batch_size=5),
        loss=loss,
        settings=TrainerSettings(interval=2, threads=1),
        metrics=metrics,
    )


@pytest.mark.parametrize(
    ("row", "answer", "loss"),
    [
        (named, lambda logits, _: logits, CROSS_ENTROPY),
        (named, lambda logits, labels: {"loss": own(logits, labels), "logits": logits}, None),
        (named, lambda logits, labels: Answer(own(logits, labels), logits), None),
        (named, lambda logits, _: Answer(None, logits), CROSS_ENTROPY),
        (named, lambda logits, labels: (own(logits, labels), logits), None),
        (pair, lambda logits, labels: Answer(own(logits, labels), logits), None),
        (lambda inputs, label: ({"inputs": inputs}, label), lambda logits, _: logits, CROSS_ENTROPY),
        (lambda inputs, label: {"inputs": inputs, "target": label}, lambda logits, _: logits, CROSS_ENTROPY),
    ],
    ids=["dict", "dict+loss", "object", "object without loss", "tuple", "pair+loss", "dict in pair", "target"],
)
def test_the_form_of_batches_and_outputs_does_not_matter(row: Any, answer: Any, loss: Any) -> None:
    plain, other = trainer_of(), trainer_of(row, answer, loss)
    start = plain.initial()
    expected = plain.train(start, 0)
    trained = other.train(start, 0)
    assert np.array_equal(trained.model, expected.model)
    assert trained.samples == expected.samples == 8
    assert other.evaluate(expected.model) == plain.evaluate(expected.model)
    assert other.evaluate(expected.model).accuracy is not None
    assert not failures(check_trainer(other))


def test_a_module_that_returns_only_its_loss_trains_alike_and_has_no_accuracy() -> None:
    plain, other = trainer_of(), trainer_of(named, own, None)
    start = plain.initial()
    assert np.array_equal(other.train(start, 0).model, plain.train(start, 0).model)
    assert other.evaluate(start).accuracy is None


def test_batches_without_targets_are_their_own_targets() -> None:
    class Copier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, inputs: Tensor) -> Any:
            return self.linear(inputs)

    for row in (lambda inputs, _: inputs, lambda inputs, _: (inputs,)):
        data = DataLoader(Rows(row), batch_size=4)
        trainer = TorchTrainer(Copier(), train=data, evaluation=data, loss=nn.MSELoss(), settings=TrainerSettings(threads=1))
        assert not failures(check_trainer(trainer))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda logits, _: logits, r"a tensor of shape \[4, 2\] and no loss; give TorchTrainer a `loss`"),
        (lambda logits, _: {"logits": logits}, "a dict with 'logits' and no loss"),
    ],
)
def test_a_model_without_a_loss_is_told_how_to_get_one(answer: Any, text: str) -> None:
    trainer = trainer_of(named, answer, None)
    with pytest.raises(SettingsError, match=text):
        trainer.train(trainer.initial(), 0)


def test_a_batch_without_a_tensor_is_refused_with_the_forms_that_work() -> None:
    trainer = trainer_of(lambda *_: "text", lambda logits, _: logits.mean(), None)
    with pytest.raises(SettingsError, match="without a tensor; batches are tensors"):
        trainer.train(trainer.initial(), 0)


def test_metrics_see_all_outputs_and_targets_at_once() -> None:
    seen: list[Predictions] = []

    def metrics(predictions: Predictions) -> Mapping[str, float]:
        seen.append(predictions)
        hits = predictions.outputs.argmax(axis=1) == predictions.targets
        return {"accuracy again": hits.mean(), "perplexity": math.exp(predictions.loss)}

    trainer = trainer_of(metrics=metrics)
    result = trainer.evaluate(trainer.initial())
    assert seen[0].outputs.shape == (12, 2)
    assert np.array_equal(seen[0].targets, LABELS.numpy())
    assert result.metrics == pytest.approx({"accuracy again": result.accuracy, "perplexity": math.exp(result.loss)})


@pytest.mark.parametrize(
    ("returned", "text"),
    [(0.5, "returned a float"), ({"f1": "high"}, "'f1' is a str"), ({3: 1.0}, "called 3")],
)
def test_metrics_that_are_no_figures_are_refused(returned: Any, text: str) -> None:
    trainer = trainer_of(metrics=lambda _: returned)
    with pytest.raises(SettingsError, match=text):
        trainer.evaluate(trainer.initial())
