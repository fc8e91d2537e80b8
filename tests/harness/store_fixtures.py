"""Both databases for tests: SQLite in a temporary folder and a real PostgreSQL, fresh for every test that asks."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fedrep.protocol.messages import Outcome
from fedrep_server.store import (
    BufferRow,
    LedgerEntry,
    NewEvent,
    NewModel,
    Progress,
    RoundCommit,
    RoundRow,
    SiloRoundRow,
    SqlStore,
    StoredRun,
    StoredUpdate,
    Traffic,
    open_store,
    sqlite_url,
)
from fedrep_server.store.database import SQLITE_FILE
from fedrep_server.store.tables import BACKED_UP, model_chunks, model_files

NewUrl = Callable[[], str]


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where no XDG_RUNTIME_DIR is set, its import says which folder it takes instead
        from pgserver.postgres_server import get_server
    # Not pytest's folder: under root the server runs as another user, who must be able to enter it.
    folder = Path(tempfile.mkdtemp(prefix="fedrep-pg-"))
    folder.chmod(0o755)
    server = get_server(folder / "data", cleanup_mode="stop")
    uri = server.get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # the tests never pull the plug
        connection.execute("SELECT pg_reload_conf()")
    yield uri
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def new_postgres_url(postgres_uri: str) -> NewUrl:
    """Each call makes an empty schema of its own: to the store a database, but a hundred times cheaper than CREATE DATABASE."""
    numbers = itertools.count(1)

    def make() -> str:
        name = f"fedrep_{next(numbers)}"
        with psycopg.connect(postgres_uri, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{postgres_uri}&options=-csearch_path%3D{name}"

    return make


@pytest.fixture(scope="session")
def postgres_url_with_tables(new_postgres_url: NewUrl) -> str:
    url = new_postgres_url()
    open_store(url).close()
    return url


@pytest.fixture(scope="session")
def sqlite_file_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sqlite")
    open_store(sqlite_url(folder)).close()
    return folder / SQLITE_FILE


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> NewUrl:
    """For tests that need a database without tables, or several."""
    if kind == "postgresql":
        make: NewUrl = request.getfixturevalue("new_postgres_url")
        return make
    numbers = itertools.count(1)
    return lambda: sqlite_url(tmp_path / f"data{next(numbers)}")


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with tables and without rows; migrating one for every test would take longer than the tests."""
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_file_with_tables"), tmp_path / SQLITE_FILE)
        return sqlite_url(tmp_path)
    return emptied(request.getfixturevalue("postgres_url_with_tables"))


def emptied(shared: str) -> str:
    with psycopg.connect(shared, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join(table.name for table in (*BACKED_UP, model_files, model_chunks))}")
    return shared


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    opened = open_store(url)
    yield opened
    opened.close()


def a_progress(last_round: int = 0, version: int = 0) -> Progress:
    return Progress(last_round, version, bytes([version % 256]) * 32, b"c" * 32, 0.5, 0, {"standings": {}}, b"s" * 32)


def a_run(name: str = "run") -> StoredRun:
    return StoredRun(name, name.encode().ljust(32, b"."), b"manifest", b"options", "waiting", "", 1000.0, a_progress())


def a_round(number: int, outcome: Outcome = Outcome.APPLIED, **changes: Any) -> RoundRow:
    row = RoundRow(
        round=number,
        outcome=outcome,
        reason="" if outcome is Outcome.APPLIED else "too few silos",
        started_at=1000.0 + number,
        phase_seconds=(1.0, 2.0, 0.5, 0.25, 0.125),
        consensus_size=100,
        roster_size=4,
        proposed=4,
        survivors=3,
        bytes_up=40,
        bytes_down=80,
        epsilon=1.5,
        epsilon_theorem2=2.5,
        clip_range=0.5,
        clip_rate=None,
        update_norm=0.25,
        model_version=number,
        per_silo=25,
        tolerated=1,
        buffers=(BufferRow(0, ("a", "b"), 2, True, "", 0.125, 0.5), BufferRow(1, ("c", "d"), 1, False, "too few survivors")),
        silos=(SiloRoundRow("a", "on_time", 10, 20), SiloRoundRow("d", "dropped", 10, 0)),
    )
    return replace(row, **changes)


def a_commit(number: int, run: str = "run", **changes: Any) -> RoundCommit:
    commit = RoundCommit(
        run=run,
        round=a_round(number),
        progress=a_progress(number, number),
        update=StoredUpdate(f"header {number}".encode(), b"coordinates", b"levels"),
        model=NewModel(number, bytes([number % 256]) * 32, b"c" * 32, 1234),
        traffic={"a": Traffic(10, 20), "b": Traffic(30, 60)},
        ledger=(LedgerEntry("a", number, 1000, 25, 0.5, 1.5), LedgerEntry("b", number, 1000, 25, 0.5, 1.5)),
        events=(NewEvent(1000.0 + number, "round_applied", f"Round {number} was applied.", round=number),),
    )
    return replace(commit, **changes)
