"""Trainers by DP-SGD whose gradients can be told in advance, and the randomness that tests put in place of the system's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedrep_trainers import secure_random
from fedrep_trainers.settings import PrivacySettings, TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer

PRIVACY = PrivacySettings(epsilon=8.0, delta=1e-5, noise=1.0)


class Dot(nn.Module):
    """Weights w with the loss w . x: a record's gradient is the record."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight


def dot_trainer(records: Any, privacy: PrivacySettings = PRIVACY, batch_size: int = 4, **settings: Any) -> TorchTrainer:
    """Plain SGD at rate 1 from zero: the model after one step is minus the noisy gradient."""
    inputs = torch.as_tensor(records, dtype=torch.float32)
    data = TensorDataset(inputs, torch.zeros(len(inputs)))
    return TorchTrainer(
        Dot(inputs.shape[1]),
        train=DataLoader(data, batch_size=batch_size, shuffle=True),
        evaluation=DataLoader(data, batch_size=batch_size),
        loss=lambda outputs, _: outputs.mean(),
        settings=TrainerSettings(**{"optimizer": "sgd", "learning_rate": 1.0, "privacy": privacy, **settings}),
    )


def gradient(trainer: TorchTrainer) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Of one step, with its noise, as it comes out of a training."""
    trainer.privacy(None)
    start = trainer.initial()
    found: np.ndarray[Any, np.dtype[np.float32]] = start - trainer.train(start, 0).model
    return found


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_random, "normals", lambda count: torch.zeros(count, dtype=torch.float64))


def drawing(monkeypatch: pytest.MonkeyPatch, *positions: int) -> None:
    monkeypatch.setattr(secure_random, "chosen", lambda _records, _rate: np.array(positions, dtype=np.int64))
