"""The built-in data sets. `digits` comes with scikit-learn; the others lie in a folder, are decoded once and cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.client.trainers.images import Images


@dataclass(frozen=True)
class ImageDataset:
    train: Images
    test: Images
    classes: tuple[str, ...]
    full_scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.train.pixels.shape
        return channels, height, width


def load_digits(data_dir: Path | None, cache_dir: Path | None) -> ImageDataset:  # noqa: ARG001  registry signature
    """1797 images of 8 x 8 with values 0..16. They are sorted by writer, hence the fixed shuffle before the cut."""
    from sklearn import datasets  # type: ignore[import-untyped]  # scikit-learn ships no types

    bunch = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    pixels = np.ascontiguousarray(bunch.images[order].astype(np.uint8)[:, None])
    labels = bunch.target[order].astype(np.int64)
    cut = len(labels) * 4 // 5
    return ImageDataset(
        train=Images(pixels[:cut], labels[:cut]),
        test=Images(pixels[cut:], labels[cut:]),
        classes=tuple(str(digit) for digit in range(10)),
        full_scale=16.0,
        mean=(0.3053,),
        std=(0.3763,),
    )


DATASETS: dict[str, Callable[[Path | None, Path | None], ImageDataset]] = {"digits": load_digits}
