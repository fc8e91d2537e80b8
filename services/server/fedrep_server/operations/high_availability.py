"""Several servers on one PostgreSQL: one leads, the others stand by, ready to take over within seconds.

The order is the point. The store is opened, then the lead is waited for, and only then are runs read: a standby holds no
state that could be old. While it waits, the process is alive and not ready, so that no silo is sent to it. A leader asks
for its lead about once a second; once the lead is lost, or the database does not answer in time, the process ends at once.
It must not finish anything: another server may be leading, and what was not committed is not true. The supervisor (systemd,
Kubernetes) starts it again, as a standby.

On SQLite there is one server, held by the lock on its data folder.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NoReturn

import structlog

from fedrep_server.operations.leadership import Leadership, leadership_of
from fedrep_server.store import Database

log = structlog.get_logger(__name__)

LOST_LEAD = 75  # EX_TEMPFAIL of sysexits.h: start me again
ASK_SECONDS = 1.0
# Shorter than the time after which the database gives a silent leader's lock away (`_DATABASE_GIVES_UP` in store/database.py).
ANSWER_SECONDS = 5.0

OnLost = Callable[[], None]


async def take_the_lead(database: Database, data_folder: Path, stack: AsyncExitStack, on_lost: OnLost) -> None:
    """Returns once this server leads; from then on `stack` holds what keeps the lead and gives it back at the end."""
    if database.is_sqlite:
        return
    lead = leadership_of(database, data_folder, f"{socket.gethostname()}/{os.getpid()}")
    stack.push_async_callback(asyncio.to_thread, lead.release)
    waited = False
    while not await asyncio.to_thread(lead.acquire, ASK_SECONDS):
        if not waited:
            log.info("standing_by", why="another server leads, or the database does not answer")
            waited = True
    log.info("leading", after_standing_by=waited)
    stack.callback(asyncio.create_task(_keep_the_lead(lead, on_lost)).cancel)


async def _keep_the_lead(lead: Leadership, on_lost: OnLost) -> None:
    # A thread of its own: the loop's threads may all be busy with a round's sums, which must not look like a lost lead.
    thread = ThreadPoolExecutor(1, "lead")
    try:
        while await _held(lead, thread):
            await asyncio.sleep(ASK_SECONDS)
    finally:
        thread.shutdown(wait=False)
    on_lost()


async def _held(lead: Leadership, thread: ThreadPoolExecutor) -> bool:
    answer = asyncio.get_running_loop().run_in_executor(thread, lead.hold)
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS)
    except TimeoutError:
        return False


def end_process() -> NoReturn:
    """As a crash would, which everything here is built for. A tidy end would wait for threads that wait for the database."""
    log.critical("lead_lost", do="nothing; the process ends and must be started again", exit_code=LOST_LEAD)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST_LEAD)
