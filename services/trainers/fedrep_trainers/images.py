"""Images as arrays, and how a batch of them becomes the input of a model, vectorised and on the training device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrep.errors import InvalidInputError


@dataclass(frozen=True)
class Images:
    """Pixels as uint8 (n, channels, height, width), perhaps mapped from a file that silos share; labels as int64."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.shape[0] != self.labels.shape[0]:
            raise InvalidInputError(
                f"images of shape {list(self.pixels.shape)} and {self.labels.shape[0]} labels do not belong together"
            )

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class Preparation:
    """Scale to [0, 1], normalise per channel, and for training optionally crop and flip at random.

    The crops of He et al. (2016): four black pixels on each side, a window of the old size, a flip half of the time.
    """

    full_scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device
    augment: bool = False
    padding: int = 4

    def batch(self, images: Images, indices: NDArray[np.int64], rng: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Without a generator the images stay as they are."""
        pixels = torch.from_numpy(np.array(images.pixels[indices])).to(self.device)
        labels = torch.from_numpy(images.labels[indices]).to(self.device)
        if self.augment and rng is not None:
            pixels = self._cropped_and_flipped(pixels, rng)
        shape = (1, len(self.mean), 1, 1)
        mean = torch.tensor(self.mean, device=self.device).view(shape)
        std = torch.tensor(self.std, device=self.device).view(shape)
        return (pixels.to(torch.float32) / self.full_scale - mean) / std, labels

    def _cropped_and_flipped(self, pixels: Tensor, rng: np.random.Generator) -> Tensor:
        count, _, height, width = pixels.shape
        tops, lefts = rng.integers(0, 2 * self.padding + 1, size=(2, count))
        rows = tops[:, None] + np.arange(height)
        columns = lefts[:, None] + np.arange(width)
        flipped = rng.random(count) < 0.5
        columns[flipped] = columns[flipped, ::-1]
        padded = torch.nn.functional.pad(pixels, (self.padding,) * 4)
        which = torch.arange(count, device=self.device)[:, None, None]
        down = torch.from_numpy(rows).to(self.device)[:, :, None]
        across = torch.from_numpy(columns).to(self.device)[:, None, :]
        # The slice between advanced indices moves the channels to the end.
        return padded[which, :, down, across].permute(0, 3, 1, 2)
