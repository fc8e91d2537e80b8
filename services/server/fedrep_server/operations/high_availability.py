"""Several servers on one PostgreSQL: one leads, the others stand by, ready to take over within seconds.

The order is the point. The lead is waited for, then the schema is migrated, and only then are runs read: a standby holds no
state that could be old. While it waits it passes connections on to the leader, if it was told under which address it is
reached itself, and is ready; otherwise it is alive and not ready, so that no silo is sent to it. A database that is away is
waited for, at the start too. A leader asks for its lead about once a second; once the lead is lost, or the database does not
answer in time, the process ends at once. It must not finish anything: another server may be leading, and what was not committed
is not true. The supervisor (systemd, Kubernetes) starts it again, as a standby.

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
from typing import NoReturn, Protocol

import structlog

from fedrep_server.operations.leadership import Leadership, PostgresLeadership, Seen, holder_name
from fedrep_server.store import Database
from fedrep_server.store.schema import migrate

log = structlog.get_logger(__name__)

LOST_LEAD = 75  # EX_TEMPFAIL of sysexits.h: start me again
ASK_SECONDS = 1.0
# Shorter than the time after which the database gives a silent leader's lock away (`_DATABASE_GIVES_UP` in store/database.py).
ANSWER_SECONDS = 5.0

OnLost = Callable[[], None]


class Standing(Protocol):
    """Told what a server that does not lead has seen, whenever it has asked."""

    async def stands_by(self, seen: Seen) -> None: ...
    async def leads(self) -> None:
        """The lead is this server's; nothing is read or served yet."""
        ...

    def lead_held(self) -> None:
        """The database has just confirmed it."""
        ...


async def take_the_lead(
    database: Database, address: str | None, stack: AsyncExitStack, standing: Standing, on_lost: OnLost
) -> None:
    """Returns once this server leads and the schema is its own; from then on `stack` holds what keeps and returns the lead."""
    if database.is_sqlite:
        await asyncio.to_thread(migrate, database)
        await standing.leads()
        return
    lead = PostgresLeadership(database, holder_name(socket.gethostname(), os.getpid(), address))
    stack.push_async_callback(asyncio.to_thread, lead.release)
    waited = False
    while not await asyncio.to_thread(lead.acquire, ASK_SECONDS):
        await standing.stands_by(lead.seen)
        waited = True
    await standing.leads()
    log.info("leading", after_standing_by=waited)
    stack.callback(asyncio.create_task(_keep_the_lead(lead, standing, on_lost)).cancel)


async def _keep_the_lead(lead: Leadership, standing: Standing, on_lost: OnLost) -> None:
    # A thread of its own: the loop's threads may all be busy with a round's sums, which must not look like a lost lead.
    thread = ThreadPoolExecutor(1, "lead")
    try:
        while await _held(lead, thread):
            standing.lead_held()
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
