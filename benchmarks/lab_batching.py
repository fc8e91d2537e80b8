"""Images per second of the lab's training of all silos, against a plain loop over the service's trainers.

    python -m benchmarks.lab_batching [--silos 32] [--repeats 5] [--models small_cnn resnet20] [--json PATH]

Both train the same silos on the same batches, interleaved, on one thread; the table gives the most images per second of
processor time of a local step of all silos, which other work on the machine disturbs least. `plain` is a loop over one trainer
each, in float32 and with channels first, as the service trains; `lab` is what a cell of the preset does: layer by layer over
everybody's images, or, with batch norm, one module for all in turn, channels last and in bfloat16.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import save
from fedrep_lab.cell import Cell
from fedrep_lab.silos import LoopedSilos, Silos, build_on
from fedrep_trainers.datasets import ImageDataset
from fedrep_trainers.images import Images

_KINDS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "mlp": ((1, 28, 28), {}),
    "small_cnn": ((1, 28, 28), {}),
    "cnn": ((1, 28, 28), {"model_options": {"width": 8}}),
    "resnet20_gn": ((3, 32, 32), {"precision": "bfloat16"}),
    "resnet20": ((3, 32, 32), {"precision": "bfloat16"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The lab's training of all silos against a plain loop.")
    parser.add_argument("--silos", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["mlp", "small_cnn", "resnet20"], choices=list(_KINDS))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(name, options.silos, options.repeats) for name in options.models]
    print(
        f"{options.silos} silos, batches of 25 images, one thread, best of {options.repeats}, images per second of processor time"
    )
    print(f"{'model':12} {'parameters':>10} {'plain':>8} {'lab':>8} {'speed-up':>9}")
    for row in rows:
        speed_up = row["lab"] / row["plain"]
        print(f"{row['model']:12} {row['parameters']:>10,} {row['plain']:>8,.0f} {row['lab']:>8,.0f} {speed_up:>8.2f}x")
    if options.json:
        save(options.json, {"silos": options.silos, "repeats": options.repeats, "batch": Cell().batch_size, "rows": rows})


def measured(name: str, silos: int, repeats: int) -> dict[str, Any]:
    shape, settings = _KINDS[name]
    dataset = made_up_images(shape)
    cell = replace(Cell(), model=name, m=silos, f=0, rounds=1000, **settings)
    plain = build_on(replace(cell, precision="float32"), dataset, "cpu", "loop")
    assert isinstance(plain, LoopedSilos)
    kinds: dict[str, Silos] = {"plain": plain, "lab": build_on(cell, dataset, "cpu")}
    least = dict.fromkeys(kinds, float("inf"))
    model = plain.initial()
    for repeat in range(repeats + 1):
        for kind, trained in kinds.items():
            spent = timed(partial(trained.updates, model, repeat + 1))
            if repeat:  # the first one warms up
                least[kind] = min(least[kind], spent)
    images = silos * cell.batch_size
    return {"model": name, "parameters": plain.parameters, **{kind: images / seconds for kind, seconds in least.items()}}


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def made_up_images(shape: tuple[int, int, int] = (1, 28, 28)) -> ImageDataset:
    """The shape of the real ones; what the pixels show does not change the work."""
    rng = np.random.default_rng(0)
    made = []
    for count in (6400, 500):
        pixels = rng.integers(0, 256, size=(count, *shape), dtype=np.uint8)
        made.append(Images(pixels, rng.integers(0, 10, size=count)))
    half = (0.5,) * shape[0]
    return ImageDataset(made[0], made[1], tuple("0123456789"), 255.0, half, half)


if __name__ == "__main__":
    main()
