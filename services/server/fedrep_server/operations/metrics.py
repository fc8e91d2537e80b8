"""Prometheus figures. Everything is per run, RPC or silo; never a value of a single silo's update."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from fedrep import __version__
from fedrep_server.calls.meter import FinishedCall
from fedrep_server.operations.call_figures import CallFigures
from fedrep_server.rounds.interpreter import EndedRound

PHASES = ("propose", "submit", "confirm", "reveal")


class StandingFigures:
    """Whether this server leads, and when it last heard of the database it asks for the lead."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._leads = Gauge("fedrep_leader", "1 while this server leads; a standby says 0", registry=registry)
        self._reachable = Gauge("fedrep_database_reachable", "1 while the database answers", registry=registry)
        self._answered = Gauge(
            "fedrep_database_answered_timestamp_seconds",
            "Unix time at which the database last told this server who leads",
            registry=registry,
        )

    def database_answered(self, whether: bool) -> None:
        self._reachable.set(whether)
        if whether:
            self._answered.set(time.time())

    def led(self) -> None:
        self._leads.set(1)
        self.database_answered(True)


class ServerMetrics:
    """One registry per server, so that two servers can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Gauge("fedrep_build_info", "1; the release that runs", ["version"], registry=self.registry).labels(__version__).set(1)
        self.standing = StandingFigures(self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._calls = CallFigures()
        self.registry.register(self._calls)
        self._rounds = counter("fedrep_rounds", "Rounds ended", ["run", "outcome"])
        self._failures = counter("fedrep_commit_failures", "Starts and ends of rounds that the database did not take at once")
        self._phase = histogram("fedrep_phase_seconds", "Duration of a phase", ["run", "phase"])
        self._dropouts = counter("fedrep_dropouts", "Silos missing at a stage", ["run", "stage"])
        self._buffers = counter("fedrep_buffers", "Buffers opened or not", ["run", "fate"])
        self._distance = gauge("fedrep_buffer_distance", "Distance of a buffer's mean from the update", ["run", "buffer"])
        self._range = gauge("fedrep_clip_range", "R, the range values are clipped to", ["run"])
        self._clip_rate = gauge("fedrep_clip_rate", "Share of proposers whose values the range clips", ["run"])
        self._epsilon = gauge("fedrep_epsilon_round", "Exact epsilon of one proposal; absent without guarantee", ["run"])

    def watch_disk(self, folder: Path) -> None:
        """Of the data folder; a database server's disk is its own operator's."""
        free = Gauge("fedrep_data_free_bytes", "Free space where the data folder is", registry=self.registry)
        size = Gauge("fedrep_data_size_bytes", "Size of the disk where the data folder is", registry=self.registry)
        free.set_function(lambda: shutil.disk_usage(folder).free)
        size.set_function(lambda: shutil.disk_usage(folder).total)

    def commit_failed(self) -> None:
        self._failures.inc()

    def called(self, call: FinishedCall) -> None:
        self._calls.called(call)

    def round_ended(self, ended: EndedRound) -> None:
        run, row = ended.run, ended.row
        self._rounds.labels(run, row.outcome.value).inc()
        self._range.labels(run).set(row.clip_range)
        for phase, seconds in zip(PHASES, row.phase_seconds, strict=False):
            self._phase.labels(run, phase).observe(seconds)
        self._dropouts.labels(run, "propose").inc(row.roster_size - row.proposed)
        if row.buffers:
            self._dropouts.labels(run, "submit").inc(row.proposed - row.survivors)
            self._dropouts.labels(run, "reveal").inc(ended.closed.failed_to_reveal)
        for buffer in row.buffers:
            self._buffers.labels(run, "opened" if buffer.opened else "discarded").inc()
            if buffer.distance is not None:
                self._distance.labels(run, str(buffer.number)).set(buffer.distance)
        if row.clip_rate is not None:
            self._clip_rate.labels(run).set(row.clip_rate)
        if row.epsilon is not None:
            self._epsilon.labels(run).set(row.epsilon)
