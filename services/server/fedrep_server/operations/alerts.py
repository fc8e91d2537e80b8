"""Trouble nobody asked about: stalled runs, missing silos, epsilon near its end. Events of severity `alert`, and a webhook."""

from __future__ import annotations

import asyncio
import datetime as dt
import time

import structlog

from fedrep.errors import FedrepError
from fedrep.privacy import shown
from fedrep.protocol.attendance import Absence
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep.protocol.run_progress import RunState
from fedrep_runtime.waiting_text import waiting_text
from fedrep_server.calls.views import smallest_budget, waiting_message
from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.run_driver import RunDriver
from fedrep_server.rounds.standstill import waiting_of
from fedrep_server.store import SiloRow

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
WEBHOOK_SECONDS = 10.0


async def watch_for_trouble(coordinator: Coordinator) -> None:
    """Runs beside the server. An alert is raised once, and again only after its cause went away."""
    watch = _Watch(coordinator)
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await watch.check()
        except FedrepError as error:
            log.warning("alerts_not_checked", problem=str(error))
        except Exception:  # a fault here must not end the watch for all runs
            log.exception("alerts_failed")


class _Watch:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._settings = coordinator.settings.alerts
        self._raised: set[tuple[str, str]] = set()
        self._sent: dict[str, int] = {}
        self._away_since: dict[tuple[str, str], float] = {}
        self._waited: dict[str, tuple[SiloName, ...]] = {}

    async def check(self) -> None:
        for driver in self._coordinator.drivers:
            if driver.state in (RunState.WAITING, RunState.RUNNING):
                await self._check_run(driver)
            if self._settings.webhook is not None:
                await self._post_alerts(driver, self._settings.webhook)

    async def _check_run(self, driver: RunDriver) -> None:
        await self._say_whom_it_waits_for(driver)
        quiet = time.time() - driver.last_activity
        stalled = quiet > self._settings.stalled_after
        await self._alert(driver, "stalled", stalled, f"no round has ended for {quiet:.0f} seconds")
        if driver.state is RunState.RUNNING:
            missing = [name for name in driver.manifest.silos if self._is_missing(driver, name)]
            ends = await self._certificates(driver) if missing else {}
            for name in driver.manifest.silos:
                text = f"{name} does not answer{_expired(ends.get(name))}"
                await self._alert(driver, "silo_missing", name in missing, text, name)
        figures = await asyncio.to_thread(self._coordinator.store.summary, driver.manifest.name)
        budget, spent = smallest_budget(driver.records.options, figures), figures.epsilon_total
        near = budget is not None and (spent is None or spent >= self._settings.epsilon_warning * budget)  # None: no guarantee
        await self._alert(driver, "epsilon_budget", near, f"epsilon {shown(spent)} of a budget of {budget} is spent")
        if driver.manifest.asks_for_promise:
            await self._check_records(driver)

    async def _say_whom_it_waits_for(self, driver: RunDriver) -> None:
        """A line in the log, once per standstill and set of silos, which also brings the news to everyone who watches."""
        now = time.time()
        waiting = waiting_of(driver, now)
        still = waiting is not None and waiting.standing_still and (waiting.what == "silos" or bool(driver.present))
        names = tuple(silo.name for silo in waiting.silos) if waiting is not None and still else ()
        if names and names != self._waited.get(driver.manifest.name):
            message = waiting_message(waiting)
            assert message is not None
            number = driver.open.number if driver.open is not None else driver.last_round
            await driver.note("waiting", waiting_text(message, now), "", number, "warning")
        self._waited[driver.manifest.name] = names

    async def _check_records(self, driver: RunDriver) -> None:
        """A silo that says itself that it broke its promise. One that says nothing, or lies, is not found here."""
        run = driver.manifest
        for row in await asyncio.to_thread(self._coordinator.store.silo_rows, run.name):
            spent = f"epsilon {shown(row.record_epsilon)} at delta {row.record_delta or 0.0!r}"
            said = "there is no guarantee for" if row.record_none else f"{spent} is spent on"
            text = f"{row.name} says that {said} its training records; the run allows {run.record_limit}"
            await self._alert(driver, "record_limit", _breaks_limit(run, row), text, row.name)

    def _is_missing(self, driver: RunDriver, name: SiloName) -> bool:
        """For a while, not just now: after a restart of the server everybody is away for a moment."""
        standing = driver.attendance.standings.get(name)
        here = standing is not None and standing.present
        left = standing is not None and not here and standing.absence is Absence.LEFT  # and said so
        if here or left or name in driver.attendance.excluded:
            self._away_since.pop((driver.manifest.name, name), None)
            return False
        since = self._away_since.setdefault((driver.manifest.name, name), time.monotonic())
        return time.monotonic() - since >= self._settings.missing_after

    async def _certificates(self, driver: RunDriver) -> dict[str, float]:
        rows = await asyncio.to_thread(self._coordinator.store.silo_rows, driver.manifest.name)
        return {row.name: row.certificate_expires for row in rows}

    async def _alert(self, driver: RunDriver, kind: str, active: bool, text: str, silo: str = "") -> None:
        key = (driver.manifest.name, f"{kind}/{silo}")
        if not active:
            self._raised.discard(key)
        elif key not in self._raised:
            self._raised.add(key)
            await driver.note(kind, text, silo, driver.last_round, "alert")

    async def _post_alerts(self, driver: RunDriver, url: str) -> None:
        """From the event log, so that alerts of every origin go out; those from before this start do not."""
        name = driver.manifest.name
        store = self._coordinator.store
        if name not in self._sent:
            self._sent[name] = (await asyncio.to_thread(store.summary, name)).last_event
            return
        for stored in await asyncio.to_thread(store.events, name, self._sent[name], 100):
            event = stored.event
            if event.severity == "alert":
                body = {"run": name, "kind": event.kind, "text": event.text, "silo": event.silo}
                if not await _posted(url, body | {"round": event.round, "at": event.at}):
                    return
            self._sent[name] = stored.position


def _breaks_limit(run: RunManifest, row: SiloRow) -> bool:
    if row.record_none or row.record_epsilon is None:
        return row.record_none
    epsilon, delta = run.record_epsilon_at_most or 0.0, run.delta_at_most or 0.0
    return row.record_epsilon > epsilon or (row.record_delta or 0.0) > delta


def _expired(ends: float | None) -> str:
    """TLS turns an expired certificate away before anybody knows whose it is; the server remembers what each silo had."""
    if not ends or ends > time.time():
        return ""
    date = dt.datetime.fromtimestamp(ends, dt.UTC)
    return f": the certificate it last came with expired on {date:%Y-%m-%d %H:%M} UTC, so it must renew or enrol again"


async def _posted(url: str, body: dict[str, object]) -> bool:
    """The URL of a webhook is its password: of it the log has the host alone."""
    import httpx  # here, because it brings half a second of imports that few servers need

    try:
        async with httpx.AsyncClient(timeout=WEBHOOK_SECONDS) as client:
            (await client.post(url, json=body)).raise_for_status()
    except httpx.HTTPError as error:
        problem = str(error)
        if isinstance(error, httpx.HTTPStatusError):  # whose own sentence has the URL
            problem = f"the answer was {error.response.status_code}"
        log.warning("webhook_failed", host=httpx.URL(url).host, problem=problem)
        return False
    return True
