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

    @classmethod
    def of(cls, experiment: Experiment, preset: str, tuned: Mapping[str, Result]) -> Grid:
        """`tuned` are the finished cells of `tuning`, which have chosen the rates."""
        return cls(experiment.cells(preset, None, tuned))

    def belonging(self, results: Sequence[Result]) -> list[Result]:
        """Those with the preset's settings. A seed more is a seed more of the same, and not another setting."""
        asked = {apart_from_seed(cell) for cell in self.cells}
        return [result for result in results if apart_from_seed(result.cell) in asked]


def apart_from_seed(cell: Cell) -> str:
    return replace(cell, seed=0).key()
