"""Batch-norm statistics for evaluation and export. They never travel, so whoever evaluates estimates them anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedrep.errors import SettingsError
from fedrep_trainers.batches import Batch


def tracked_norms(module: nn.Module) -> list[_BatchNorm]:
    """The batch-norm layers whose running statistics a forward pass in evaluation mode would use."""
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


@torch.no_grad()
def reestimate(module: nn.Module, batches: Iterable[Batch], device: torch.device) -> None:
    """Replace running statistics by plain averages over `batches`; everything else stays in evaluation mode."""
    norms = tracked_norms(module)
    former: list[float | None] = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a cumulative average
        norm.train()
    seen = 0
    try:
        for inputs, _ in batches:
            module(to_device(inputs, device))
            seen += len(inputs)
    finally:
        for norm, momentum in zip(norms, former, strict=True):
            norm.momentum = momentum
            norm.eval()
    if not seen:
        raise SettingsError("the calibration data is empty, so batch-norm statistics cannot be estimated from it")


def to_device(inputs: Any, device: torch.device) -> Any:
    return inputs.to(device, non_blocking=True)
