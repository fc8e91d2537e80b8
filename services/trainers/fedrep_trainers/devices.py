"""Which processor trains. Everything else in this package only ever sees the chosen device."""

from __future__ import annotations

import torch

from fedrep.errors import SettingsError


def choose_device(wanted: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU; a named device that is not there is refused, not replaced."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise SettingsError(f"device = {wanted!r} is not a torch device; use auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"device = {wanted!r}: this machine shows torch {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise SettingsError("device = 'mps': this torch or machine has no MPS; use auto or cpu")
    return device
