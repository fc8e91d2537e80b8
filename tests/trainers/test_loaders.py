"""TorchTrainer over a user's own DataLoader: complete epochs, restarts in the middle, no shared randomness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedrep.errors import SettingsError
from fedrep_trainers.batches import LoaderBatches
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer


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
