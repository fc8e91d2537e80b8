"""TorchTrainer: the paper's equation against hand-computed numbers, restarts, batch norm, devices."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedrep.errors import InvalidInputError, NonFiniteError, SettingsError
from services.client.trainer import ModelExporter
from services.client.trainers import torchvision_import
from services.client.trainers.batches import Batch, LoaderBatches
from services.client.trainers.build import build_trainer, image_trainer
from services.client.trainers.datasets import ImageDataset, load_digits
from services.client.trainers.devices import choose_device
from services.client.trainers.images import Images
from services.client.trainers.models import build_model
from services.client.trainers.schedule import learning_rate
from services.client.trainers.settings import TrainerSettings
from services.client.trainers.torch_trainer import TorchTrainer

SMALL = {"interval": 2, "batch_size": 8, "evaluation_samples": 40, "calibration_samples": 40, "threads": 1}


class Slope(nn.Module):
    """One weight w with the loss w * x: the gradient of a step is the x of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


class Counting:
    """Step j (from 0) sees the single input j + 1."""

    def batch(self, number: int) -> Batch:
        return torch.tensor([number + 1.0]), torch.zeros(1)


def slope_trainer(module: nn.Module | None = None, **settings: Any) -> TorchTrainer:
    return TorchTrainer(
        module or Slope(),
        train=Counting(),
        evaluation=[(torch.ones(1), torch.zeros(1))],
        loss=lambda outputs, _: outputs.mean(),
        settings=TrainerSettings(**settings),
    )


def vector(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def small_trainer(**settings: Any) -> TorchTrainer:
    trainer = build_trainer(TrainerSettings(**{**SMALL, **settings}))
    assert isinstance(trainer, TorchTrainer)
    return trainer


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
        ({}, {0: 0.5, 1000: 0.5}),
        ({"schedule": "step", "milestones": [3, 5]}, {0: 0.5, 2: 0.5, 3: 0.05, 4: 0.05, 5: 0.005, 9: 0.005}),
        ({"schedule": "step", "milestones": [2], "gamma": 0.5}, {1: 0.5, 2: 0.25}),
        ({"schedule": "cosine", "total_rounds": 4}, {0: 0.5, 1: 0.25 + 0.25 / math.sqrt(2), 2: 0.25, 4: 0.0, 7: 0.0}),
        ({"warmup_rounds": 4}, {0: 0.125, 1: 0.25, 3: 0.5, 4: 0.5}),
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


def loader_trainer(**settings: Any) -> TorchTrainer:
    data = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10) % 2)
    torch.manual_seed(3)
    return TorchTrainer(
        nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        train=DataLoader(data, batch_size=3, shuffle=True),
        evaluation=DataLoader(data, batch_size=5),
        loss=nn.CrossEntropyLoss(),
        settings=TrainerSettings(learning_rate=0.01, interval=3, **settings),
    )


def test_a_shuffling_loader_is_entered_again_in_mid_epoch() -> None:
    whole = loader_trainer()
    model = whole.initial()
    for number in range(5):
        before, state = model, whole.state()
        model = whole.train(before, number).model
        restarted = loader_trainer()
        restarted.load_state(state)
        torch.rand(number + 1)  # the process's own generator must not matter
        assert np.array_equal(restarted.train(before, number).model, model)


def test_training_leaves_the_processs_own_generator_alone() -> None:
    trainer = loader_trainer()
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    trainer.train(trainer.initial(), 0)
    assert torch.equal(torch.rand(3), expected)


def test_silos_with_the_same_code_shuffle_differently() -> None:
    first, second = (loader_trainer(shard_count=2, shard_index=index) for index in (0, 1))
    start = first.initial()
    assert np.array_equal(start, second.initial())
    assert not np.array_equal(first.train(start, 0).model, second.train(start, 0).model)


def test_each_epoch_of_a_loader_is_complete_and_shuffled_anew() -> None:
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(12), torch.arange(12)), batch_size=4, shuffle=True)
    source = LoaderBatches(loader, seed=1)
    epochs = [torch.cat([source.batch(3 * epoch + step)[0] for step in range(3)]).tolist() for epoch in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_loader_without_a_batch_is_refused() -> None:
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.ones(2), torch.ones(2)), batch_size=4, drop_last=True)
    with pytest.raises(SettingsError, match="no batch"):
        LoaderBatches(loader, seed=0)


def test_a_loader_without_a_length_is_refused() -> None:
    class Endless(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield torch.ones(1)

    with pytest.raises(SettingsError, match="no length"):
        LoaderBatches(DataLoader(Endless()), seed=0)


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


def test_frozen_parameters_stay_out_of_the_vector_and_as_they_are() -> None:
    model = build_model("mlp", (1, 8, 8), 10, 0, {})
    first = next(model.parameters())
    first.requires_grad_(False)
    kept = first.clone()
    digits = load_digits(None, None)
    images = torch.tensor(digits.train.pixels[:8], dtype=torch.float32), torch.tensor(digits.train.labels[:8])
    data = DataLoader(TensorDataset(*images), batch_size=8)
    trainer = TorchTrainer(model, train=data, evaluation=data, loss=nn.CrossEntropyLoss(), settings=TrainerSettings(interval=2))
    assert [p.name for p in trainer.layout.parameters] == ["1.bias", "3.weight", "3.bias"]
    trainer.train(trainer.initial(), 0)
    assert torch.equal(first, kept)


def test_a_model_in_another_precision_is_refused() -> None:
    with pytest.raises(SettingsError, match="float64"):
        slope_trainer(Slope().double())


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


def test_resnet20_has_the_papers_size_with_either_norm() -> None:
    for name in ("resnet20", "resnet20_gn"):
        model = build_model(name, (3, 32, 32), 10, 0, {})
        assert sum(p.numel() for p in model.parameters()) == 272_474
    assert not list(model.buffers())


def test_the_initial_model_depends_on_the_seed_alone() -> None:
    start = small_trainer(shard_count=4, shard_index=0).initial()
    torch.rand(5)
    assert np.array_equal(start, small_trainer(shard_count=4, shard_index=3).initial())
    assert not np.array_equal(start, small_trainer(seed=1).initial())


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


def test_bfloat16_changes_the_arithmetic_but_not_the_vector() -> None:
    exact, rough = small_trainer(), small_trainer(autocast="bfloat16")
    start = exact.initial()
    one, other = exact.train(start, 0).model, rough.train(start, 0).model
    assert other.dtype == np.float32
    assert not np.array_equal(one, other)
    assert np.allclose(one, other, atol=1e-2)


class Calibration:
    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __iter__(self) -> Iterator[Batch]:
        for part in torch.split(self.inputs, 4):
            yield part, torch.zeros(len(part), dtype=torch.int64)


def norm_trainer(calibration: Calibration | None) -> TorchTrainer:
    torch.manual_seed(0)
    inputs = torch.randn(12, 3) * 5 + 2
    data = DataLoader(TensorDataset(inputs, torch.arange(12) % 3), batch_size=4)
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 3))
    return TorchTrainer(
        module,
        train=data,
        evaluation=data,
        loss=nn.CrossEntropyLoss(),
        settings=TrainerSettings(interval=3),
        calibration=calibration,
    )


def test_batch_norm_statistics_stay_local_and_are_saved() -> None:
    trainer = norm_trainer(None)
    assert [p.name for p in trainer.layout.parameters] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    trainer.train(trainer.initial(), 0)
    assert np.abs(trainer.state()["buffers/1.running_mean"]).max() > 0.1


def test_the_evaluator_re_estimates_batch_norm_and_exports_it() -> None:
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)) + 7
    trainer = norm_trainer(Calibration(inputs))
    assert isinstance(trainer, ModelExporter)
    trained = trainer.train(trainer.initial(), 0).model
    before = {name: array.copy() for name, array in trainer.state().items()}
    exported = trainer.export(trained)
    variances = [half.var(dim=0) for half in torch.split(inputs, 4)]
    assert exported["1.running_mean"] == pytest.approx(inputs.mean(dim=0).numpy(), abs=1e-4)
    assert exported["1.running_var"] == pytest.approx(torch.stack(variances).mean(dim=0).numpy(), abs=1e-4)
    assert np.array_equal(exported["2.bias"], trained[-3:])
    trainer.evaluate(trained)
    after = trainer.state()
    assert all(np.array_equal(after[name], array) for name, array in before.items())


def test_evaluation_uses_the_calibration_data() -> None:
    near = norm_trainer(None)
    far = norm_trainer(Calibration(torch.randn(8, 3, generator=torch.Generator().manual_seed(1)) + 100))
    start = near.initial()
    assert far.evaluate(start).loss != pytest.approx(near.evaluate(start).loss, rel=1e-3)


def test_export_refuses_batch_norm_without_calibration_data() -> None:
    trainer = norm_trainer(None)
    with pytest.raises(SettingsError, match="no calibration data"):
        trainer.export(trainer.initial())
    plain = small_trainer(model="logistic", calibration_samples=0)
    assert set(plain.export(plain.initial())) == {"1.weight", "1.bias"}


def colour_images(count: int) -> Images:
    rng = np.random.default_rng(0)
    return Images(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, count))


META = ImageDataset(colour_images(16), colour_images(4), tuple("0123456789"), 255.0, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize("optimizer", ["momentum_sgd", "torch.optim.AdamW"])
def test_a_full_training_step_runs_on_the_meta_device(optimizer: str) -> None:
    settings = TrainerSettings(
        model="resnet20", device="meta", augment=True, batch_size=4, interval=2, clip_norm=1.0, weight_decay=0.1,
        optimizer=optimizer,
    )  # fmt: skip
    trainer = image_trainer(settings, META)
    assert trainer.device.type == "meta"
    losses, samples = trainer.local_steps(0)
    assert losses.device.type == "meta"
    assert losses.shape == (2,)
    assert samples == 8
    with pytest.raises(SettingsError, match="meta"):
        trainer.initial()


def test_the_meta_device_refuses_a_tensor_left_behind() -> None:
    class Forgetful(Slope):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + torch.ones(1, 1)

    with pytest.raises(RuntimeError, match="meta"):
        slope_trainer(Forgetful(), device="meta").local_steps(0)


def test_auto_takes_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"cuda": True, "mps": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present["cuda"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: present["mps"])
    assert choose_device("auto") == torch.device("cuda", 1)
    present["cuda"] = False
    assert choose_device("auto") == torch.device("mps")
    present["mps"] = False
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(SettingsError, match="MPS"):
        choose_device("mps")


def test_a_torchvision_model_trains_also_on_gray_images() -> None:
    trainer = small_trainer(model="torchvision:shufflenet_v2_x0_5", evaluation_samples=4, batch_size=2, interval=1)
    result = trainer.train(trainer.initial(), 0)
    assert np.isfinite(result.loss)


def test_only_the_one_known_import_error_of_torchvision_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise RuntimeError(f"{name}: something else is wrong")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_import.import_torchvision()

    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(SettingsError, match="torchvision"):
        torchvision_import.import_torchvision()
