"""TorchTrainer: the paper's equation against hand-computed numbers, settings, restarts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from fedrep.errors import InvalidInputError, NonFiniteError, SettingsError
from fedrep_trainers.schedule import learning_rate
from fedrep_trainers.settings import TrainerSettings
from tests.trainers.small_trainers import Slope, slope_trainer, small_trainer, vector


def test_local_momentum_sgd_is_the_papers_and_keeps_its_momentum_over_rounds() -> None:
    trainer = slope_trainer(momentum=0.5, learning_rate=0.1, interval=2)
    # m: 0.5*0 + 0.5*1 = 0.5; 0.5*0.5 + 0.5*2 = 1.25.  w: 1 - 0.05 = 0.95; 0.95 - 0.125 = 0.825
    assert trainer.train(vector(1.0), 0).model == pytest.approx([0.825])
    # From the run's model 2, with the old m: 0.5*1.25 + 0.5*3 = 2.125; 0.5*2.125 + 0.5*4 = 3.0625
    assert trainer.train(vector(2.0), 1).model == pytest.approx([2.0 - 0.2125 - 0.30625])
    assert trainer.state()["optimizer/momentum"] == pytest.approx([3.0625])


def test_local_sgd_is_momentum_without_memory() -> None:
    trainer = slope_trainer(optimizer="sgd", learning_rate=0.1, interval=3)
    result = trainer.train(vector(1.0), 0)
    assert result.model == pytest.approx([1.0 - 0.1 * (1 + 2 + 3)])
    assert result.samples == 3
    # Losses w*x before each step: 1*1, 0.9*2, 0.7*3
    assert result.loss == pytest.approx((1.0 + 1.8 + 2.1) / 3)
    assert "optimizer/momentum" not in trainer.state()


def test_clipping_comes_before_weight_decay() -> None:
    trainer = slope_trainer(optimizer="sgd", learning_rate=0.1, interval=2, clip_norm=1.5, weight_decay=0.2)
    # Step 1: gradient 1 is within 1.5; 1 + 0.2*1 = 1.2; w = 0.88. Step 2: 2 clipped to 1.5; + 0.2*0.88; w = 0.7124
    assert trainer.train(vector(1.0), 0).model == pytest.approx([0.7124], abs=1e-6)


def test_a_torch_optimizer_takes_our_rate_and_keeps_its_state_over_rounds() -> None:
    trainer = slope_trainer(optimizer="torch.optim.SGD", optimizer_options={"momentum": 0.5}, learning_rate=0.1)
    # torch's momentum: buffer = 1, then 0.5*1 + 2 = 2.5
    assert trainer.train(vector(1.0), 0).model == pytest.approx([0.9])
    assert trainer.train(vector(1.0), 1).model == pytest.approx([0.75])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {1: 0.5, 1000: 0.5}),
        ({"schedule": "step", "milestones": [3, 5]}, {1: 0.5, 2: 0.5, 3: 0.05, 4: 0.05, 5: 0.005, 9: 0.005}),
        ({"schedule": "step", "milestones": [2], "gamma": 0.5}, {1: 0.5, 2: 0.25}),
        ({"schedule": "cosine", "total_rounds": 4}, {1: 0.5, 2: 0.25 + 0.25 / math.sqrt(2), 3: 0.25, 5: 0.0, 8: 0.0}),
        ({"warmup_rounds": 4}, {1: 0.125, 2: 0.25, 4: 0.5, 5: 0.5}),
    ],
)
def test_the_learning_rate_follows_the_round(settings: dict[str, Any], expected: dict[int, float]) -> None:
    made = TrainerSettings(learning_rate=0.5, **settings)
    assert {number: learning_rate(made, number) for number in expected} == pytest.approx(expected)


def test_training_uses_the_rate_of_the_round_it_is_told() -> None:
    trainer = slope_trainer(optimizer="sgd", learning_rate=1.0, schedule="step", milestones=[7])
    assert trainer.train(vector(0.0), 6).model == pytest.approx([-1.0])
    assert trainer.train(vector(0.0), 7).model == pytest.approx([-0.2])


@pytest.mark.parametrize(
    "settings",
    [
        {"shard_index": 2},
        {"schedule": "step"},
        {"schedule": "cosine"},
        {"milestones": [5, 3]},
        {"user_code": "no colon"},
        {"momentum": 1.0},
        {"optimizer_options": {"nesterov": True}},
        {"intervall": 3},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        TrainerSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"optimizer": "adam"}, "unknown"),
        ({"optimizer": "torch.optim.Optimizer"}, "unknown"),
        ({"optimizer": "torch.optim.lr_scheduler"}, "unknown"),
        ({"optimizer": "torch.optim.LBFGS"}, "many times"),
        ({"optimizer": "torch.optim.Adam", "optimizer_options": {"beta": 1}}, "beta"),
        ({"device": "abacus"}, "abacus"),
        ({"device": "cuda:99"}, "CUDA"),
        ({"model": "resnet7"}, "resnet20_gn"),
        ({"model": "torchvision:resnet7"}, "resnet7"),
        ({"model": "mlp", "model_options": {"depth": 3}}, "depth"),
        ({"dataset": "cifar10"}, "data_dir"),
    ],
)
def test_a_trainer_that_cannot_be_built_says_why(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        small_trainer(**settings)


@pytest.mark.parametrize("optimizer", ["momentum_sgd", "torch.optim.Adam"])
def test_a_restarted_silo_goes_on_to_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    settings = {"optimizer": optimizer, "learning_rate": 0.01, "model": "resnet20", "model_options": {"width": 8}}
    whole = small_trainer(**settings)
    model = whole.initial()
    for number in range(2):
        model = whole.train(model, number).model
    save_file(dict(whole.state()), tmp_path / "state.safetensors")
    restarted = small_trainer(**settings)
    restarted.load_state(load_file(tmp_path / "state.safetensors"))
    assert np.array_equal(restarted.train(model, 2).model, whole.train(model, 2).model)


def test_a_loss_that_is_not_finite_is_an_error_and_changes_no_state() -> None:
    trainer = slope_trainer(nn.Sequential(Slope(), Explosion()), interval=5, momentum=0.5)
    before = trainer.state()
    with pytest.raises(NonFiniteError, match=r"local step 3 of round 9 .*clip_norm"):
        trainer.train(vector(1.0), 9)
    assert trainer.state() == before


class Explosion(nn.Module):
    """Infinite from the third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs * (math.inf if self.calls >= 3 else 1.0)


def test_a_target_that_is_no_class_gives_no_accuracy() -> None:
    assert slope_trainer().evaluate(vector(2.0)).accuracy is None


def test_a_state_of_another_model_or_optimizer_is_refused() -> None:
    trainer = small_trainer(model="logistic")
    state = trainer.state()
    broken: list[tuple[dict[str, Any], str]] = [
        ({}, "step"),
        ({"step": np.array(1)}, "momentum"),
        ({**state, "optimizer/momentum": np.zeros(3, np.float32)}, "shape"),
        ({**state, "buffers/bn.running_mean": np.zeros(3)}, "running_mean"),
    ]
    for other, text in broken:
        with pytest.raises(InvalidInputError, match=text):
            trainer.load_state(other)
    with pytest.raises(InvalidInputError, match="another optimizer"):
        small_trainer(model="logistic", optimizer="torch.optim.Adam").load_state(state)


def test_silos_of_one_machine_see_other_samples() -> None:
    first, second = (small_trainer(shard_count=2, shard_index=index) for index in (0, 1))
    start = first.initial()
    assert not np.array_equal(first.train(start, 0).model, second.train(start, 0).model)


def test_digits_are_learned_in_a_few_rounds() -> None:
    trainer = small_trainer(interval=10, batch_size=25, evaluation_samples=None)
    assert trainer.layout.size == 64 * 128 + 128 + 128 * 10 + 10
    model = trainer.initial()
    for number in range(20):
        model = trainer.train(model, number).model
    result = trainer.evaluate(model)
    assert result.accuracy is not None
    assert result.accuracy > 0.9


def test_shards_of_the_test_split_are_its_parts_and_the_evaluator_sees_them_all() -> None:
    settings = {"evaluation_samples": None, "shard_count": 4}
    whole = small_trainer(**settings)
    model = whole.initial()
    for number in range(3):
        model = whole.train(model, number).model
    parts = [small_trainer(**settings, shard_index=index, evaluation_shard=True).evaluate(model) for index in range(4)]
    everything = whole.evaluate(model)
    assert sum(part.samples for part in parts) == everything.samples
    assert sum(part.samples * part.loss for part in parts) / everything.samples == pytest.approx(everything.loss, rel=1e-4)
    assert len({part.loss for part in parts}) == 4, "each silo has a view of its own"
