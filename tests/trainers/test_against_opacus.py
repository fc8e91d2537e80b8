"""The sum of clipped gradients, the same as Opacus makes it; on one batch, without noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedrep_trainers.models import build_model
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer
from tests.trainers.private_trainers import PRIVACY, drawing, gradient, without_noise

RECORDS = 21  # more than are taken at once, and no multiple of that


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.norm(self.words(tokens)).mean(dim=1))
        return scores


def _models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(RECORDS, 1, 12, 12, generator=generator)
    colours = torch.randn(RECORDS, 3, 16, 16, generator=generator)
    torch.manual_seed(5)
    return {
        "mlp": (build_model("mlp", (1, 12, 12), 3, 0, {}), images),
        "cnn": (build_model("cnn", (1, 12, 12), 3, 0, {}), images),
        "resnet20_gn": (build_model("resnet20_gn", (3, 16, 16), 3, 0, {"width": 8}), colours),
        "words": (Words(), torch.randint(0, 7, (RECORDS, 5), generator=generator)),
    }


@pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
@pytest.mark.parametrize("clip", [0.2, 1000.0], ids=["clipped", "whole"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20_gn", "words"])
def test_clipped_sums_are_those_of_opacus(name: str, clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = _models()[name]
    targets = torch.arange(RECORDS) % 3
    theirs = _with_opacus(_models()[name][0], inputs, targets, clip)
    without_noise(monkeypatch)
    drawing(monkeypatch, *range(RECORDS))
    trainer = TorchTrainer(
        module,
        train=DataLoader(TensorDataset(inputs, targets), batch_size=RECORDS),
        evaluation=[],
        loss=nn.CrossEntropyLoss(),
        settings=TrainerSettings(
            optimizer="sgd", learning_rate=1.0, privacy=PRIVACY.model_copy(update={"clip_norm": clip}), device="cpu"
        ),
    )
    # A model minus itself after a step: half of the digits of the weights are lost in the difference.
    assert gradient(trainer) == pytest.approx(theirs, rel=1e-3, abs=2e-6 * float(np.abs(theirs).max()) + 3e-7)


def _with_opacus(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, clip: float) -> np.ndarray[Any, Any]:
    wrapped = GradSampleModule(module)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=RECORDS
    )
    nn.functional.cross_entropy(wrapped(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.pre_step()
    return torch.cat([parameter.grad.reshape(-1) for parameter in wrapped.parameters() if parameter.grad is not None]).numpy()
