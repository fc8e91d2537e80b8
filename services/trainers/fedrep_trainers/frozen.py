"""A hash of the weights that a module has but does not train. Updates of adapters over one base mean nothing to another base."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

CHUNK = 1 << 24  # bytes hashed at a time: a base of many gigabytes is not copied whole


def frozen_digest(module: nn.Module) -> str:
    """Over names, shapes, kinds and bytes in the order of the names; empty where every parameter is trained."""
    frozen = sorted(
        ((name, p.detach()) for name, p in module.named_parameters() if not (p.requires_grad or p.is_meta)),
        key=lambda pair: pair[0],
    )
    if not frozen:
        return ""
    digest = hashlib.sha256()
    for name, tensor in frozen:
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        for start in range(0, flat.numel(), CHUNK):
            digest.update(flat[start : start + CHUNK].cpu().numpy().data)
    return digest.hexdigest()
