"""Batch-norm statistics for evaluation and export. They never travel, so whoever evaluates estimates them anew."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedrep.errors import SettingsError
from fedrep_trainers.batches import Batch
from fedrep_trainers.forward import call_module, sample_count, split_batch, to_device


def tracked_norms(module: nn.Module) -> list[_BatchNorm]:
    """The batch-norm layers whose running statistics a forward pass in evaluation mode would use."""
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


@torch.no_grad()
def reestimate(module: nn.Module, batches: Iterable[Batch], device: torch.device, *, whole: bool = False) -> None:
    """Replace running statistics by plain averages over `batches`; everything else stays in evaluation mode.

    `whole` for a module that takes targets too and makes its own loss.
    """
    norms = tracked_norms(module)
    former: list[float | None] = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a cumulative average
        norm.train()
    seen = 0
    try:
        for batch in batches:
            inputs, _ = split_batch(batch)
            call_module(module, to_device(batch if whole else inputs, device))
            seen += sample_count(batch)
    finally:
        for norm, momentum in zip(norms, former, strict=True):
            norm.momentum = momentum
            norm.eval()
    if not seen:
        raise SettingsError("the calibration data is empty, so batch-norm statistics cannot be estimated from it")
