"""How long the cells that are left will take, from what finished cells took, or from a few rounds played now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fedrep_lab.cell import Cell
from fedrep_lab.results import Result
from fedrep_lab.running import Plan

_TRIED_ROUNDS = 6
# What decides the time of a round, coarser from line to line: the first that a finished cell shares is taken.
_ALIKE = (
    ("task", "dataset", "model", "m", "batch_size", "interval", "method", "rule", "pre", "attack", "selection"),
    ("task", "dataset", "model", "m", "batch_size", "interval", "method", "rule"),
    ("task", "dataset", "model", "m", "batch_size", "interval", "method"),
)
_SAMPLES = {"cifar10": 50_000, "fashion_mnist": 60_000, "digits": 1_437}


def rounds(cell: Cell) -> int:
    if cell.epochs <= 0:
        return cell.rounds
    return max(1, round(cell.epochs * _SAMPLES[cell.dataset] / (cell.m * cell.batch_size * cell.interval)))


@dataclass(frozen=True)
class Estimates:
    """Processor seconds of a round, by what cells have in common."""

    known: dict[tuple[Any, ...], list[float]]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Estimates:
        known: dict[tuple[Any, ...], list[float]] = {}
        for result in results:
            played = float(result.metrics.get("rounds_played", result.cell.rounds)) or 1.0
            if result.cell.task == "train" and played < rounds(result.cell) / 2:
                continue  # it left the finite numbers: too short to tell
            for level in range(len(_ALIKE)):
                known.setdefault(_kind(result.cell, level), []).append(result.cpu_seconds / played)
        return cls(known)

    def seconds(self, cell: Cell) -> float | None:
        for level in range(len(_ALIKE)):
            found = self.known.get(_kind(cell, level))
            if found:
                return median(found) * rounds(cell)
        return None

    def with_trial(self, cell: Cell, plan: Plan) -> Estimates:
        """A few rounds of this cell, played now, where no finished one is like it."""
        import torch

        from fedrep_lab.simulation import play

        torch.set_num_threads(1)
        short, shorter = (replace(cell, rounds=n, epochs=0, evaluations=1) for n in (_TRIED_ROUNDS, 1))
        spent = [play(one, plan.data_dir, device=plan.device)["cpu_seconds"] for one in (shorter, shorter, short)][1:]
        each = max(1e-3, (spent[1] - spent[0]) / (_TRIED_ROUNDS - 1))
        known = {kind: list(values) for kind, values in self.known.items()}
        for level in range(len(_ALIKE)):
            known.setdefault(_kind(cell, level), []).append(each)
        return Estimates(known)


def _kind(cell: Cell, level: int) -> tuple[Any, ...]:
    return (level, bool(cell.record_epsilon), bool(cell.ring_bits), *(str(getattr(cell, name)) for name in _ALIKE[level]))
