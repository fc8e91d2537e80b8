"""The data of the simulated silos: who holds which images, how batches are prepared, and the model that all start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedrep.errors import SettingsError
from fedrep_lab.cell import Cell
from fedrep_trainers.batches import Batch, ImageBatches, OrderedImages, derived_seed
from fedrep_trainers.build import shard_indices
from fedrep_trainers.datasets import DATASETS, ImageDataset
from fedrep_trainers.devices import choose_device
from fedrep_trainers.images import Images, Preparation
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]


_HELD_OUT = 10  # one training image in so many is for validation


@lru_cache(maxsize=2)
def load_dataset(name: str, data_dir: Path | None, judged_on: str = "test") -> ImageDataset:
    """For `validation` part of the training images stand in for the test images, and nobody trains on them."""
    if name not in DATASETS:
        raise SettingsError(f"There is no data set {name!r}; choose from {', '.join(DATASETS)}.")
    dataset = DATASETS[name](data_dir, None)
    if judged_on == "test":
        return dataset
    order = np.random.default_rng(0).permutation(len(dataset.train))  # the same for every seed
    cut = len(order) // _HELD_OUT
    held, left = (np.sort(places) for places in (order[:cut], order[cut:]))
    train, test = (Images(dataset.train.pixels[places], dataset.train.labels[places]) for places in (left, held))
    return replace(dataset, train=train, test=test)


def rounds_of(cell: Cell, dataset: ImageDataset) -> int:
    if cell.epochs <= 0:
        return cell.rounds
    return max(1, round(cell.epochs * len(dataset.train) / (cell.m * cell.batch_size * cell.interval)))


def trainer_settings(cell: Cell, dataset: ImageDataset, silo: int, device: str) -> TrainerSettings:
    rounds = rounds_of(cell, dataset)
    milestone = max(1, int(cell.decay_after * rounds)) if cell.decay_after < 1 else rounds + 1
    return TrainerSettings(
        dataset=cell.dataset,  # type: ignore[arg-type]  # pydantic checks the name
        split=cell.split,  # type: ignore[arg-type]
        dirichlet_alpha=cell.dirichlet_alpha,
        shard_index=silo,
        shard_count=cell.m,
        learning_rate=cell.rate,
        momentum=cell.beta,
        interval=cell.interval,
        batch_size=cell.batch_size,
        schedule="step",
        milestones=(milestone,),
        gamma=cell.decay,
        evaluation_samples=cell.evaluation_samples,
        device=device,
        seed=cell.seed,
    )


def silo_images(cell: Cell, dataset: ImageDataset, silo: int) -> Images:
    """The training images as this silo has them: with the label-flip attack, a Byzantine silo's classes are reversed."""
    if cell.attack == "labelflip" and silo >= cell.honest:
        return Images(dataset.train.pixels, len(dataset.classes) - 1 - dataset.train.labels)
    return dataset.train


class Shards:
    """Everybody's batches, and a trainer that never trains: it holds the initial model and evaluates."""

    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        self.settings = [trainer_settings(cell, dataset, silo, device) for silo in range(cell.m)]
        self.device = choose_device(device)
        self.plain = plain = Preparation(dataset.full_scale, dataset.mean, dataset.std, self.device)
        self._varied = replace(plain, augment=self.settings[0].augments)
        self._everybody = Images(np.asarray(dataset.train.pixels), dataset.train.labels)  # no memmap: it slows every look
        self._held = shards = [shard_indices(settings, dataset) for settings in self.settings]
        self._images = [silo_images(cell, dataset, silo) for silo in range(cell.m)]
        self.samples = np.array([shard.size for shard in shards], dtype=np.int64)
        # Silos of one graph need batches of one size: that of the smallest shard, if it cannot fill a batch.
        size = min(cell.batch_size, int(self.samples.min()))
        self.sources = [
            ImageBatches(self._images[silo], shard, self._varied, size, derived_seed(cell.seed, silo, 3))
            for silo, shard in enumerate(shards)
        ]
        rng = np.random.default_rng([cell.seed, 4])
        tested = rng.permutation(len(dataset.test))[: cell.evaluation_samples]
        calibrating = rng.permutation(len(dataset.train))[:1000]
        self.judge = TorchTrainer(
            module,
            train=self.sources[0],
            evaluation=OrderedImages(dataset.test, tested, plain, 500),
            calibration=OrderedImages(dataset.train, calibrating, plain, 500),
            loss=nn.CrossEntropyLoss(),
            settings=self.settings[0],
        )

    def batches(self, number: int) -> tuple[Tensor, Tensor]:
        """Everybody's batch of local step `number`: images (silos, batch, channels, height, width), and their labels."""
        if self._varied.augment:
            drawn = [source.batch(number) for source in self.sources]
            return torch.stack([batch[0] for batch in drawn]), torch.stack([batch[1] for batch in drawn])
        places = [source.places(number) for source in self.sources]
        shape = (len(places), places[0].size)
        pixels, _ = self.plain.batch(self._everybody, np.concatenate(places), None)
        labels = np.concatenate([images.labels[where] for images, where in zip(self._images, places, strict=True)])
        return pixels.view(*shape, *pixels.shape[1:]), torch.from_numpy(labels).to(self.device).view(shape)

    def images(self, silo: int, places: NDArray[np.int64]) -> Batch:
        """Some of a silo's images by their places in its shard, as they are."""
        return self.plain.batch(self._images[silo], self._held[silo][places], None)


def flat_loss(module: nn.Module) -> Callable[..., Any]:
    """The loss as a function of one flat vector, so that its gradient is flat too."""
    shapes = [(name, parameter.shape, parameter.numel()) for name, parameter in module.named_parameters()]

    def loss(flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        pieces = torch.split(flat, [count for _, _, count in shapes])
        named = {name: piece.view(shape) for piece, (name, shape, _) in zip(pieces, shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(module, named, (inputs,)), targets)

    return loss
