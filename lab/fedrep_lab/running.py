"""A run of experiments: which cells are missing, where they run, and a bar for each that is running."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedrep.errors import SettingsError
from fedrep_lab import tuning
from fedrep_lab.catalogue import Experiment
from fedrep_lab.cell import Cell
from fedrep_lab.engines import Job, run_here, run_in_pool, run_on_ray
from fedrep_lab.measurements import ON_DATA
from fedrep_lab.results import ResultFolder
from fedrep_lab.tuning import by_key
from fedrep_runtime.files import lock_folder


@dataclass(frozen=True)
class Plan:
    """What is asked for on the command line."""

    preset: str
    folder: Path
    data_dir: Path | None = None
    engine: str = "local"
    processes: int = 1
    device: str = "cpu"
    changes: Mapping[str, Any] | None = None

    def job(self, experiment: str, cell: Cell) -> Job:
        return Job(experiment, self.preset, cell, self.folder, self.data_dir, self.device)


def missing_jobs(experiments: Sequence[Experiment], plan: Plan) -> tuple[list[Job], int]:
    """The cells still to be run, all of one seed before those of the next, and how many are already there."""
    results = ResultFolder(plan.folder)
    tuned = by_key(results.load(tuning.NAME, plan.preset))
    jobs: dict[str, Job] = {}
    present = 0
    for experiment in experiments:
        for cell in experiment.cells(plan.preset, plan.changes, tuned):
            if results.has(experiment.name, plan.preset, cell) or results.adopt(experiment.name, plan.preset, cell):
                present += 1
            else:  # what two experiments share is run once, and adopted afterwards
                jobs.setdefault(cell.key(), plan.job(experiment.name, cell))
    return sorted(jobs.values(), key=lambda job: job.cell.seed), present


def missing_tuning(experiments: Sequence[Experiment], plan: Plan) -> list[Job]:
    """What decides the rates, and has not been run yet."""
    results = ResultFolder(plan.folder)
    cells = {cell.key(): cell for experiment in experiments for cell in experiment.tuning(plan.preset, plan.changes)}
    return [plan.job(tuning.NAME, cell) for cell in cells.values() if not results.has(tuning.NAME, plan.preset, cell)]


def run_experiments(experiments: Sequence[Experiment], plan: Plan, console: Console) -> dict[str, Any]:
    if plan.engine not in ("local", "ray"):
        raise SettingsError(f"There is no engine {plan.engine!r}; choose local or ray.")
    if plan.processes < 1:
        raise SettingsError(f"--jobs is {plan.processes}; at least one cell must run at a time.")
    names = [experiment.name for experiment in experiments]
    with lock_folder(plan.folder):
        tried, jobs, present = _run_missing(experiments, plan, console, names)
    return {
        "preset": plan.preset,
        "experiments": names,
        "ran": len(jobs),
        "tuned": len(tried),
        "present": present,
        "folder": str(plan.folder),
    }


def _run_missing(
    experiments: Sequence[Experiment], plan: Plan, console: Console, names: Sequence[str]
) -> tuple[list[Job], list[Job], int]:
    """The trainings that chose rates, the cells, and how many of them were there already."""
    try:
        tried = missing_tuning(experiments, plan)
        _run(tried, plan, console)
        jobs, present = missing_jobs(experiments, plan)
        _run(jobs, plan, console)
        return tried, jobs, present
    except KeyboardInterrupt:
        console.print("Interrupted. Cells that are finished stay; the same command goes on with the rest.")
        raise
    finally:
        # Also after Ctrl-C: the tables hold what is finished, and the next run takes up the rest.
        missing_jobs(experiments, plan)  # adopts what experiments share
        for name in (tuning.NAME, *names):
            ResultFolder(plan.folder).write_tables(name, plan.preset)


def _run(jobs: Sequence[Job], plan: Plan, console: Console) -> None:
    if not jobs:
        return
    on_data = [job.cell for job in jobs if job.cell.task == "train" or job.cell.task in ON_DATA]
    wanted = sorted({cell.dataset for cell in on_data} - {"digits"})  # which come with scikit-learn
    if wanted and plan.data_dir is None:
        raise SettingsError(f"These cells train on {' and '.join(wanted)}: say with --data-dir where the data are.")
    with Bars(jobs, console) as bars:
        if plan.engine == "ray":
            run_on_ray(jobs, bars.report, plan.processes)
        elif plan.processes == 1:
            run_here(jobs, bars.report)
        else:
            run_in_pool(jobs, bars.report, plan.processes)


_LOOKED_BACK = 12 * 3600.0  # seconds: cells take from seconds to an hour


class Bars:
    """One bar for all cells, one for each that is running; a line per finished cell where there is no terminal."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._console = console
        self._total = len(jobs)
        self._titles = {job.key: f"{job.experiment} {job.key[:6]}" for job in jobs}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=_LOOKED_BACK,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("cells", total=len(jobs))
        self._running: dict[str, TaskID] = {}
        self._done = 0
        self._started = time.monotonic()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, key: str, done: int, total: int) -> None:
        if done < 0:
            self._done += 1
            self._progress.advance(self._all)
            if key in self._running:
                self._progress.remove_task(self._running.pop(key))
            if not self._console.is_terminal:
                self._console.print(f"{self._done}/{self._total} {self._titles[key]}{self._left()}")
        elif key in self._titles and self._progress.disable is False:
            if key not in self._running:
                self._running[key] = self._progress.add_task(self._titles[key], total=total)
            self._progress.update(self._running[key], completed=done)

    def _left(self) -> str:
        """From what the cells so far have taken."""
        seconds = (time.monotonic() - self._started) / self._done * (self._total - self._done)
        return "" if self._done == self._total else f", about {timedelta(seconds=round(seconds))} left"
