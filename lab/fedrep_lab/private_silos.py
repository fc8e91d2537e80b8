"""Silos that train by DP-SGD: each record's gradient is cut to the clip norm, and noise is added to the sum over a Poisson batch.

Sampling and noise are seeded, so that a cell can be repeated: right for a simulation whose records are public, and never done
by the service, where whoever knows the seed can subtract the noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedrep.sparsify import Coordinates
from fedrep_lab.cell import Cell
from fedrep_lab.clipped_sums import ClippedSums
from fedrep_lab.record_noise import noise_of
from fedrep_lab.shards import Matrix, Shards, Vector, rounds_of
from fedrep_trainers.batches import derived_seed
from fedrep_trainers.datasets import ImageDataset
from fedrep_trainers.schedule import learning_rate
from fedrep_trainers.trainer import Evaluation

_AT_ONCE = 512  # samples; more do not fit the cache
_SAMPLE, _NOISE = 20, 21  # streams of random numbers


class PrivateSilos:
    def __init__(self, cell: Cell, dataset: ImageDataset, module: nn.Module, device: str) -> None:
        self._cell = cell
        self._shards = Shards(cell, dataset, module, device)
        self._sums = ClippedSums(module)
        self.parameters = self._shards.judge.layout.size
        self.samples = self._shards.samples
        self.rates = np.minimum(1.0, cell.batch_size / self.samples)
        budget = (cell.record_epsilon, cell.record_delta)
        self.noise = [noise_of(*budget, float(rate), cell.interval, rounds_of(cell, dataset)) for rate in self.rates]
        self._momentum = torch.zeros(cell.m, self.parameters, device=self._shards.device)
        self._step = 0

    def initial(self) -> Vector:
        return self._shards.judge.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        return self._shards.judge.evaluate(model)

    def updates(self, model: Vector, round_number: int, coordinates: Coordinates | None = None) -> Matrix:
        """With `coordinates`, gradients are projected on them before they are cut, and nothing else is trained."""
        start = torch.from_numpy(np.array(model)).to(self._shards.device)
        stacked = start.expand(self._cell.m, -1).clone()
        mask = None
        if coordinates is not None:
            mask = torch.zeros(self.parameters, device=self._shards.device)
            mask[torch.from_numpy(coordinates)] = 1.0
        rate = learning_rate(self._shards.settings[0], round_number)
        for number in range(self._cell.interval):
            gradient = self.noisy_gradients(stacked, mask, together=number == 0)
            if self._cell.beta:
                self._momentum.mul_(self._cell.beta).add_(gradient, alpha=1.0 - self._cell.beta)
                gradient = self._momentum if mask is None else self._momentum * mask
            stacked.add_(gradient, alpha=-rate)
            self._step += 1
        result: Matrix = torch.sub(start, stacked, out=stacked).cpu().numpy()
        return result

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"step": np.array(self._step), "momentum": self._momentum.cpu().numpy().copy()}

    def load_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._step = int(state["step"])
        self._momentum.copy_(torch.from_numpy(state["momentum"]))

    def noisy_gradients(self, models: Tensor, mask: Tensor | None, *, together: bool) -> Tensor:
        """`together`: all rows of `models` are one, so that silos can share a pass."""
        batches = [self._batch(silo) for silo in range(self._cell.m)]
        sums = torch.cat([self._clipped(models[group[0]], group, batches, mask) for group in self._groups(batches, together)])
        for silo, row in enumerate(sums):
            row.add_(self._noise_for(silo, mask))
            row.div_(self._cell.batch_size if self.rates[silo] < 1 else float(self.samples[silo]))
        return sums

    def _groups(self, batches: list[NDArray[np.int64]], together: bool) -> list[list[int]]:
        groups: list[list[int]] = []
        held = 0
        for silo, batch in enumerate(batches):
            if not groups or not together or held + batch.size > _AT_ONCE:
                groups.append([])
                held = 0
            groups[-1].append(silo)
            held += batch.size
        return groups

    def _clipped(self, model: Tensor, group: list[int], batches: list[NDArray[np.int64]], mask: Tensor | None) -> Tensor:
        drawn = [self._shards.images(silo, batches[silo]) for silo in group]
        inputs, targets = torch.cat([one[0] for one in drawn]), torch.cat([one[1] for one in drawn])
        return self._sums(model, inputs, targets, [batches[silo].size for silo in group], self._cell.clip_norm, mask)

    def _batch(self, silo: int) -> NDArray[np.int64]:
        """Each record by its own coin; a batch may be empty."""
        rng = np.random.default_rng([self._cell.seed, _SAMPLE, silo, self._step])
        drawn: NDArray[np.int64] = np.flatnonzero(rng.random(self.samples[silo]) < self.rates[silo])
        return drawn

    def _noise_for(self, silo: int, mask: Tensor | None) -> Tensor:
        generator = torch.Generator().manual_seed(derived_seed(self._cell.seed, _NOISE, silo, self._step))
        noise = torch.randn(self.parameters, generator=generator).mul_(self.noise[silo] * self._cell.clip_norm)
        noise = noise.to(self._shards.device)
        return noise if mask is None else noise.mul_(mask)
