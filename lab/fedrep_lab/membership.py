"""Was one record in the training? What a server can tell that sees a single silo's updates and holds the model still.

The worst that the protocol allows, and more: no buffer hides the silo, and every training starts from the same model, so that
the record, an image with a wrong label, pulls the same way each time. The server knows all other records, but not the batches.
Many trainings with the record and as many without it are played; half of them are the server's shadows, on which it sets its
thresholds, and it is judged on the rest.

`loss`: by the record's loss after a step along the mean update. `ratio`: by the likelihood ratio, step by step, along the
direction in which the record's gradient stands out best from noise and the other records' sums, both taken as Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor
from torch.func import grad, vmap

from fedrep_lab.cell import Cell
from fedrep_lab.models import model_of
from fedrep_lab.record_noise import noise_of
from fedrep_lab.shards import Shards, flat_loss, load_dataset
from fedrep_trainers.images import Images, Preparation

_AT_ONCE = 64
_NO_NOISE = 1e-6  # of a gradient's square: what stands for none
_CONFIDENCE = 0.95  # of both rates together


@dataclass(frozen=True)
class Silo:
    """The gradients that trainings of one silo are made of, each cut where there is privacy."""

    gradients: Tensor
    record: Tensor  # the gradient of the record in question
    rate: float  # of sampling
    noise: float  # on a sum, standard deviation per coordinate

    @cached_property
    def filter(self) -> Tensor:
        """The covariance of a sum without the record, inverted, on its gradient: the best linear test, by Woodbury's identity."""
        others, record = self.gradients.double(), self.record.double()
        noise = max(self.noise**2, _NO_NOISE * float(record @ record))
        spread = self.rate * (1.0 - self.rate)
        kernel = others @ others.T + noise / spread * torch.eye(len(others), dtype=torch.float64)
        seen: Tensor = (record - others.T @ torch.linalg.solve(kernel, others @ record)) / noise
        return seen.float()


def membership(cell: Cell, rng: np.random.Generator, data_dir: Path | None) -> dict[str, float]:
    dataset = load_dataset(cell.dataset, data_dir)
    module = model_of(cell, dataset.input_shape, len(dataset.classes))
    shards = Shards(cell, dataset, module, "cpu")
    model = torch.from_numpy(shards.judge.initial())
    loss = flat_loss(module)
    image, label = _stranger(dataset.test, shards.plain, len(dataset.classes))
    inputs, targets = shards.images(0, np.arange(min(int(shards.samples[0]), int(cell.setting("records")))))
    clip = cell.clip_norm if cell.record_epsilon else math.inf
    one_by_one = vmap(grad(lambda flat, x, y: loss(flat, x[None], y[None])), (None, 0, 0), chunk_size=_AT_ONCE)
    rate = min(1.0, cell.batch_size / len(targets))
    noise = 0.0
    if cell.record_epsilon:
        noise = cell.clip_norm * noise_of(cell.record_epsilon, cell.record_delta, rate, cell.interval, cell.rounds)
    record = _cut(one_by_one(model, image, label), clip)[0]
    silo = Silo(_cut(one_by_one(model, inputs, targets), clip), record, rate, noise)
    present = np.arange(2 * int(cell.setting("trials"))) % 2 == 0
    ratios, losses = [], []
    for there in np.array_split(present, -(-present.size // _AT_ONCE)):
        ratio, update = _trained(silo, there, cell, rng)
        ratios.append(ratio)
        stepped = model - cell.rate * update
        losses.append(-vmap(lambda flat: loss(flat, image, label))(stepped).numpy())
    bound = advantage_bound(cell.record_epsilon, cell.record_delta) if cell.record_epsilon else 1.0
    return {
        "parameters": float(model.numel()),
        "bound": bound,
        **_judged("loss", np.concatenate(losses), present),
        **_judged("ratio", np.concatenate(ratios), present),
    }


def advantage_bound(epsilon: float, delta: float) -> float:
    """No test of an (epsilon, delta)-private training has a higher difference of its rates (Kairouz et al., 2015)."""
    return (math.expm1(epsilon) + 2.0 * delta) / (math.exp(epsilon) + 1.0)


def _stranger(images: Images, preparation: Preparation, classes: int) -> tuple[Tensor, Tensor]:
    """A record that the silo does not hold, with the label of the next class."""
    inputs, targets = preparation.batch(images, np.zeros(1, dtype=np.int64), None)
    return inputs, (targets + 1) % classes


def _cut(gradients: Tensor, clip: float) -> Tensor:
    return gradients.mul_((clip / gradients.norm(dim=1)).clamp(max=1.0)[:, None]) if math.isfinite(clip) else gradients


def _trained(silo: Silo, present: NDArray[np.bool_], cell: Cell, rng: np.random.Generator) -> tuple[NDArray[np.float64], Tensor]:
    """Log likelihood ratios, and mean updates, of one training of `rounds` Poisson batches for each entry of `present`."""
    steps, count = cell.rounds, len(silo.gradients)
    pulls = (silo.gradients @ silo.filter).numpy().astype(np.float64)
    signal = float(silo.record @ silo.filter)
    drawn = rng.random((present.size, steps, count), dtype=np.float32) < silo.rate
    own = (rng.random((present.size, steps)) < silo.rate) & present[:, None]
    noise = torch.from_numpy(rng.normal(size=(present.size, silo.record.numel())).astype(np.float32)) * silo.noise
    total = torch.from_numpy(drawn.sum(axis=1).astype(np.float32)) @ silo.gradients
    total += torch.from_numpy(own.sum(axis=1).astype(np.float32))[:, None] * silo.record + math.sqrt(steps) * noise
    # The noise of single steps along the filter, given that of their sum.
    along = rng.normal(size=(present.size, steps)) * silo.noise * float(silo.filter.norm())
    along += ((noise @ silo.filter).numpy() / math.sqrt(steps) - along.mean(axis=1))[:, None]
    seen = (drawn - silo.rate) @ pulls + own * signal + along
    evidence = np.logaddexp(math.log(max(1.0 - silo.rate, 1e-300)), math.log(silo.rate) + seen - 0.5 * signal).sum(axis=1)
    return evidence, total / (cell.batch_size * steps)


def _judged(name: str, scores: NDArray[np.float64], present: NDArray[np.bool_]) -> dict[str, float]:
    half = scores.size // 2
    threshold = _best_threshold(scores[:half], present[:half])
    said, truth = scores[half:] >= threshold, present[half:]
    hits, inside = int(np.count_nonzero(said & truth)), int(np.count_nonzero(truth))
    alarms, outside = int(np.count_nonzero(said & ~truth)), int(np.count_nonzero(~truth))
    least = _lowest(hits, inside) - _highest(alarms, outside)
    most = _highest(hits, inside) - _lowest(alarms, outside)
    return {f"{name}_advantage": hits / inside - alarms / outside, f"{name}_least": least, f"{name}_most": most}


def _best_threshold(scores: NDArray[np.float64], present: NDArray[np.bool_]) -> float:
    order = np.argsort(-scores, kind="stable")
    gained = np.cumsum(np.where(present[order], 1.0 / np.count_nonzero(present), -1.0 / np.count_nonzero(~present)))
    return float(scores[order[int(np.argmax(gained))]])


def _lowest(successes: int, trials: int) -> float:
    """Clopper and Pearson: the true rate is lower with a chance of a quarter of what confidence leaves."""
    tail = (1.0 - _CONFIDENCE) / 4.0
    return float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0


def _highest(successes: int, trials: int) -> float:
    return 1.0 - _lowest(trials - successes, trials)
