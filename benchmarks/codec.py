"""Top-k, coordinate code and quantization against numpy's own operations on the same arrays, as ratios in one run.

    python -m benchmarks.codec [--json PATH] [--repeats N]

Ours and numpy's take turns within each repeat, and the minimum counts: a busy machine slows both alike. CPU time of the
process is measured, since all of it runs in one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Work, interleaved
from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.quantize import RingFormat, open_mean, quantize, value_bits
from fedrep.sparsify import obfuscate, top_k

MODELS = (270_000, 5_000_000)
DENSITIES = (0.01, 0.05)
SILOS = 32


@dataclass(frozen=True)
class Timing:
    """Milliseconds of ours and of each yardstick, and ours divided by the yardstick."""

    work: str
    d: int
    count: int
    ours_ms: float
    yardsticks_ms: dict[str, float]
    ratios: dict[str, float]


@dataclass(frozen=True)
class CodeLength:
    d: int
    count: int
    bits_per_coordinate: float
    entropy_bits_per_coordinate: float
    ratio: float


def timing(work: str, d: int, count: int, ours: Work, yardsticks: Mapping[str, Work], repeats: int) -> Timing:
    measured = interleaved({"ours": ours, **yardsticks}, repeats)
    mine = measured.pop("ours")
    return Timing(work, d, count, mine, measured, {name: mine / value for name, value in measured.items()})


def time_top_k(d: int, repeats: int) -> list[Timing]:
    update = np.random.default_rng(d).standard_normal(d, dtype=np.float32)
    results = []
    for share in (DENSITIES[-1] / SILOS, DENSITIES[-1]):
        k = int(d * share)
        top, rng = top_k(update, k), np.random.default_rng(1)
        yardsticks: dict[str, Work] = {
            "np.argpartition": partial(numpy_top_k, update, k),
            "np.partition": partial(numpy_threshold, update, k),
        }
        draw = {"rng.choice": partial(rng.choice, d, k, replace=False)}
        results.append(timing("top-k", d, k, partial(top_k, update, k), yardsticks, repeats))
        results.append(timing("obfuscate", d, k, partial(obfuscate, top, d, 0.5, rng), draw, repeats))
    return results


def numpy_top_k(update: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    return np.argpartition(np.abs(update), update.size - k)[update.size - k :]


def numpy_threshold(update: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    return np.partition(np.abs(update), update.size - k)


def uniform_set(d: int, density: float) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(d).choice(d, int(d * density), replace=False))


def time_code(d: int, density: float, repeats: int) -> list[Timing]:
    members = uniform_set(d, density)
    message = encode_coordinates(members, d)
    yardsticks: dict[str, Work] = {
        "np.diff": lambda: np.diff(members),
        "np.cumsum": lambda: np.cumsum(members),
        "copy (floor)": lambda: members.copy(),
    }
    return [
        timing("encode", d, members.size, lambda: encode_coordinates(members, d), yardsticks, repeats),
        timing("decode", d, members.size, lambda: decode_coordinates(message, d), yardsticks, repeats),
    ]


def time_quantization(d: int, repeats: int) -> list[Timing]:
    rng = np.random.default_rng(d)
    values = 0.01 * rng.standard_normal(d, dtype=np.float32)
    ring = RingFormat(16, value_bits(16, 4))
    levels = quantize(values, 0.07, ring, rng).levels
    yardsticks: dict[str, Work] = {
        "rng.random": lambda: rng.random(d, dtype=np.float32),
        "copy (floor)": lambda: values.copy(),
    }
    return [
        timing("quantize", d, d, lambda: quantize(values, 0.07, ring, rng), yardsticks, repeats),
        timing("open mean", d, d, lambda: open_mean(levels, 1, 0.07, ring), yardsticks, repeats),
    ]


def code_length(d: int, density: float) -> CodeLength:
    members = uniform_set(d, density)
    n = members.size
    bits = 8 * len(encode_coordinates(members, d)) / n
    entropy = (math.lgamma(d + 1) - math.lgamma(n + 1) - math.lgamma(d - n + 1)) / math.log(2) / n
    return CodeLength(d, n, bits, entropy, bits / entropy)


def show(timings: list[Timing], lengths: list[CodeLength]) -> None:
    console = Console()
    table = Table(title="minimum CPU milliseconds, and ours as a multiple of the yardstick")
    for heading in ("work", "d", "count", "ours"):
        table.add_column(heading, justify="right" if heading != "work" else "left")
    table.add_column("yardsticks")
    for row in timings:
        beside = ", ".join(f"{name} {row.yardsticks_ms[name]:.3f} ({ratio:.2f}x)" for name, ratio in row.ratios.items())
        table.add_row(row.work, f"{row.d:,}", f"{row.count:,}", f"{row.ours_ms:.3f}", beside)
    console.print(table)
    table = Table(title="bits per coordinate of a uniform set")
    for heading in ("d", "count", "bits", "entropy", "ratio"):
        table.add_column(heading, justify="right")
    for size in lengths:
        row_of = (size.bits_per_coordinate, size.entropy_bits_per_coordinate, size.ratio)
        table.add_row(f"{size.d:,}", f"{size.count:,}", *(f"{value:.3f}" for value in row_of))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--repeats", type=int, default=7, help="turns per measurement")
    options = parser.parse_args()
    timings: list[Timing] = []
    for d in MODELS:
        timings += time_top_k(d, options.repeats)
        for density in DENSITIES:
            timings += time_code(d, density, options.repeats)
        timings += time_quantization(d, options.repeats)
    lengths = [code_length(d, density) for d in MODELS for density in DENSITIES]
    show(timings, lengths)
    if options.json:
        document = {
            "benchmark": "codec",
            "numpy": np.__version__,
            "python": platform.python_version(),
            "timings": [asdict(row) for row in timings],
            "code_lengths": [asdict(size) for size in lengths],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
