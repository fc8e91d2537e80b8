"""What a run would still have to do, how long that takes, and how long what is done has taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrep_lab import tuning
from fedrep_lab.catalogue import Experiment
from fedrep_lab.cell import Cell
from fedrep_lab.measurements import TASKS
from fedrep_lab.results import ResultFolder
from fedrep_lab.running import Plan
from fedrep_lab.timing import Estimates
from fedrep_lab.tuning import by_key


def planned(experiments: Sequence[Experiment], plan: Plan, *, measure: bool = False) -> dict[str, Any]:
    """Cells and hours by experiment. With `measure`, kinds of cells that nobody has run are tried for a few rounds."""
    folder = ResultFolder(plan.folder)
    finished = [one for name in (tuning.NAME, *(e.name for e in experiments)) for one in folder.load(name, plan.preset)]
    estimates = Estimates.of(finished)
    tuned = by_key(one for one in finished if one.experiment == tuning.NAME)
    took = {one.cell.key(): one.cpu_seconds for one in finished}
    counted: set[str] = set()  # what experiments share is run once
    rows: list[dict[str, Any]] = []
    tried = {cell.key(): cell for experiment in experiments for cell in experiment.tuning(plan.preset, plan.changes)}
    for name, cells in [(tuning.NAME, list(tried.values()))] + [(e.name, _cells(e, plan, tuned)) for e in experiments]:
        fresh = [cell for cell in cells if cell.key() not in counted]
        counted |= {cell.key() for cell in fresh}
        missing = [cell for cell in fresh if cell.key() not in took]
        spent = sum(took.get(cell.key(), 0.0) for cell in fresh)
        seconds, unknown = 0.0, 0
        for cell in missing:
            if cell.task in TASKS:
                continue  # counts alone: seconds
            found = estimates.seconds(cell)
            if found is None and measure:
                estimates = estimates.with_trial(cell, plan)
                found = estimates.seconds(cell)
            seconds += found or 0.0
            unknown += found is None
        rows.append(
            {
                "experiment": name,
                "cells": len(cells),
                "left": len(missing),
                "unknown": unknown,
                "seconds_per_cell": round(seconds / max(1, len(missing) - unknown), 1),
                "core_hours": round(seconds / 3600, 2),
                "spent_core_hours": round(spent / 3600, 2),
            }
        )
    hours = sum(float(row["core_hours"]) for row in rows)
    return {
        "preset": plan.preset,
        "experiments": rows,
        "left": sum(row["left"] for row in rows),
        "unknown": sum(row["unknown"] for row in rows),
        "core_hours": round(hours, 2),
        "spent_core_hours": round(sum(float(row["spent_core_hours"]) for row in rows), 2),
        "jobs": plan.processes,
        "hours": round(hours / plan.processes, 2),
    }


def _cells(experiment: Experiment, plan: Plan, tuned: dict[str, Any]) -> list[Cell]:
    """With the chosen rates where they are known; any rate takes as long."""
    chosen = experiment.cells(plan.preset, plan.changes, tuned)
    everything = experiment.cells(plan.preset, plan.changes)
    return chosen if len(chosen) == len(everything) else everything
