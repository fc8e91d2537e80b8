"""The contract itself: good trainers pass, and each broken promise is found and named."""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedrep_trainers
import fedrep_trainers.trainer as trainer_module
from fedrep_trainers import Allowance, Evaluation, ModelLayout, Stated, Trainer, TrainerSettings, TrainResult, check_trainer
from fedrep_trainers.build import build_trainer
from fedrep_trainers.contract import CHECKS, failures
from fedrep_trainers.layout import Vector

OWN_IMPORT = re.compile(r"^ *(?:from|import) (fedrep\S*)", re.MULTILINE)
SMALL = {"interval": 2, "batch_size": 8, "evaluation_samples": 40, "calibration_samples": 40, "threads": 1}


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "logistic", "optimizer": "sgd"},
        {"model": "mlp", "schedule": "step", "milestones": [1], "weight_decay": 0.01, "clip_norm": 1.0},
        {"model": "cnn", "optimizer": "torch.optim.AdamW", "learning_rate": 1e-3, "augment": True},
        {"model": "cnn", "optimizer": "torch.optim.SGD", "optimizer_options": {"momentum": 0.9}},
        {"model": "resnet20", "model_options": {"width": 8}, "split": "dirichlet", "shard_count": 4, "shard_index": 3},
        {"model": "resnet20_gn", "model_options": {"width": 8}, "autocast": "bfloat16"},
    ],
    ids=lambda settings: f"{settings['model']}-{settings.get('optimizer', 'momentum_sgd')}",
)
def test_built_in_trainers_keep_every_promise(settings: dict[str, Any]) -> None:
    trainer = build_trainer(TrainerSettings(**{**SMALL, **settings}))
    findings = check_trainer(trainer, trainer.layout)
    assert failures(findings) == []
    assert len(findings) == len(CHECKS) + 1


def test_the_documented_numpy_trainer_keeps_every_promise() -> None:
    source = re.search(r"( +from collections.*?)\n\n`", trainer_module.__doc__ or "", re.DOTALL)
    assert source is not None
    assert set(OWN_IMPORT.findall(source[1])) == {"fedrep_trainers"}
    names: dict[str, Any] = {}
    exec(textwrap.dedent(source[1]), names)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((30, 4)).astype(np.float32)
    trainer: Trainer = names["LeastSquares"](inputs, inputs @ np.arange(4, dtype=np.float32))
    assert failures(check_trainer(trainer)) == []


def test_the_operators_guide_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    own, built_in = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    assert code is not None
    assert set(OWN_IMPORT.findall(code[1])) == {"fedrep_trainers"}
    (tmp_path / "hospital.py").write_text(code[1])
    rng = np.random.default_rng(0)
    for name in ("known", "held_out"):
        measured = rng.standard_normal((60, 20)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", measurements=measured, findings=measured[:, :3].argmax(axis=1))
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = TrainerSettings(**tomllib.loads(own)["trainer"], user_code_dir=tmp_path)
    trainer = build_trainer(settings)
    assert failures(check_trainer(trainer)) == []
    model = trainer.initial()
    before = trainer.evaluate(model)
    for round_number in range(30):
        model = trainer.train(model, round_number).model
    assert trainer.evaluate(model).loss < before.loss
    shards = [settings.model_copy(update={"shard_index": index, "shard_count": 2}) for index in (0, 1)]
    one, other = (build_trainer(shard).train(trainer.initial(), 0).model for shard in shards)
    assert not np.array_equal(one, other), "simulated silos have data of their own"
    assert TrainerSettings(**tomllib.loads(built_in)["trainer"]).model == "resnet20"


def test_the_names_that_user_code_imports_are_those_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text().partition("### What to import")[2]
    rows = "".join(line.split("|")[1] for line in guide.partition("## ")[0].splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(fedrep_trainers.__all__)
    for name in fedrep_trainers.__all__:
        assert getattr(fedrep_trainers, name).__name__ == name


class Toy:
    """Keeps every promise, with momentum so that its state matters; the tests below break it piece by piece."""

    layout = ModelLayout.of([("weight", (3,))])

    def __init__(self) -> None:
        self.momentum = np.zeros(3, dtype=np.float32)

    def initial(self) -> Vector:
        return np.ones(3, dtype=np.float32)

    def train(self, model: Vector, round_number: int) -> TrainResult:
        self.layout.require_vector(model)
        self.momentum = np.float32(0.5) * (self.momentum + model)
        return TrainResult(model=model - np.float32(0.1) * self.momentum, loss=float(np.sum(model**2)), samples=3 + round_number)

    def evaluate(self, model: Vector) -> Evaluation:
        return Evaluation(loss=float(np.sum(model**2)), accuracy=0.5, samples=3)

    def state(self) -> Mapping[str, NDArray[np.generic]]:
        return {"momentum": self.momentum.copy()}

    def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self.momentum = np.array(state["momentum"], dtype=np.float32)


SHARED = np.ones(3, dtype=np.float32)
OBJECTS = np.array([None])


def _trained(change: Callable[[Toy, Vector, TrainResult], TrainResult]) -> Callable[[Toy, Vector, int], TrainResult]:
    def train(self: Toy, model: Vector, round_number: int) -> TrainResult:
        return change(self, model, Toy.train(self, model, round_number))

    return train


def _in_place(toy: Toy, model: Vector, result: TrainResult) -> TrainResult:
    model -= np.float32(0.1)
    return result


def _into_one_buffer(toy: Toy, model: Vector, result: TrainResult) -> TrainResult:
    SHARED[:] = result.model
    return replace(result, model=SHARED)


def _evaluate_and_forget(self: Toy, model: Vector) -> Evaluation:
    self.momentum[:] = 0
    return Toy.evaluate(self, model)


def _accept_anything(self: Toy, model: Vector, round_number: int) -> TrainResult:
    return TrainResult(model=model * np.float32(0.5), loss=1.0, samples=1)


def _momentum_in_place(toy: Toy, model: Vector, _round: int) -> TrainResult:
    toy.layout.require_vector(model)
    toy.momentum *= np.float32(0.5)
    toy.momentum += model
    return TrainResult(model=model - toy.momentum, loss=1.0, samples=1)


def _a_new_start(_toy: Toy) -> Vector:
    return np.random.default_rng().random(3, dtype=np.float32)


def _crash(*_: object) -> TrainResult:
    raise ZeroDivisionError


def _nothing(*_: object) -> None:
    return None


BROKEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "another start each time": ("initial model", "second call", {"initial": _a_new_start}),
    "hands out its own start": ("initial model", "copy", {"initial": lambda _: SHARED}),
    "double precision": ("initial model", "float32", {"initial": lambda _: np.ones(3)}),
    "too short": ("initial model", "shape", {"initial": lambda _: np.ones(2, dtype=np.float32)}),
    "works in place": ("training", "changed the vector", {"train": _trained(_in_place)}),
    "trains nothing": ("training", "as it was", {"train": _trained(lambda _, m, r: replace(r, model=m.copy()))}),
    "returns its input": ("training", "returned the vector", {"train": _trained(lambda _, m, r: replace(r, model=m))}),
    "NaN loss": ("training", "nan", {"train": _trained(lambda _, _m, r: replace(r, loss=float("nan")))}),
    "one result buffer": ("training", "overwrote", {"train": _trained(_into_one_buffer)}),
    "forgets its momentum": ("repeatable", "differs", {"state": lambda _: {}, "load_state": _nothing}),
    "state is a view": (
        "state",
        "handed out",
        {"train": _momentum_in_place, "state": lambda toy: {"momentum": toy.momentum}},
    ),
    "state of objects": ("state", "Python objects", {"state": lambda toy: {"momentum": toy.momentum, "x": OBJECTS}}),
    "load_state does nothing": ("state", "another state", {"load_state": _nothing}),
    "evaluation trains": ("evaluation", "changed the state", {"evaluate": _evaluate_and_forget}),
    "accuracy in percent": ("evaluation", "fraction", {"evaluate": lambda *_: Evaluation(1.0, 97.0, 3)}),
    "states what it does not do": ("repeatable", "fresh noise", {"privacy": lambda *_: Stated(1.0, 1e-6)}),
    "states in its own words": ("privacy", "return Stated", {"privacy": lambda *_: (1.0, 1e-6)}),
    "takes any vector": ("refusals", "accepted", {"train": _accept_anything}),
    "raises": ("training", "ZeroDivisionError", {"train": _crash}),
}


def test_the_toy_keeps_every_promise() -> None:
    assert failures(check_trainer(Toy())) == []


class NoisyToy(Toy):
    """Private by its own word: it adds noise that no state remembers."""

    def privacy(self, _allowance: Allowance | None) -> Stated:
        return Stated(0.5, 1e-6)

    def train(self, model: Vector, round_number: int) -> TrainResult:
        result = super().train(model, round_number)
        noise = np.random.default_rng().normal(size=3).astype(np.float32)
        return replace(result, model=result.model + noise)


def test_a_trainer_that_states_its_own_privacy_is_not_asked_to_repeat_itself() -> None:
    findings = check_trainer(NoisyToy())
    assert failures(findings) == []
    assert {finding.check: finding.detail for finding in findings}["privacy"].startswith("epsilon 0.5 and delta 1e-06")
    assert failures(check_trainer(type("Constant", (Toy,), {"privacy": lambda *_: Stated(0.0)})())) == []


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_promise_is_found_and_named(fault: str) -> None:
    check, word, members = BROKEN[fault]
    SHARED[:] = 1
    found = {finding.check: finding.detail for finding in failures(check_trainer(type("Broken", (Toy,), members)()))}
    assert check in found
    assert word in found[check]


def test_checking_leaves_the_state_as_it_was() -> None:
    toy = Toy()
    toy.momentum[:] = 7
    check_trainer(toy)
    assert toy.momentum.tolist() == [7, 7, 7]


def test_another_model_than_the_runs_is_a_red_line() -> None:
    (red,) = failures(check_trainer(Toy(), ModelLayout.of([("weight", (4,))])))
    assert red.check == "model of the run"
    assert "weight [3] here and weight [4] in the run" in red.detail
