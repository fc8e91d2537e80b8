"""The m simulated silos as one object: what they would send after local training, and how good the model is.

`LayeredSilos` trains all of them in one pass over the layers, where a model is a plain row of layers; `StackedSilos` in one graph
(torch.func.vmap over stacked parameters), where it is not; `OneModuleSilos` one after the other with one module, where batch norm
mixes the images of a batch; `LoopedSilos` keeps one TorchTrainer each, as the service does, to compare with. All draw the same
batches from the same seeds as the service's trainers. `PrivateSilos` train by DP-SGD, where a cell has a record epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from fedrep_lab.layers import SiloGradients, layers_of
from fedrep_lab.models import model_of
from fedrep_lab.private_silos import PrivateSilos
from fedrep_lab.shards import Matrix, Shards, Vector, flat_loss, load_dataset
from fedrep_trainers.datasets import ImageDataset
from fedrep_trainers.schedule import learning_rate
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.trainer import Evaluation

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What they keep from round to round, beside their data."""
        ...

    def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> None: ...


def build_silos(cell: Cell, data_dir: Path | None, device: str = "cpu", engine: str = "auto") -> Silos:
    return build_on(cell, load_dataset(cell.dataset, data_dir, cell.judged_on), device, engine)


def build_on(cell: Cell, dataset: ImageDataset, device: str, engine: str = "auto") -> Silos:
    if cell.method == "central":  # one silo with all the data, and as many samples per step as all silos together
        cell = replace(cell, m=1, f=0, s=1, batch_size=cell.batch_size * cell.m)
    module = model_of(cell, dataset.input_shape, len(dataset.classes))
    if engine == "auto":
        engine = _engine_for(cell, module)
    kinds: dict[str, Callable[..., Silos]] = {
        "layers": LayeredSilos,
        "stack": StackedSilos,
        "one_module": OneModuleSilos,
        "loop": LoopedSilos,
        "private": PrivateSilos,
    }
    return kinds[engine](cell, dataset, module, device)


def _engine_for(cell: Cell, module: nn.Module) -> str:
    if cell.record_epsilon:
        return "private"
    if any(True for _ in module.buffers()):
        return "one_module"
    return "stack" if layers_of(module) is None else "layers"


class _StackedTraining:
    """Local momentum SGD of all silos on one matrix, a row each; how a row's gradient is found is left open."""

    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        self._cell = cell
        self._shards = Shards(cell, dataset, module, device)
        self.parameters = self._shards.judge.layout.size
        self.samples = self._shards.samples
        shape = (cell.m, self.parameters)
        self._momentum = torch.zeros(shape, device=self._shards.device) if cell.beta else None
        self._gradient = torch.zeros(shape, device=self._shards.device)
        self._step = 0

    def initial(self) -> Vector:
        return self._shards.judge.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        return self._shards.judge.evaluate(model)

    def updates(self, model: Vector, round_number: int, coordinates: Coordinates | None = None) -> Matrix:  # noqa: ARG002
        start = torch.from_numpy(np.array(model)).to(self._shards.device)
        rate = learning_rate(self._shards.settings[0], round_number)
        moved = self._local_step(start.unsqueeze(0)) * rate
        for _ in range(1, self._cell.interval):
            moved.add_(self._local_step(start - moved), alpha=rate)
        return moved.cpu().numpy()

    def state(self) -> dict[str, NDArray[np.generic]]:
        state: dict[str, NDArray[np.generic]] = {"step": np.array(self._step)}
        if self._momentum is not None:
            state["momentum"] = self._momentum.cpu().numpy().copy()
        return state

    def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._step = int(state["step"])
        if self._momentum is not None:
            self._momentum.copy_(torch.from_numpy(state["momentum"]))

    def _local_step(self, models: Tensor) -> Tensor:
        """Equation (local_mSGD): m <- beta m + (1 - beta) grad. `models` has one row for everybody, or one each."""
        self._fill_gradient(models, *self._shards.batches(self._step))
        self._step += 1
        if self._momentum is None:
            return self._gradient
        return self._momentum.mul_(self._cell.beta).add_(self._gradient, alpha=1.0 - self._cell.beta)

    def _fill_gradient(self, models: Tensor, inputs: Tensor, targets: Tensor) -> None:
        raise NotImplementedError


class LayeredSilos(_StackedTraining):
    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        layers = layers_of(module, _PRECISIONS[cell.precision])
        if layers is None:
            raise SettingsError(
                f"The model {cell.model} is no plain row of layers, so its silos cannot be trained layer by layer."
            )
        super().__init__(cell, dataset, module, device)
        self._gradients = SiloGradients(layers)

    def _fill_gradient(self, models: Tensor, inputs: Tensor, targets: Tensor) -> None:
        self._gradients(models, inputs, targets, self._gradient)


class StackedSilos(_StackedTraining):
    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        if any(True for _ in module.buffers()):
            raise SettingsError(f"The model {cell.model} keeps statistics of its own, so its silos cannot share one graph.")
        super().__init__(cell, dataset, module, device)
        self._gradients = vmap(grad_and_value(flat_loss(module)))

    def _fill_gradient(self, models: Tensor, inputs: Tensor, targets: Tensor) -> None:
        with _autocast(self._cell, self._shards.device):
            self._gradient, _ = self._gradients(models.expand(self._cell.m, -1), inputs, targets)


class OneModuleSilos(_StackedTraining):
    """One module for all silos in turn. Batch norm takes the statistics of the silo's batch, as its own trainer would."""

    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        super().__init__(cell, dataset, module, device)
        own = model_of(cell, dataset.input_shape, len(dataset.classes)).to(self._shards.device)
        self._module = own.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]  # torch's stub lacks it
        self._parameters = [parameter for parameter in own.parameters() if parameter.requires_grad]
        self._sizes = [parameter.numel() for parameter in self._parameters]

    def _fill_gradient(self, models: Tensor, inputs: Tensor, targets: Tensor) -> None:
        loaded = -1
        for silo in range(len(inputs)):
            row = silo if len(models) > 1 else 0
            if row != loaded:
                self._load(models[row])
                loaded = row
            images = inputs[silo].contiguous(memory_format=torch.channels_last)
            with _autocast(self._cell, self._shards.device):
                scores = self._module(images)
            loss = nn.functional.cross_entropy(scores.float(), targets[silo])
            for piece, gradient in zip(
                torch.split(self._gradient[silo], self._sizes), torch.autograd.grad(loss, self._parameters), strict=True
            ):
                piece.view(gradient.shape).copy_(gradient)

    def _load(self, model: Tensor) -> None:
        with torch.no_grad():
            for parameter, piece in zip(self._parameters, torch.split(model, self._sizes), strict=True):
                parameter.copy_(piece.view(parameter.shape))


def _autocast(cell: Cell, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=cell.precision == "bfloat16")


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

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {f"{silo}/{name}": value for silo, trainer in enumerate(self._trainers) for name, value in trainer.state().items()}

    def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        for silo, trainer in enumerate(self._trainers):
            own = f"{silo}/"
            trainer.load_state({name.removeprefix(own): value for name, value in state.items() if name.startswith(own)})
