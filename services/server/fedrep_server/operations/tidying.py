"""Runs that have been over for long are deleted, if the settings say so; what silos have spent stays."""

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


async def delete_old_runs(coordinator: Coordinator) -> None:
    """Runs beside the server for as long as it lives; returns at once where everything is kept."""
    days = coordinator.settings.retention.finished_days
    if days is None:
        return
    while True:
        try:
            await delete_runs_over_since(coordinator, time.time() - days * DAY)
        except FedrepError as error:
            log.warning("runs_not_deleted", problem=str(error))
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
