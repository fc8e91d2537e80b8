"""The m simulated silos as one object: what they would send after local training, and how good the model is.

`StackedSilos` trains all of them in one graph per step (torch.func.vmap over stacked parameters); `LoopedSilos` keeps one
TorchTrainer each, as the service does, and serves models with batch-norm statistics of their own. Both draw the same
batches from the same seeds as the service's trainers. `PrivateSilos` train by DP-SGD, where a cell has a record epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedrep.errors import SettingsError
from fedrep.sparsify import Coordinates
from fedrep_lab.cell import Cell
from fedrep_lab.models import model_of
from fedrep_lab.private_silos import PrivateSilos
from fedrep_lab.shards import Matrix, Shards, Vector, flat_loss, load_dataset
from fedrep_trainers.datasets import ImageDataset
from fedrep_trainers.schedule import learning_rate
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.trainer import Evaluation


class Silos(Protocol):
    parameters: int
    samples: NDArray[np.int64]

    def initial(self) -> Vector: ...

    def updates(self, model: Vector, round_number: int, coordinates: Coordinates | None = None) -> Matrix:
        """w - w_k of every silo after its local steps, one row each; rows may be infinite or NaN.

        `coordinates` are those that will be sent, where that is known before training: private silos train no others.
        """
        ...

    def evaluate(self, model: Vector) -> Evaluation: ...


def build_silos(cell: Cell, data_dir: Path | None, device: str = "cpu", engine: str = "auto") -> Silos:
    dataset = load_dataset(cell.dataset, data_dir)
    if cell.method == "central":  # one silo with all the data, and as many samples per step as all silos together
        cell = replace(cell, m=1, f=0, s=1, batch_size=cell.batch_size * cell.m)
    module = model_of(cell, dataset.input_shape, len(dataset.classes))
    if engine == "auto":
        engine = "private" if cell.record_epsilon else "loop" if any(True for _ in module.buffers()) else "stack"
    kinds: dict[str, Callable[..., Silos]] = {"loop": LoopedSilos, "stack": StackedSilos, "private": PrivateSilos}
    return kinds[engine](cell, dataset, module, device)


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
        self._gradients = vmap(grad_and_value(flat_loss(module)))

    def initial(self) -> Vector:
        return self._shards.judge.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        return self._shards.judge.evaluate(model)

    def updates(self, model: Vector, round_number: int, coordinates: Coordinates | None = None) -> Matrix:  # noqa: ARG002
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

    def updates(self, model: Vector, round_number: int, coordinates: Coordinates | None = None) -> Matrix:  # noqa: ARG002
        return np.stack([model - trainer.train(model, round_number).model for trainer in self._trainers])
