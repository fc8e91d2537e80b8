"""What TorchTrainer makes of a model: its vector, batch norm, precision and devices."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedrep.errors import SettingsError
from fedrep_trainers import torchvision_import
from fedrep_trainers.batches import Batch
from fedrep_trainers.build import image_trainer
from fedrep_trainers.datasets import ImageDataset, load_digits
from fedrep_trainers.devices import choose_device
from fedrep_trainers.images import Images
from fedrep_trainers.models import build_model
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.trainer import ModelExporter
from tests.trainers.small_trainers import Slope, slope_trainer, small_trainer


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
