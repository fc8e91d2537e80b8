"""A run of experiments: which cells are missing, where they run, and a bar for each that is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedrep.errors import SettingsError
from fedrep_lab.catalogue import Experiment
from fedrep_lab.engines import Job, run_here, run_in_pool, run_on_ray
from fedrep_lab.results import ResultFolder


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


def missing_jobs(experiments: Sequence[Experiment], plan: Plan) -> tuple[list[Job], int]:
    """The cells still to be run, and how many are already there."""
    results = ResultFolder(plan.folder)
    jobs, present = [], 0
    for experiment in experiments:
        for cell in experiment.cells(plan.preset, plan.changes):
            if results.has(experiment.name, plan.preset, cell):
                present += 1
            else:
                jobs.append(Job(experiment.name, plan.preset, cell, plan.folder, plan.data_dir, plan.device))
    return jobs, present


def run_experiments(experiments: Sequence[Experiment], plan: Plan, console: Console) -> dict[str, Any]:
    if plan.engine not in ("local", "ray"):
        raise SettingsError(f"There is no engine {plan.engine!r}; choose local or ray.")
    if plan.processes < 1:
        raise SettingsError(f"--jobs is {plan.processes}; at least one cell must run at a time.")
    jobs, present = missing_jobs(experiments, plan)
    try:
        with Bars(jobs, console) as bars:
            if plan.engine == "ray":
                run_on_ray(jobs, bars.report, plan.processes)
            elif plan.processes == 1:
                run_here(jobs, bars.report)
            else:
                run_in_pool(jobs, bars.report, plan.processes)
    finally:
        # Also after Ctrl-C: the tables hold what is finished, and the next run takes up the rest.
        for experiment in experiments:
            ResultFolder(plan.folder).write_tables(experiment.name, plan.preset)
    names = [experiment.name for experiment in experiments]
    return {"preset": plan.preset, "experiments": names, "ran": len(jobs), "present": present, "folder": str(plan.folder)}


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
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("cells", total=len(jobs))
        self._running: dict[str, TaskID] = {}
        self._done = 0

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
                self._console.print(f"{self._done}/{self._total} {self._titles[key]}")
        elif key in self._titles and self._progress.disable is False:
            if key not in self._running:
                self._running[key] = self._progress.add_task(self._titles[key], total=total)
            self._progress.update(self._running[key], completed=done)
