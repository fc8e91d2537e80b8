"""Local steps by DP-SGD (Abadi et al., 2016): what one costs the records, and the noisy gradient that it leaves.

All that is random about privacy, which records are drawn and the noise, comes from `secure_random`. The gradient written here is
the only thing in which a step depends on the records; momentum, weight decay and the rest of the optimizer only work on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedrep.errors import InvalidInputError, SettingsError
from fedrep.record_privacy import RecordLedger, SampledGaussian
from fedrep_trainers import secure_random
from fedrep_trainers.forward import to_device
from fedrep_trainers.record_gradients import LossOf, RecordGradients
from fedrep_trainers.records import record_source
from fedrep_trainers.settings import PrivacySettings, TrainerSettings
from fedrep_trainers.trainer import Allowance
from fedrep_trainers.untouched import Untouched


class PrivateSteps:
    """Fills a flat gradient, whose views are the gradients of the parameters in `named`."""

    def __init__(
        self,
        module: nn.Module,
        named: list[tuple[str, nn.Parameter]],
        gradient: Tensor,
        train: Any,
        loss_of: LossOf,
        settings: TrainerSettings,
        privacy: PrivacySettings,
    ) -> None:
        if settings.clip_norm is not None:
            raise SettingsError(
                "clip_norm in [trainer] would cut the noise and the gradient alike; with [privacy] leave it out: clip_norm in "
                "[privacy] cuts every record's gradient"
            )
        self._source = record_source(train)
        self._gradients = RecordGradients(module, named, loss_of)
        self._untouched = Untouched(module, named, gradient)
        self._gradient = gradient
        self._privacy = privacy
        self._steps = settings.interval
        self._rate = self._source.batch_size / self._source.records
        self._noise: float | None = None
        self._kept: Tensor | None = None

    @property
    def samples(self) -> int:
        """Of a whole training, on average: how many were drawn is told to nobody."""
        return self._steps * self._source.batch_size

    def statement(self, allowance: Allowance | None) -> SampledGaussian:
        """What the next training costs. Its noise is that of all trainings from now on, until this is asked again."""
        said = SampledGaussian(self._noise_within(allowance), self._rate, self._steps)
        self._noise = said.noise
        return said

    def begin(self, coordinates: NDArray[np.int64] | None) -> None:
        """A training in which only these coordinates will be sent; None: all."""
        self._kept = None
        if coordinates is not None:
            self._kept = torch.zeros_like(self._gradient)
            self._kept[torch.from_numpy(np.array(coordinates)).to(self._gradient.device)] = 1.0
        if self._noise is None:
            raise InvalidInputError(
                "[privacy] is set, and nobody asked what this training costs: call privacy() and charge its answer before train()"
            )

    def fill(self, number: int) -> Tensor:
        """The gradient of local step `number`. Returns the mean loss of the records drawn, NaN if there were none."""
        assert self._noise is not None
        positions = secure_random.chosen(self._source.records, self._rate)
        self._gradient.zero_()
        total = torch.zeros_like(self._gradient)  # its own: a loss that calls backward() adds to `_gradient`
        self._untouched.begin()
        losses = [torch.full((1,), torch.nan, device=self._gradient.device)]
        for piece in self._source.pieces(positions, number, self._privacy.records_at_once):
            here = to_device(piece, self._gradient.device)
            losses.append(self._gradients.add_to(total, here, self._privacy.clip_norm, self._kept))
        self._untouched.check()
        noise = secure_random.normals(total.numel()).mul_(self._noise * self._privacy.clip_norm)
        torch.add(total, noise.to(total), out=self._gradient).div_(self._source.batch_size)
        if self._kept is not None:
            self._gradient.mul_(self._kept)
        every = torch.cat(losses)
        return every[torch.isfinite(every)].mean()

    def _noise_within(self, allowance: Allowance | None) -> float:
        if self._privacy.noise is not None:
            return self._privacy.noise
        from fedrep_trainers.record_accountant import noise_for  # seconds to import, and most silos have no [privacy]

        if allowance is None:
            return noise_for(self._privacy.budget, self._rate, self._steps, self._privacy.rounds or 1, RecordLedger())
        last = allowance.ledger.last_of(allowance.run)
        if isinstance(last, SampledGaussian) and (last.rate, last.steps) == (self._rate, self._steps):
            return last.noise
        trainings = self._privacy.rounds or max(allowance.trainings, 1)
        return noise_for(allowance.budget, self._rate, self._steps, trainings, allowance.ledger)
