"""Where cells run: in this process, in a pool of processes, or on a Ray cluster. The result of a cell is the same.

A worker saves its cell itself, in one go, so whatever is finished stays finished when the run is interrupted.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrep.errors import FedrepError, SettingsError
from fedrep_lab.cell import Cell
from fedrep_lab.checkpoints import Checkpoints
from fedrep_lab.results import ResultFolder, code_version
from fedrep_runtime.ray_cluster import ray_cluster

FAILURES = 10  # from so many on, cells fail for something that they have in common
_WORKER_GONE = (
    "A worker was killed, as systems do that run out of memory; fewer --jobs need less. "
    "Cells that are finished stay; the same command goes on with the rest."
)
# key of the cell, rounds done, rounds in all; done = -1 says that the cell is finished
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Job:
    experiment: str
    preset: str
    cell: Cell
    folder: Path
    data_dir: Path | None
    device: str = "cpu"

    @property
    def key(self) -> str:
        return self.cell.key()


def work(job: Job, report: Report | None = None) -> str:
    """Run one cell on one thread and save it."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    # numpy has threads of its own, which spin where other cells have the cores: a cell then takes twice the time.
    with threadpool_limits(1):
        return _worked(job, report)


def _worked(job: Job, report: Report | None) -> str:
    from fedrep_lab.measurements import TASKS, measure
    from fedrep_lab.simulation import play

    checkpoints: Checkpoints | None = None
    if job.cell.task in TASKS:
        outcome = measure(job.cell, job.data_dir)
    elif job.cell.task == "train":
        tell = None if report is None else lambda done, total: report(job.key, done, total)
        unfinished = ResultFolder(job.folder).path(job.experiment, job.preset, job.cell).with_suffix(".unfinished")
        checkpoints = Checkpoints(unfinished, code_version()["sources"])
        outcome = play(job.cell, job.data_dir, tell, job.device, checkpoints)
    else:
        raise SettingsError(f"There is no task {job.cell.task!r}; choose train, {', '.join(TASKS)}.")
    ResultFolder(job.folder).save(job.experiment, job.preset, job.cell, outcome)
    if checkpoints is not None:
        checkpoints.clear()
    return job.key


class Failures:
    """Cells that cannot be run. One does not keep the others from being run; so many that something must be wrong with all do."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def add(self, job: Job, error: FedrepError) -> None:
        self._texts.setdefault(str(error), []).append(f"{job.experiment} {job.key[:6]}")
        if sum(len(cells) for cells in self._texts.values()) == FAILURES:
            self.tell()

    def tell(self) -> None:
        """Raises what was wrong, if anything was."""
        if self._texts:
            said = [f"{text} ({_some(cells)})" for text, cells in self._texts.items()]
            raise SettingsError(" ".join(said) + " Cells that are finished stay; the same command goes on with the rest.")


def _some(cells: list[str]) -> str:
    shown = ", ".join(cells[:3])
    return f"in {shown}" if len(cells) <= 3 else f"in {shown} and {len(cells) - 3} more"


def run_here(jobs: Iterable[Job], report: Report) -> None:
    failures = Failures()
    for job in jobs:
        try:
            work(job, report)
        except FedrepError as error:
            failures.add(job, error)
        report(job.key, -1, 0)
    failures.tell()


def run_in_pool(jobs: Iterable[Job], report: Report, processes: int) -> None:
    failures = Failures()
    try:
        _in_pool(jobs, report, processes, failures)
    except BrokenProcessPool as error:
        raise FedrepError(_WORKER_GONE, reason="WORKER_GONE") from error
    failures.tell()


def _in_pool(jobs: Iterable[Job], report: Report, processes: int, failures: Failures) -> None:
    """Spawned, not forked: torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    with ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(told,)) as pool:
        asked: dict[Future[str], Job] = {pool.submit(_work_and_tell, job): job for job in jobs}
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for message in _drained(told):
                    report(*message)
                for future in done:
                    job = asked.pop(future)
                    try:
                        future.result()
                    except FedrepError as error:
                        failures.add(job, error)
                    report(job.key, -1, 0)
        except BaseException:
            for future in waiting:
                future.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_on_ray(jobs: Iterable[Job], report: Report, processes: int) -> None:
    """Cells as Ray tasks of one CPU, or one GPU, each. On a cluster, `folder` and `data_dir` must be shared folders."""
    failures = Failures()
    with ray_cluster(processes) as ray:
        asked = {
            ray.remote(num_cpus=1, num_gpus=int(job.device.startswith("cuda")), max_retries=2)(work).remote(job): job
            for job in jobs
        }
        waiting = list(asked)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            for reference in done:
                job = asked.pop(reference)
                try:
                    ray.get(reference)
                except FedrepError as error:  # Ray raises what the worker did, as both kinds, with the traceback for its text
                    cause = getattr(error, "cause", None)
                    failures.add(job, cause if isinstance(cause, FedrepError) else error)
                report(job.key, -1, 0)
    failures.tell()


_told: Any = None


def _start_worker(told: Any) -> None:
    global _told
    _told = told
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker at once; the parent says so for all
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers, which would go on with the cells they were handed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_and_tell(job: Job) -> str:
    return work(job, lambda key, done, total: _told.put((key, done, total)) if done % 10 == 0 else None)


def _drained(told: Any) -> Iterator[tuple[str, int, int]]:
    while True:
        try:
            yield told.get_nowait()
        except queue.Empty:
            return
