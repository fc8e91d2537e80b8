"""Large models: every silo in a process of its own, as in production. Milliseconds of processor time, seconds, and peak memory.

    python -m benchmarks.large [--silos 4 --parameters 100000000] [--rounds 5] [--json PATH]

Memory is what the kernel says of each process, Python and all libraries included, since its start; of a silo without the two
vectors that its trainer holds (what it subtracts, and its result). All processes share this machine's cores and its disk. A
silo's processor time is given on average over all rounds, some of which write whole files, and for the best and the median one.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from benchmarks.idle_silos import IdleSilo, Shape, cpu_seconds, served_run, subtracting
from benchmarks.machine import save
from benchmarks.measuring import peak_mb
from fedrep.protocol.silo_effects import FailedTraining, News, Problem, RoundOver, RunRefused
from fedrep_runtime.collector import settle_collector

FLOAT_BYTES = 4
VECTORS = 4  # that server and silo may hold at once
CASES = ((8, 20_000_000, 10), (4, 100_000_000, 5))  # silos, parameters, rounds


@dataclass
class Clock:
    """What each silo had used when each round was over for it."""

    silos: int
    used: dict[int, list[float]] = field(default_factory=dict)
    at: dict[int, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    def over(self, name: str, number: int, cpu: float, peak: float) -> bool:
        self.used.setdefault(number, []).append(cpu)
        self.peaks[name] = peak
        if len(self.used[number]) == self.silos:
            self.at[number] = time.perf_counter()
        return number in self.at


def run_silo(shape: Shape, number: int, name: str, folder: Path, port: int, pipe: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

    def hear(news: News) -> None:
        match news:
            case RoundOver(_, update) if not news.applied:
                pipe.send(("failed", f"round {update.round} was skipped: {update.reason}"))
            case RoundOver(_, update):
                peak = peak_mb()
                pipe.send((name, update.round, cpu_seconds() - silo.training_cpu, peak))
            case Problem(_, error) | RunRefused(_, _, error):
                pipe.send(("failed", str(error)))
            case FailedTraining(_, text):
                pipe.send(("failed", text))

    silo = IdleSilo(f"localhost:{port}", folder / name, subtracting(shape)(number), hear)
    settle_collector()
    asyncio.run(_whole_run(silo))


async def _whole_run(silo: IdleSilo) -> None:
    await silo.run()
    await silo.connection.close()


async def play(shape: Shape, warm_up: int = 2) -> dict[str, Any]:
    whole = replace(shape, rounds=shape.rounds + warm_up)
    clock, context = Clock(shape.silos), multiprocessing.get_context("spawn")
    async with served_run(whole, subtracting(whole)) as (folder, port, names, server):
        ends, processes = [], []
        for number, name in enumerate(names):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_silo, args=(whole, number, name, folder, port, theirs), daemon=True)
            process.start()
            ends.append(ours)
            processes.append(process)
        figures = await asyncio.to_thread(_watch, clock, ends, server, warm_up, whole.rounds)
        for process in processes:
            await asyncio.to_thread(process.join, 60)
    rounds = range(warm_up + 1, whole.rounds + 1)
    seconds = [clock.at[number] - clock.at[number - 1] for number in rounds]
    silo = [1e3 * (sum(clock.used[number]) - sum(clock.used[number - 1])) / shape.silos for number in rounds]
    trainer = 2 * FLOAT_BYTES * shape.parameters / 2**20
    return {
        "silos": shape.silos,
        "parameters": shape.parameters,
        "rounds": shape.rounds,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "s_per_round_min": min(seconds),
        "s_per_round_median": statistics.median(seconds),
        "cpu_ms_server": 1e3 * figures["cpu"] / shape.rounds,
        "cpu_ms_per_silo": statistics.fmean(silo),
        "cpu_ms_per_silo_min": min(silo),
        "cpu_ms_per_silo_median": statistics.median(silo),
        "server_peak_mb": figures["peak_mb"],
        "silo_peak_mb": max(clock.peaks.values()) - trainer,
        "limit_mb": VECTORS * FLOAT_BYTES * shape.parameters / 2**20,
    }


def _watch(clock: Clock, ends: list[Connection], server: Any, warm_up: int, last: int) -> dict[str, Any]:
    """Until the last round is over for all; counting starts after the warm-up."""
    while True:
        for end in multiprocessing.connection.wait(ends):
            assert isinstance(end, Connection)
            try:
                message = end.recv()
            except EOFError:
                raise SystemExit("a silo ended before the run did; its error stands above") from None
            if message[0] == "failed":
                raise SystemExit(message[1])
            name, number, cpu, peak = message
            if clock.over(name, number, cpu, peak) and number in (warm_up, last):
                server.send("reset" if number == warm_up else "figures")
                answer = server.recv()
                if number == last:
                    figures: dict[str, Any] = answer
                    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--parameters", type=int, help="one case of this size, not those of 2e7 and 1e8")
    parser.add_argument("--rounds", type=int, default=5, help="of that case")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    cases = CASES if options.parameters is None else ((options.silos, options.parameters, options.rounds),)
    results = []
    for silos, parameters, rounds in cases:
        results.append(asyncio.run(play(Shape(silos, parameters, 0.05, min(4, silos // 2), rounds))))
        show(results[-1])
    if options.json:
        save(options.json, {"cases": results})


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['silos']} silos, d = {result['parameters']:,}, K = 0.05 d, {result['rounds']} rounds, {result['cores']} cores, "
        f"load {result['load']:.1f}"
    )
    print(f"  round   {result['s_per_round_min']:8.2f} s at best, {result['s_per_round_median']:.2f} s median")
    print(
        f"  CPU     {result['cpu_ms_server']:8.0f} ms server, {result['cpu_ms_per_silo']:.0f} ms a silo, besides training: "
        f"{result['cpu_ms_per_silo_min']:.0f} ms at best, {result['cpu_ms_per_silo_median']:.0f} ms median"
    )
    print(
        f"  memory  {result['server_peak_mb']:8.0f} MB server, {result['silo_peak_mb']:.0f} MB a silo besides its trainer; "
        f"{VECTORS} vectors are {result['limit_mb']:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
