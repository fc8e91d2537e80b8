"""A convolutional network on small images: scikit-learn's handwritten digits, 8 x 8 pixels.

Replace `images` by a function that reads this silo's own files, and `network` by your model. The rest can stay.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedrep_trainers import TorchTrainer, TrainerSettings


def images(settings: TrainerSettings) -> tuple[TensorDataset, TensorDataset]:
    """What this silo trains on, and what it is judged by.

    Here all silos share one public set, of which each takes every `shard_count`-th image. A real silo loads its own, for
    example with torchvision's ImageFolder from a path under [trainer.options] in client.toml.
    """
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0 - 0.5
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = np.random.default_rng(settings.seed).permutation(len(labels))
    held_out, known = order[:360], order[360:][settings.shard_index % settings.shard_count :: settings.shard_count]
    return TensorDataset(pixels[known], labels[known]), TensorDataset(pixels[held_out], labels[held_out])


def network() -> nn.Module:
    """GroupNorm, not BatchNorm: running statistics never leave a silo, so they would have to be estimated anew for export."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def build(settings: TrainerSettings) -> TorchTrainer:
    """What client.toml names as user_code."""
    torch.manual_seed(settings.seed)  # every silo starts from the same model
    known, held_out = images(settings)
    return TorchTrainer(
        network(),
        train=DataLoader(known, batch_size=settings.batch_size, shuffle=True),
        evaluation=DataLoader(held_out, batch_size=500),
        loss=nn.CrossEntropyLoss(),
        settings=settings,
    )
