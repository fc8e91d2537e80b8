"""What settings do not keep: runs that have been over for long, and the details of old rounds. What silos have spent stays."""

from __future__ import annotations

import asyncio
import time

import structlog

from fedrep.errors import FedrepError
from fedrep.protocol.run_progress import RunState
from fedrep_server.rounds.coordinator import Coordinator

log = structlog.get_logger(__name__)

DAY = 86400.0
LOOK_SECONDS = 3600.0
ROUNDS_AT_ONCE = 500  # in one transaction, for which a round's commit may have to wait


async def tidy_up(coordinator: Coordinator) -> None:
    """Runs beside the server for as long as it lives; returns at once where everything is kept."""
    retention = coordinator.settings.retention
    works = [
        (work, days)
        for work, days in ((delete_runs_over_since, retention.finished_days), (trim_rounds_before, retention.details_days))
        if days is not None
    ]
    while works:
        for work, days in works:
            try:
                await work(coordinator, time.time() - days * DAY)
            except FedrepError as error:
                log.warning("past_not_let_go", work=work.__name__, problem=str(error))
        await asyncio.sleep(LOOK_SECONDS)


async def delete_runs_over_since(coordinator: Coordinator, moment: float) -> None:
    """By a run's last event, which is its end or something after it."""
    for driver in coordinator.drivers:
        if driver.state not in (RunState.FINISHED, RunState.STOPPED):
            continue
        name = driver.manifest.name
        last = (await asyncio.to_thread(coordinator.store.summary, name)).last_event
        events = await asyncio.to_thread(coordinator.store.events, name, last - 1, 1)
        if events and events[-1].event.at < moment:
            await coordinator.delete_run(driver)


async def trim_rounds_before(coordinator: Coordinator, moment: float) -> None:
    """Of all runs that are there, whether they go on or are over."""
    for driver in coordinator.drivers:
        name, trimmed = driver.manifest.name, 0
        while found := await asyncio.to_thread(coordinator.store.trim_rounds, name, moment, ROUNDS_AT_ONCE):
            trimmed += found
        if trimmed:
            log.info("rounds_trimmed", run=name, rounds=trimmed)
