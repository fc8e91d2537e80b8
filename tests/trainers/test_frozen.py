"""Frozen weights: never in the vector, always in the layout's digest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedrep_runtime.model_files import read_model
from fedrep_trainers.layout import ModelLayout, write_model
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer


def frozen_trainer(base: float) -> TorchTrainer:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    first = module[0]
    assert isinstance(first, nn.Linear)
    first.weight.data.fill_(base)
    first.requires_grad_(False)
    data = DataLoader(TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)))
    settings = TrainerSettings(threads=1)
    return TorchTrainer(module, train=data, evaluation=data, loss=nn.CrossEntropyLoss(), settings=settings)


def test_another_base_is_another_model_though_its_parameters_have_the_same_names_and_shapes() -> None:
    one, same, other = frozen_trainer(0.5), frozen_trainer(0.5), frozen_trainer(0.25)
    assert one.layout.size == 8
    assert one.layout == same.layout
    assert one.layout.digest != other.layout.digest
    assert one.layout.difference(other.layout) == (
        "the frozen weights here are not the run's: load the same base model on every silo"
    )


def test_a_model_that_is_trained_whole_has_the_digest_it_always_had() -> None:
    layout = ModelLayout.of([("weight", (2,))])
    assert layout.described == '[["weight",[2]]]'
    assert layout.digest == "69ef2f77aa5f541fd971046fe707d71bc3c78937b59b662c4b92cbe56df9ae1a"


def test_a_model_file_names_the_base_it_belongs_to(tmp_path: Path) -> None:
    trainer = frozen_trainer(0.5)
    write_model(tmp_path / "init.safetensors", trainer.layout, trainer.initial())
    layout, vector = read_model(tmp_path / "init.safetensors")
    assert layout == trainer.layout
    assert np.array_equal(vector, trainer.initial())
