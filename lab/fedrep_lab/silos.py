"""The m simulated silos as one object: what they would send after local training, and how good the model is.

`StackedSilos` trains all of them in one graph per step (torch.func.vmap over stacked parameters); `LoopedSilos` keeps one
TorchTrainer each, as the service does, and serves models with batch-norm statistics of their own. Both draw the same
batches from the same seeds as the service's trainers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedrep.errors import SettingsError
from fedrep_lab.cell import Cell
from fedrep_lab.models import model_of
from fedrep_trainers.batches import ImageBatches, OrderedImages, derived_seed
from fedrep_trainers.build import shard_indices
from fedrep_trainers.datasets import DATASETS, ImageDataset
from fedrep_trainers.devices import choose_device
from fedrep_trainers.images import Images, Preparation
from fedrep_trainers.schedule import learning_rate
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.trainer import Evaluation

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]


class Silos(Protocol):
    parameters: int
    samples: NDArray[np.int64]

    def initial(self) -> Vector: ...

    def updates(self, model: Vector, round_number: int) -> Matrix:
        """w - w_k of every silo after its local steps, one row each; rows may be infinite or NaN."""
        ...

    def evaluate(self, model: Vector) -> Evaluation: ...


@lru_cache(maxsize=2)
def load_dataset(name: str, data_dir: Path | None) -> ImageDataset:
    if name not in DATASETS:
        raise SettingsError(f"There is no data set {name!r}; choose from {', '.join(DATASETS)}.")
    return DATASETS[name](data_dir, None)


def rounds_of(cell: Cell, dataset: ImageDataset) -> int:
    if cell.epochs <= 0:
        return cell.rounds
    return max(1, round(cell.epochs * len(dataset.train) / (cell.m * cell.batch_size * cell.interval)))


def build_silos(cell: Cell, data_dir: Path | None, device: str = "cpu", engine: str = "auto") -> Silos:
    dataset = load_dataset(cell.dataset, data_dir)
    if cell.method == "central":  # one silo with all the data, and as many samples per step as all silos together
        cell = replace(cell, m=1, f=0, s=1, batch_size=cell.batch_size * cell.m)
    module = model_of(cell, dataset.input_shape, len(dataset.classes))
    if engine == "auto":
        engine = "loop" if any(True for _ in module.buffers()) else "stack"
    kinds: dict[str, Callable[..., Silos]] = {"loop": LoopedSilos, "stack": StackedSilos}
    return kinds[engine](cell, dataset, module, device)


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
        plain = Preparation(dataset.full_scale, dataset.mean, dataset.std, self.device)
        varied = replace(plain, augment=self.settings[0].augments)
        shards = [shard_indices(settings, dataset) for settings in self.settings]
        self.samples = np.array([shard.size for shard in shards], dtype=np.int64)
        # Silos of one graph need batches of one size: that of the smallest shard, if it cannot fill a batch.
        size = min(cell.batch_size, int(self.samples.min()))
        self.sources = [
            ImageBatches(silo_images(cell, dataset, silo), shard, varied, size, derived_seed(cell.seed, silo, 3))
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


class StackedSilos:
    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        if any(True for _ in module.buffers()):
            raise SettingsError(f"The model {cell.model} keeps statistics of its own, so its silos cannot share one graph.")
        self._cell = cell
        self._shards = Shards(cell, dataset, module, device)
        self.parameters = self._shards.judge.layout.size
        self.samples = self._shards.samples
        self._momentum = torch.zeros(cell.m, self.parameters, device=self._shards.device) if cell.beta else None
        self._step = 0
        self._gradients = vmap(grad_and_value(_loss_of(module)))

    def initial(self) -> Vector:
        return self._shards.judge.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        return self._shards.judge.evaluate(model)

    def updates(self, model: Vector, round_number: int) -> Matrix:
        start = torch.from_numpy(np.array(model)).to(self._shards.device)
        stacked = start.expand(self._cell.m, -1).clone()
        rate = learning_rate(self._shards.settings[0], round_number)
        for _ in range(self._cell.interval):
            batches = [source.batch(self._step) for source in self._shards.sources]
            inputs = torch.stack([batch[0] for batch in batches])
            targets = torch.stack([batch[1] for batch in batches])
            gradient, _ = self._gradients(stacked, inputs, targets)
            stacked.add_(self._direction(gradient), alpha=-rate)
            self._step += 1
        result: Matrix = torch.sub(start, stacked, out=stacked).cpu().numpy()
        return result

    def _direction(self, gradient: Tensor) -> Tensor:
        """Equation (local_mSGD): m <- beta m + (1 - beta) grad."""
        if self._momentum is None:
            return gradient
        return self._momentum.mul_(self._cell.beta).add_(gradient, alpha=1.0 - self._cell.beta)


class LoopedSilos:
    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        self._shards = Shards(cell, dataset, module, device)
        self.parameters = self._shards.judge.layout.size
        self.samples = self._shards.samples
        self._trainers = [
            TorchTrainer(
                model_of(cell, dataset.input_shape, len(dataset.classes)),
                train=self._shards.sources[silo],
                evaluation=(),
                loss=nn.CrossEntropyLoss(),
                settings=settings,
            )
            for silo, settings in enumerate(self._shards.settings)
        ]

    def initial(self) -> Vector:
        return self._shards.judge.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        return self._shards.judge.evaluate(model)

    def updates(self, model: Vector, round_number: int) -> Matrix:
        return np.stack([model - trainer.train(model, round_number).model for trainer in self._trainers])


def _loss_of(module: nn.Module) -> Callable[..., Any]:
    """The loss as a function of one flat vector, so that its gradient is flat too."""
    shapes = [(name, parameter.shape, parameter.numel()) for name, parameter in module.named_parameters()]

    def loss(flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        pieces = torch.split(flat, [count for _, _, count in shapes])
        named = {name: piece.view(shape) for piece, (name, shape, _) in zip(pieces, shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(module, named, (inputs,)), targets)

    return loss
