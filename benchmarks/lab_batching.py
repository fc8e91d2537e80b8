"""How much faster the lab trains its m silos in one graph than in a loop over them.

    python -m benchmarks.lab_batching [--silos 32] [--repeats 5]

Both train the same silos on the same batches, interleaved, on one thread; the table gives the least processor time of a
local step of all silos, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fedrep_lab.cell import Cell
from fedrep_lab.models import model_of
from fedrep_lab.silos import LoopedSilos, Silos, StackedSilos
from fedrep_trainers.datasets import ImageDataset
from fedrep_trainers.images import Images

_MODELS: dict[str, dict[str, int]] = {"mlp": {}, "small_cnn": {}, "cnn": {"width": 8}, "resnet20_gn": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description="Stacked training against a loop.")
    parser.add_argument("--silos", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["mlp", "small_cnn", "cnn"], choices=list(_MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = made_up_images()
    print(f"{options.silos} silos, batches of 25 images of 28 x 28, one thread, least of {options.repeats}, ms of processor time")
    print(f"{'model':12} {'parameters':>10} {'loop':>8} {'stacked':>8} {'speed-up':>9}")
    for name in options.models:
        cell = replace(Cell(), model=name, model_options=_MODELS[name], m=options.silos, f=0, rounds=1000)
        kinds: dict[str, Silos] = {
            "loop": LoopedSilos(cell, dataset, model_of(cell, dataset.input_shape, 10), "cpu"),
            "stacked": StackedSilos(cell, dataset, model_of(cell, dataset.input_shape, 10), "cpu"),
        }
        least = dict.fromkeys(kinds, float("inf"))
        model = kinds["loop"].initial()
        for repeat in range(options.repeats + 1):
            for kind, silos in kinds.items():
                spent = timed(partial(silos.updates, model, repeat + 1))
                if repeat:  # the first one warms up
                    least[kind] = min(least[kind], spent)
        loop, stacked = (1000 * least[kind] for kind in ("loop", "stacked"))
        print(f"{name:12} {kinds['loop'].parameters:>10,} {loop:>8.1f} {stacked:>8.1f} {loop / stacked:>8.2f}x")


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def made_up_images() -> ImageDataset:
    """The shape of Fashion-MNIST; what the pixels show does not change the work."""
    rng = np.random.default_rng(0)
    train, test = (
        Images(rng.integers(0, 256, size=(count, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, size=count))
        for count in (6400, 500)
    )
    return ImageDataset(train, test, tuple("0123456789"), 255.0, (0.5,), (0.5,))


if __name__ == "__main__":
    main()
