"""Thousands of rounds on end: 2,000 with 32 silos that train nothing, then 200 with 128, over real gRPC and mTLS.

Slow leaks show here and nowhere else; the verdict says how slow they may be to be seen. Twenty times on the way it notes what
server and silos occupy (resident memory, open files, threads, tasks of the silos' event loop), what a round cost in processor
time, and how long it took. The first windows are those in which caches and pools fill up; from then on memory has to stay within
5 percent and cost within 10. A machine that others use is now slower and now faster, so after every round a fixed piece of work
is timed as well, and cost is counted in its time. All silos have to hear of the end of the last round, and of all but a hundredth
of the others. The server is a process of its own, all silos share another: memory of one silo is their process's divided by their
number.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from benchmarks.idle_silos import Shape, Stopwatch, federation
from benchmarks.machine import machine, save
from fedrep.protocol.silo_effects import News, RoundOver

YARD = bytes(1 << 18)
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
TICKS = os.sysconf("SC_CLK_TCK")
MEMORY_LIMIT, COST_LIMIT = 1.05, 1.10
MISSED_LIMIT = 0.01  # of the rounds: skipped, or somebody did not hear of their end
COSTS = ("server_cpu_ms", "silos_cpu_ms")
COUNTS, COUNT_SLACK = ("server_files", "silos_files", "server_threads", "silos_threads", "tasks"), 4
SETTLING = 0.25  # of the rounds: caches, pools and the allocator's arenas fill up


@dataclass(frozen=True, slots=True)
class Process:
    """What a process occupies and has used, as the kernel counts it."""

    mb: float
    files: int
    threads: int
    cpu: float

    @classmethod
    def of(cls, pid: int) -> Process:
        home = Path(f"/proc/{pid}")
        fields = (home / "stat").read_text().rpartition(")")[2].split()
        pages = int((home / "statm").read_text().split()[1])
        return cls(
            pages * PAGE_MB, len(list((home / "fd").iterdir())), int(fields[17]), (int(fields[11]) + int(fields[12])) / TICKS
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Some rounds in a row: what was occupied at their end, and what one of them cost."""

    last_round: int
    server_mb: float
    silos_mb: float
    server_files: int
    silos_files: int
    server_threads: int
    silos_threads: int
    tasks: int
    server_cpu_ms: float
    silos_cpu_ms: float
    ms: float
    ms_least: float
    yardstick_ms: float = 1.0


def yardstick() -> float:
    """Seconds of processor time for work that never changes, of the kinds that a round is made of: Python, and hashing."""
    started = time.thread_time()
    for number in range(4):
        hashlib.sha256(YARD).digest()
        {str(each): each for each in range(number, number + 2_000)}
    return time.thread_time() - started


class Watch:
    """Told of every round's end; makes the windows and shows them as they come."""

    def __init__(self, size: int, server: int, keep: Callable[[list[Window]], None]) -> None:
        self.windows: list[Window] = []
        self._keep = keep
        self._size = size
        self._pids = (server, os.getpid())
        self._before = self._look()
        self._laps: list[float] = []
        self._yards: list[float] = []
        self._since = time.perf_counter()
        self.ended = self.last = 0  # rounds of whose end all silos have heard, and the last of them

    def _look(self) -> tuple[Process, Process]:
        return Process.of(self._pids[0]), Process.of(self._pids[1])

    def round_ended(self, number: int) -> None:
        now = time.perf_counter()
        self.ended, self.last = self.ended + 1, number
        self._laps.append(1e3 * (now - self._since))
        self._yards.append(1e3 * yardstick())
        self._since = time.perf_counter()
        if len(self._laps) < self._size:
            return
        (server, silos), (was_server, was_silos) = self._look(), self._before
        laps = sorted(self._laps)
        window = Window(
            number,
            server.mb,
            silos.mb,
            server.files,
            silos.files,
            server.threads,
            silos.threads,
            len(asyncio.all_tasks()),
            1e3 * (server.cpu - was_server.cpu) / len(laps),
            1e3 * (silos.cpu - was_silos.cpu) / len(laps),
            statistics.median(laps),
            laps[len(laps) // 10],
            statistics.mean(self._yards),
        )
        self.windows.append(window)
        self._before, self._laps = (server, silos), []
        self._yards = []
        self._keep(self.windows)
        print(
            f"  {number:6d}  {server.mb:8.1f} {silos.mb:8.1f} MB  {server.files:4d} {silos.files:4d} files  "
            f"{server.threads:3d} {silos.threads:3d} threads {window.tasks:5d} tasks  "
            f"{window.server_cpu_ms:7.1f} {window.silos_cpu_ms:7.1f} ms CPU (yardstick {window.yardstick_ms:4.2f})  "
            f"{window.ms:7.1f} ms",
            flush=True,
        )


class PatientStopwatch(Stopwatch):
    """A round that is skipped is noted and counts as one: a machine that somebody freezes for a while loses every connection."""

    def __init__(self, silos: int, ended: Callable[[int], None]) -> None:
        super().__init__(silos, ended)
        self.skipped: set[int] = set()

    def hear(self, news: News) -> None:
        if isinstance(news, RoundOver) and not news.applied:
            self.skipped.add(news.update.round)
            self._over[news.update.round] += 1
            if self._over[news.update.round] == self._silos:
                self._lap(news.update.round)
        else:
            super().hear(news)


@dataclass(frozen=True, slots=True)
class Played:
    """Of so many rounds, those of whose end all silos heard, the last of them, and those that were skipped."""

    rounds: int
    ended: int
    last: int
    skipped: int

    @property
    def whole(self) -> bool:
        """A silo that falls silent lets the others go on, and would look like a run that ended well."""
        missed = self.rounds - self.ended + self.skipped
        return self.last == self.rounds and missed <= MISSED_LIMIT * self.rounds


async def soak(shape: Shape, window: int, keep: Callable[[list[Window]], None]) -> tuple[list[Window], Played]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"{shape.silos} silos, d = {shape.parameters:,}, {shape.rounds} rounds; server and all silos together, per round")
    async with federation(shape) as (make_silos, _):
        (server,) = (child.pid for child in multiprocessing.active_children())
        assert server is not None
        watch = Watch(window, server, keep)
        stopwatch = PatientStopwatch(shape.silos, watch.round_ended)
        silos = make_silos(stopwatch.hear)
        async with asyncio.TaskGroup() as group:
            for silo in silos:
                group.create_task(silo.run())
        await asyncio.gather(*(silo.connection.close() for silo in silos))
    if stopwatch.skipped:
        print(f"  rounds that were skipped: {sorted(stopwatch.skipped)}")
    return watch.windows, Played(shape.rounds, watch.ended, watch.last, len(stopwatch.skipped))


def verdict(windows: list[Window], played: Played | None = None, silos: int = 32) -> dict[str, Any]:
    """The last windows against those right after things have settled; `flat` says whether all limits hold.

    Silos of one process share the threads in which they train, and make another whenever more of them than ever train at once: a
    few more in their number are no growth.

    `growth_kb` is what a round adds to the memory, by the straight line through the windows; `seen_kb` is the least that the
    limit would not let pass. Without `played` it is the verdict on a run that goes on.
    """
    rest = windows[max(1, int(SETTLING * len(windows))) :] if len(windows) > 1 else windows
    span = max(1, len(rest) // 4)
    early, late = rest[:span], rest[-span:]

    slack = dict.fromkeys(COUNTS, COUNT_SLACK) | {"silos_threads": max(COUNT_SLACK, silos // 8)}

    def ratio(name: str) -> float:
        before, after = (float(statistics.median(_measured(w, name) for w in some)) for some in (early, late))
        spare = slack.get(name, 0)
        return max(after - spare, min(after, before)) / max(before, 1e-9)

    memory = {name: ratio(name) for name in ("server_mb", "silos_mb")}
    cost = {name: ratio(name) for name in COSTS}
    counts = {name: ratio(name) for name in COUNTS}
    growth = {name: _slope(rest, name) * 1024 for name in memory}
    between = max(1.0, statistics.median(w.last_round for w in late) - statistics.median(w.last_round for w in early))
    seen = {name: (MEMORY_LIMIT - 1) * statistics.median(getattr(w, name) for w in early) * 1024 / between for name in memory}
    flat = (
        all(value <= MEMORY_LIMIT for value in memory.values())
        and all(value <= COST_LIMIT for value in cost.values())
        and all(value <= MEMORY_LIMIT for value in counts.values())
        and (played is None or played.whole)
    )
    told = {"memory": memory, "cost": cost, "counts": counts, "latency": ratio("ms_least"), "growth_kb": growth, "seen_kb": seen}
    return told | ({} if played is None else asdict(played)) | {"flat": flat}


def _measured(window: Window, name: str) -> float:
    """Processor time in yardsticks: how fast the machine was in this window takes no part."""
    value = float(getattr(window, name))
    return value / window.yardstick_ms if name in COSTS else value


def _slope(windows: list[Window], name: str) -> float:
    """In megabytes a round."""
    if len(windows) < 2:
        return 0.0
    return statistics.linear_regression([w.last_round for w in windows], [getattr(w, name) for w in windows]).slope


def print_verdict(result: dict[str, Any]) -> None:
    for part, limit in (("memory", MEMORY_LIMIT), ("counts", MEMORY_LIMIT), ("cost", COST_LIMIT)):
        for name, value in result[part].items():
            print(f"  {name:15s} {value:6.3f} of what it was (limit {limit}){'' if value <= limit else '  TOO MUCH'}")
    for name, value in result["growth_kb"].items():
        print(f"  {name:15s} {value:6.1f} KB a round; {result['seen_kb'][name]:.1f} would be too much")
    if "ended" in result:
        print(f"  {result['ended']} of {result['rounds']} rounds were ended by all silos, {result['skipped']} of them skipped")
    print(f"  a quick round took {result['latency']:.3f} of what it took (wall time, which the machine's other work moves)")
    print("  flat" if result["flat"] else "  NOT FLAT", flush=True)


def _keep(
    result: dict[str, Any],
    part: dict[str, Any],
    started: float,
    path: Path | None,
    windows: list[Window],
    played: Played | None = None,
) -> None:
    """What is known by now, also of a run that somebody ends early."""
    so_far = {"played": windows[-1].last_round, "seconds": time.perf_counter() - started}
    part.update(so_far, windows=[asdict(each) for each in windows], verdict=verdict(windows, played, part["silos"]))
    if path is not None:
        save(path, result)


def _finished(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    parts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["parts"]
    return [part for part in parts if part["played"] >= part["rounds"] and "commit" in part]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="with 32 silos")
    parser.add_argument("--large-rounds", type=int, default=200, help="with 128 silos")
    parser.add_argument("--parameters", type=int, default=20_000)
    parser.add_argument(
        "--json", type=Path, help="also write the figures to this file, as they come; finished parts in it are kept"
    )
    parser.add_argument("--fresh", action="store_true", help="play all parts again")
    options = parser.parse_args()
    before = [] if options.fresh else _finished(options.json)
    result: dict[str, Any] = {"parts": []}
    parts = ((32, options.rounds, max(1, options.rounds // 20)), (128, options.large_rounds, max(1, options.large_rounds // 10)))
    for silos, rounds, window in parts:
        if not rounds:
            continue
        shape = Shape(silos, options.parameters, 0.05, 4, rounds, "geometric_median", byzantine=1)
        wanted = {"silos": silos, "rounds": rounds, "parameters": options.parameters}
        known = next((part for part in before if wanted.items() <= part.items()), None)
        if known is not None:
            print(f"{silos} silos, {rounds} rounds: played before, at commit {known['commit']}")
            result["parts"].append(known)
            continue
        part: dict[str, Any] = {**wanted, "commit": machine()["commit"]}
        result["parts"].append(part)
        keep = partial(_keep, result, part, time.perf_counter(), options.json)
        keep(*asyncio.run(soak(shape, window, keep)))
        print_verdict(part["verdict"])
    return 0 if all(part["verdict"]["flat"] for part in result["parts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
