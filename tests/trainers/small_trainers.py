"""Trainers small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrep_trainers.batches import Batch
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer

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
