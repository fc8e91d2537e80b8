"""The lab's own small network, beside the models that silos can choose."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedrep_lab.cell import Cell
from fedrep_trainers.models import MODELS, Shape, build_model


def small_cnn(shape: Shape, classes: int, width: int = 8) -> nn.Module:
    """Two convolutions of stride 2 instead of pooling: a third of the work of the silos' `cnn` at the same size."""
    channels, height, breadth = shape
    pixels = -(-height // 4) * -(-breadth // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * pixels, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def model_of(cell: Cell, shape: Shape, classes: int) -> nn.Module:
    """The same cell gives the same initial parameters."""
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in cell.model_options.items()
    }
    return build_model(cell.model, shape, classes, cell.seed, options, {**MODELS, "small_cnn": small_cnn})
