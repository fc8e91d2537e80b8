"""What a preset asks of an experiment, beside what has been run: a verdict is about the preset's cells, and about all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedrep_lab.catalogue import Experiment
from fedrep_lab.cell import Cell
from fedrep_lab.results import Result


@dataclass(frozen=True)
class Grid:
    cells: Sequence[Cell]
    untuned: int = 0  # cells whose rate has not been chosen yet: whatever was run, these were not

    @classmethod
    def of(cls, experiment: Experiment, preset: str, tuned: Mapping[str, Result]) -> Grid:
        """`tuned` are the finished cells of `tuning`, which have chosen the rates."""
        cells = experiment.cells(preset, None, tuned)
        return cls(cells, len(experiment.cells(preset)) - len(cells))

    def __len__(self) -> int:
        return len(self.cells) + self.untuned

    def belonging(self, results: Sequence[Result]) -> list[Result]:
        """Those with the preset's settings. A seed more is a seed more of the same, and not another setting."""
        asked = {apart_from_seed(cell) for cell in self.cells}
        return [result for result in results if apart_from_seed(result.cell) in asked]

    def not_run(self, results: Sequence[Result]) -> int:
        there = {result.cell.key() for result in results}
        return self.untuned + sum(cell.key() not in there for cell in self.cells)


def apart_from_seed(cell: Cell) -> str:
    return replace(cell, seed=0).key()
