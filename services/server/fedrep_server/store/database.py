"""One database, SQLite or PostgreSQL: transactions, and its failures as sentences.

A write transaction on SQLite starts with BEGIN IMMEDIATE, so that it never fails half-way because another writer came
first. On PostgreSQL every write asks the fence first, if there is one: a server that is no longer the leader writes nothing.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fedrep.errors import ConflictError, InvalidInputError, SettingsError, StoreUnavailableError

SQLITE_FILE = "fedrep.sqlite3"
BUSY_SECONDS = 30

# Both ends give up a silent network within seconds, this end first: a leader that is cut off steps down before the database
# hands its lock to the standby, and a transaction it left open does not keep the standby waiting.
_SERVER_GIVES_UP = {
    "connect_timeout": 5,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 4000,
}
_DATABASE_GIVES_UP = (
    "SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;"
    "SET tcp_user_timeout = 10000; SET idle_in_transaction_session_timeout = '15s'"
)
_WRITES = "fedrep_writes"


class Fence(Protocol):
    """Raises inside a write transaction when this process may no longer write."""

    def check(self, connection: Connection) -> None: ...


def sqlite_url(data_folder: Path) -> str:
    return f"sqlite:///{data_folder / SQLITE_FILE}"


def parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SettingsError(
            "The database URL cannot be read. Write sqlite:////path/to/file or postgresql://user:password@host:5432/name."
        ) from None
    kind = parsed.get_backend_name()
    if kind in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        raise SettingsError(f"A database of kind {kind!r} is not supported. Use sqlite:///... or postgresql://...")
    if not parsed.database or parsed.database == ":memory:":
        raise SettingsError("SQLite needs a file to keep the runs in. Write sqlite:////path/to/file.")
    return parsed


def make_engine(url: URL, **options: Any) -> Engine:
    """`hide_parameters`: a failing statement must not carry signatures or seeds into a log."""
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_SECONDS}, **options)
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        engine = create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=_SERVER_GIVES_UP, **options)
        event.listen(engine, "connect", _prepare_postgres)
        return engine
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise SettingsError(f"The driver for {url.drivername} is not installed ({error}). Install fedrep[server].") from None


class Database:
    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.shown = str(self.url.database) if self.is_sqlite else self.url.render_as_string(hide_password=True)
        if self.is_sqlite:
            self._make_folder()
        self.engine = make_engine(self.url)
        self.fence: Fence | None = None
        # SQLite has one writer at a time. Queueing here is fair and wakes at once; its own busy handler polls.
        self._one_writer = threading.Lock() if self.is_sqlite else nullcontext()

    def _make_folder(self) -> None:
        folder = Path(str(self.url.database)).parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreUnavailableError(f"The data folder {folder} cannot be created: {error.strerror}.") from None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._as_sentences(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A long read that sees one moment; a plain read on PostgreSQL sees what is committed between its queries."""
        with self._as_sentences(), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._as_sentences(), self._one_writer, self.engine.connect() as connection:
            connection.execution_options(**{_WRITES: True})
            with connection.begin():
                if self.fence is not None:
                    self.fence.check(connection)
                yield connection

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _as_sentences(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise ConflictError("The store already holds a row in this place; nothing was changed.") from error
        except (DataError, OverflowError) as error:
            raise InvalidInputError("A number or text is too large for the store; nothing was changed.") from error
        except PoolTimeout:
            raise StoreUnavailableError(f"The database {self.shown} is too busy: no connection became free in time.") from None
        except DBAPIError as error:
            raise StoreUnavailableError(sentence(self.shown, error.orig or error)) from error
        except sqlite3.Error as error:
            raise StoreUnavailableError(sentence(self.shown, error)) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late and never says IMMEDIATE
    _switch_to_wal(connection)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _switch_to_wal(connection: Any) -> None:
    """Several servers may start on a new file at once, and SQLite's own patience does not cover this switch."""
    limit = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > limit:
                raise
            time.sleep(0.01)


def _prepare_postgres(connection: Any, _record: object) -> None:
    connection.execute(_DATABASE_GIVES_UP)
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_SQLITE_SENTENCES = {
    sqlite3.SQLITE_FULL: "The disk that holds {0} is full. Free some space; nothing was lost.",
    sqlite3.SQLITE_READONLY: "The database {0} is read-only. Give this user the right to write the file and its folder.",
    sqlite3.SQLITE_CANTOPEN: "The database {0} cannot be opened. Check that its folder exists and this user may write there.",
    sqlite3.SQLITE_NOTADB: "The file {0} is not a fedrep database. Move it away or give another path.",
    sqlite3.SQLITE_CORRUPT: "The database {0} is damaged. Restore it from a backup.",
    sqlite3.SQLITE_BUSY: "The database {0} is held by another process. Only one server may use it.",
    sqlite3.SQLITE_IOERR: "The disk that holds {0} failed while reading or writing. Check the disk.",
}
_POSTGRES_SENTENCES = {
    "53100": "The database server's disk is full ({0}). Free some space there; nothing was lost.",
    "25006": "The database {0} is read-only, perhaps a replica. Give the address of the primary.",
    "42501": "This user may not write to the database {0}. Grant it the right to create and change tables.",
    "53300": "The database {0} accepts no more connections. Raise its limit or stop other clients.",
}


def sentence(shown: str, error: BaseException) -> str:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary result code
        if code in _SQLITE_SENTENCES:
            return _SQLITE_SENTENCES[code].format(shown)
        return f"The database {shown} failed: {error}."
    state = getattr(error, "sqlstate", None)
    if state in _POSTGRES_SENTENCES:
        return _POSTGRES_SENTENCES[state].format(shown)
    first_line = (str(error).strip().splitlines() or ["no reason given"])[0]
    if state is None or state.startswith(("08", "57P")):
        return f"The database {shown} cannot be reached: {first_line}. Check its address and that it runs."
    return f"The database {shown} failed: {first_line}."
