"""Figures that are true at the moment Prometheus asks, also after a restart: how each run stands, what its silos have spent,
who is there, when the certificate ends."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fedrep.errors import FedrepError
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.run_progress import RunState
from fedrep_identity.certificates import Credentials
from fedrep_server.calls.views import silo_state
from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.standstill import waiting_of
from fedrep_server.store import SiloRow


class RecordFamilies:
    """What silos say that their training records have cost, each for itself. Whoever does not say has no figure."""

    def __init__(self) -> None:
        by_silo = ["run", "silo"]
        self._spent = GaugeMetricFamily(
            "fedrep_record_epsilon",
            "Epsilon that a silo says one of its training records has cost; infinite without guarantee, absent if not reported",
            labels=by_silo,
        )
        self._budget = GaugeMetricFamily(
            "fedrep_record_budget", "The most that a record may cost, as the silo says", labels=by_silo
        )
        self._limit = GaugeMetricFamily(
            "fedrep_record_epsilon_at_most", "The most that the run asks its silos to promise; absent if nothing", labels=["run"]
        )

    def add(self, run: RunManifest, silos: Sequence[SiloRow]) -> None:
        if run.record_epsilon_at_most is not None:
            self._limit.add_metric([run.name], run.record_epsilon_at_most)
        for silo in silos:
            epsilon = math.inf if silo.record_none else silo.record_epsilon
            if epsilon is not None:
                self._spent.add_metric([run.name, silo.name], epsilon)
            if silo.record_budget is not None:
                self._budget.add_metric([run.name, silo.name], silo.record_budget)

    def __iter__(self) -> Iterator[GaugeMetricFamily]:
        yield from (self._spent, self._budget, self._limit)


class RunCollector(Collector):
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        by_run = ["run"]
        active = GaugeMetricFamily("fedrep_run_active", "1 while a run waits for silos or plays rounds", labels=by_run)
        quiet = GaugeMetricFamily(
            "fedrep_run_quiet_seconds", "Time since a round ended, the server started or the first silo came", labels=by_run
        )
        still = GaugeMetricFamily(
            "fedrep_run_standing_still",
            "1 while a run has too few silos, or waits far longer for some than for the others",
            labels=by_run,
        )
        waited = GaugeMetricFamily("fedrep_silos_waited_for", "Silos that the open round waits for", labels=by_run)
        lost = GaugeMetricFamily("fedrep_silos_lost", "Silos whose connection was lost, or that fell silent", labels=by_run)
        present = GaugeMetricFamily("fedrep_silos_present", "Silos that joined and answer", labels=by_run)
        allowed = GaugeMetricFamily("fedrep_silos_allowed", "Silos of the run, without excluded ones", labels=by_run)
        quorum = GaugeMetricFamily("fedrep_silos_quorum", "Silos a round needs", labels=by_run)
        number = GaugeMetricFamily("fedrep_round", "Last round that ended", labels=by_run)
        version = GaugeMetricFamily("fedrep_model_version", "Latest model version", labels=by_run)
        spent = GaugeMetricFamily(
            "fedrep_epsilon_spent",
            "Largest sum of epsilon over the proposals of one silo, counted here or told by it; infinite without guarantee",
            labels=by_run,
        )
        rounds = CounterMetricFamily(
            "fedrep_run_rounds",
            "Rounds that a run has had, by the database: restarts and the rounds they skipped are in it",
            labels=["run", "outcome"],
        )
        ends = GaugeMetricFamily(
            "fedrep_silo_certificate_expires_timestamp_seconds",
            "Unix time at which the certificate ends with which a silo last joined",
            labels=["run", "silo"],
        )
        records = RecordFamilies()
        for driver in self._coordinator.drivers:
            labels, attendance = [driver.manifest.name], driver.attendance
            active.add_metric(labels, driver.state in (RunState.WAITING, RunState.RUNNING))
            quiet.add_metric(labels, time.time() - driver.last_activity)
            present.add_metric(labels, len(driver.present - attendance.excluded))
            allowed.add_metric(labels, len(set(driver.manifest.silos) - attendance.excluded))
            waiting = waiting_of(driver, time.time())
            still.add_metric(labels, waiting is not None and waiting.standing_still)
            waited.add_metric(labels, len(waiting.silos) if waiting is not None and waiting.what == "silos" else 0)
            lost.add_metric(labels, sum(silo_state(driver, name) == "lost" for name in driver.manifest.silos))
            quorum.add_metric(labels, driver.manifest.quorum)
            number.add_metric(labels, driver.last_round)
            version.add_metric(labels, driver.model.state.version)
            with suppress(FedrepError):  # a database that is away costs this figure, not the others
                figures = self._coordinator.store.summary(driver.manifest.name)
                spent.add_metric(labels, math.inf if figures.epsilon_total is None else figures.epsilon_total)
                rounds.add_metric([*labels, "applied"], figures.rounds_applied)
                rounds.add_metric([*labels, "skipped"], figures.rounds_skipped)
                silos = self._coordinator.store.silo_rows(driver.manifest.name)
                records.add(driver.manifest, silos)
                for silo in (row for row in silos if row.certificate_expires):
                    ends.add_metric([*labels, silo.name], silo.certificate_expires)
        yield from (
            *(active, quiet, still, waited, lost, present, allowed, quorum, number, version, spent, rounds, ends),
            *records,
        )
        yield from self._certificate()

    def _certificate(self) -> Iterator[GaugeMetricFamily]:
        """From the folder, where a renewed one appears."""
        try:
            ends = Credentials.load(self._coordinator.settings.credentials).certificate.not_valid_after_utc
        except FedrepError:
            return  # half replaced; the next question finds the whole
        yield GaugeMetricFamily(
            "fedrep_certificate_expires_timestamp_seconds", "Unix time at which the server's certificate ends", ends.timestamp()
        )
