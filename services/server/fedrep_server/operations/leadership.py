"""One leader at a time. On PostgreSQL an advisory lock says who may lead, and a term number keeps a former leader out.

The lock lives as long as its session: when the leader dies or is cut off, the database drops the lock and a standby gets
it. A former leader that has not noticed yet is stopped by the fence: every write transaction checks, in the database,
that the lock's session still holds it and that the term has not moved on. The check keeps the term's row locked until
commit, and a new leader raises the term before it reads anything: what the old one still commits, the new one sees. A
transaction that is not committed within seconds, of a leader that was frozen, is ended from here: the database would end
them too, but one after the other, where one waits for a row of the next. The
schema is migrated by whoever has just got the lead, after that: never under another leader.

Who lost the lead ends its process and starts afresh: nothing that it knew from before may reach the store.

On SQLite the lock is on the data folder, held by the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection, NullPool, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep_runtime.files import lock_folder
from fedrep_server.store.database import Database, make_engine, sentence
from fedrep_server.store.schema import migrate
from fedrep_server.store.tables import leadership

log = structlog.get_logger(__name__)

LEADER_LOCK = 0x666564726C  # "fedrl"
RETRY_SECONDS = 0.5
# How long a former leader may take for what it is committing when its lock is gone.
GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last vain attempt saw: why the database could not be asked, or, if it answered, the address of the leader.

    The address is empty where the leader has given none.
    """

    leader: str = ""
    trouble: str = ""


class Leadership(Protocol):
    def acquire(self, wait_seconds: float | None = None) -> bool:
        """Become the leader; False when `wait_seconds` pass first (None: wait on, until `release`)."""
        ...

    def hold(self) -> bool:
        """Call every second or so while leading; False, for good, once the lead is lost."""
        ...

    @property
    def lost(self) -> bool: ...
    def release(self) -> None: ...


def leadership_of(database: Database, data_folder: Path, holder: str, revision: str = "head") -> Leadership:
    """`holder` names this server to the operator, for example its host name. `revision`: of the schema, on PostgreSQL."""
    return FolderLeadership(data_folder) if database.is_sqlite else PostgresLeadership(database, holder, revision)


class FolderLeadership:
    """The kernel keeps the lock as long as the process lives, so it cannot be lost, only released."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = ExitStack()
        self._released = threading.Event()
        self.lost = False

    def acquire(self, wait_seconds: float | None = None) -> bool:
        return _retry(self._try, wait_seconds, self._released)

    def _try(self) -> bool:
        try:
            self._lock.enter_context(lock_folder(self._folder))
        except SettingsError as error:
            if error.reason != "FOLDER_IN_USE":
                raise
            return False
        return True

    def hold(self) -> bool:
        return not self.lost

    def release(self) -> None:
        self.lost = True
        self._released.set()
        self._lock.close()


class PostgresLeadership:
    """Also the fence of its database, from `acquire` on: what is not written as the leader is not written at all."""

    def __init__(self, database: Database, holder: str, revision: str = "head", grace_seconds: float = GRACE_SECONDS) -> None:
        self._database = database
        self._holder = holder
        self._revision = revision
        self._grace_seconds = grace_seconds
        self._engine = make_engine(database.url, poolclass=NullPool)
        self._session: Connection | None = None
        self._one_caller = threading.Lock()
        self._released = threading.Event()
        self._term = 0
        self._pid = 0
        self.lost = False
        self.seen = Seen()

    def acquire(self, wait_seconds: float | None = None) -> bool:
        return _retry(self._try, wait_seconds, self._released)

    def _try(self) -> bool:
        """A database that is away is waited for: this server may be the one that is there when it comes back."""
        with self._one_caller:
            try:
                session = self._session or self._connect()
                if not session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LEADER_LOCK}).scalar_one():
                    self.seen = Seen(leader=_address_of_leader(session))
                    return False
                term = self._raise_term(session) if _has_tables(session) else None
                migrate(self._database, self._revision)
                self._term = self._raise_term(session) if term is None else term
                self._pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
            except DBAPIError as error:
                self.seen = Seen(trouble=sentence(self._database.shown, error.orig or error))
                self._disconnect()
                return False
            except StoreUnavailableError as error:
                self.seen = Seen(trouble=str(error))
                self._disconnect()
                return False
            self._database.fence = self
            return True

    def _raise_term(self, session: Connection) -> int:
        """Waits for whatever the former leader is committing at this moment, and ends what it does not commit."""
        raised = update(leadership).values(term=leadership.c.term + 1, holder=self._holder).returning(leadership.c.term)
        session.execute(text(f"SET lock_timeout = {max(1, round(1000 * self._grace_seconds))}"))
        try:
            while True:
                try:
                    return int(session.execute(raised).scalar_one())
                except OperationalError as error:
                    if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE or self._released.is_set():
                        raise
                self._end_transactions_of_the_former_leader(session)
        finally:
            if not session.invalidated:
                session.execute(text("RESET lock_timeout"))

    def _end_transactions_of_the_former_leader(self, session: Connection) -> None:
        try:
            ended = session.execute(_END_FENCED).scalars().all()
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
                raise
            return  # it came as another user; the database ends them after a while by itself
        log.warning("ended_transactions_of_former_leader", count=len(ended), why="not committed in time after its lead was lost")

    def _connect(self) -> Connection:
        self._session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return self._session

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.invalidate()
            session.close()

    def hold(self) -> bool:
        with self._one_caller:
            if self.lost or self._session is None:
                self.lost = True
                return False
            try:
                self._session.execute(text("SELECT 1"))
            except SQLAlchemyError:
                self.lost = True
                self._disconnect()
            return not self.lost

    def check(self, connection: Connection) -> None:
        if self.lost:
            raise _not_leader()
        term = connection.execute(select(leadership.c.term).with_for_update(read=True)).scalar_one()
        held = connection.execute(_LOCK_HELD, {"pid": self._pid, "high": LEADER_LOCK >> 32, "low": LEADER_LOCK & 0xFFFFFFFF})
        if term != self._term or held.first() is None:
            self.lost = True
            raise _not_leader()

    def release(self) -> None:
        """After the last write. The fence stays: a straggler must not write behind the next leader's back."""
        self.lost = True
        self._released.set()
        with self._one_caller:
            if self._session is not None:
                self._session.close()
                self._session = None
            self._engine.dispose()


def holder_name(host: str, process: int, address: str | None) -> str:
    """A name for the operator, and behind it, for the standbys, where this server is reached."""
    return f"{host}/{process}" + (f"@{address}" if address else "")


def _address_of_leader(session: Connection) -> str:
    if not _has_tables(session):
        return ""  # the leader is making them
    return str(session.execute(select(leadership.c.holder)).scalar_one()).partition("@")[2]


def _has_tables(session: Connection) -> bool:
    return session.execute(text("SELECT to_regclass('leadership')")).scalar_one() is not None


_LOCK_NOT_AVAILABLE = "55P03"
_INSUFFICIENT_PRIVILEGE = "42501"
# Whoever passed the fence has locked the term's row to share it, and nobody else has but who waits at it: the former leader too.
_END_FENCED = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowShareLock' AND granted"
    " AND relation = CAST('leadership' AS regclass) AND pid <> pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_LOCK_HELD = text(
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = :pid AND objsubid = 1"
    " AND classid = CAST(:high AS oid) AND objid = CAST(:low AS oid)"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def _not_leader() -> StoreUnavailableError:
    return StoreUnavailableError(
        "This server is no longer the leader; another one has taken over. Nothing was written; please ask again.",
        reason="NOT_LEADER",
    )


def _retry(attempt: Callable[[], bool], wait_seconds: float | None, released: threading.Event) -> bool:
    end: Any = None if wait_seconds is None else time.monotonic() + wait_seconds
    while not released.is_set():
        if attempt():
            return True
        left = RETRY_SECONDS if end is None else min(RETRY_SECONDS, end - time.monotonic())
        if left <= 0:
            return False
        released.wait(left)
    return False
