"""Two servers on one database: one leads, and a former leader writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select, text

from fedrep.errors import StoreUnavailableError
from fedrep_server.operations.leadership import LEADER_LOCK, FolderLeadership, PostgresLeadership, leadership_of
from fedrep_server.rounds.model_store import DatabaseModelStore
from fedrep_server.store import NewEvent, SqlStore, open_store, sqlite_url
from fedrep_server.store.tables import leadership
from tests.harness.store_fixtures import NewUrl, a_commit, a_run
from tests.server.test_model_store import put


@pytest.fixture
def pair(new_postgres_url: NewUrl) -> Iterator[tuple[SqlStore, SqlStore]]:
    """Two servers' stores, with one run in the database."""
    url = new_postgres_url()
    first, second = open_store(url), open_store(url)
    first.create_run(a_run())
    yield first, second
    first.close()
    second.close()


def leader_of(store: SqlStore, name: str) -> PostgresLeadership:
    """Patient, so that a busy machine does not look like a frozen one."""
    return PostgresLeadership(store.database, name, grace_seconds=60.0)


def end_lock_session(store: SqlStore) -> None:
    """What the database does when the leader's connection is gone."""
    find = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {LEADER_LOCK & 0xFFFFFFFF}"
    url = store.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM ({find} AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())) AS holders"
        )


def test_one_leads_and_the_other_waits_until_it_is_released(pair: tuple[SqlStore, SqlStore]) -> None:
    first, second = leader_of(pair[0], "one"), leader_of(pair[1], "two")
    assert first.acquire(0)
    assert not second.acquire(0)
    assert first.hold()
    pair[0].commit_round(a_commit(1))
    first.release()
    assert second.acquire(5)
    pair[1].commit_round(a_commit(2))
    with pair[1].database.read() as connection:
        assert connection.execute(select(leadership.c.holder, leadership.c.term)).one() == ("two", 2)
    second.release()


def test_a_leader_that_another_replaced_can_write_nothing(pair: tuple[SqlStore, SqlStore]) -> None:
    first, second = leader_of(pair[0], "one"), leader_of(pair[1], "two")
    assert first.acquire(0)
    end_lock_session(pair[1])
    assert second.acquire(5)
    for write in (
        lambda: pair[0].commit_round(a_commit(1)),
        lambda: pair[0].append_events("run", [NewEvent(1.0, "phase", "x")]),
        lambda: put(DatabaseModelStore(pair[0].database)),
    ):
        with pytest.raises(StoreUnavailableError, match="no longer the leader") as caught:
            write()
        assert caught.value.reason == "NOT_LEADER"
    assert first.lost
    assert pair[1].run("run").progress.last_round == 0
    pair[1].commit_round(a_commit(1))
    assert DatabaseModelStore(pair[1].database).versions("run") == []
    second.release()


def test_a_leader_that_lost_its_lock_to_nobody_cannot_write_either(pair: tuple[SqlStore, SqlStore]) -> None:
    first = leader_of(pair[0], "one")
    assert first.acquire(0)
    end_lock_session(pair[0])
    with pytest.raises(StoreUnavailableError, match="no longer the leader"):
        pair[0].commit_round(a_commit(1))
    assert first.lost
    assert not first.hold()


def test_holding_notices_that_the_session_is_gone_and_stays_lost(pair: tuple[SqlStore, SqlStore]) -> None:
    first = leader_of(pair[0], "one")
    assert first.acquire(0)
    end_lock_session(pair[1])
    assert not first.hold()
    assert first.lost
    assert not first.hold()
    with pytest.raises(StoreUnavailableError, match="no longer the leader"):
        pair[0].commit_round(a_commit(1))


def test_a_new_leader_waits_for_what_the_old_one_is_committing_and_sees_it(pair: tuple[SqlStore, SqlStore]) -> None:
    first, second = leader_of(pair[0], "one"), leader_of(pair[1], "two")
    assert first.acquire(0)
    seen: list[int] = []

    def take_over() -> None:
        assert second.acquire(10)
        seen.append(pair[1].run("run").progress.last_round)

    taker = threading.Thread(target=take_over)
    with pair[0].database.write() as connection:  # the fence was passed; the lock is lost before the commit
        connection.execute(text("UPDATE runs SET last_round = 1"))
        end_lock_session(pair[1])
        taker.start()
        taker.join(1.0)
        assert seen == []
    taker.join()
    assert seen == [1]
    second.release()


def test_what_a_frozen_leader_left_open_is_ended_all_at_once(pair: tuple[SqlStore, SqlStore]) -> None:
    """One transaction waits for another's row, as a frozen leader's do; the database alone would end them one by one."""
    first = leader_of(pair[0], "one")
    second = PostgresLeadership(pair[1].database, "two", grace_seconds=0.05)
    assert first.acquire(0)
    ended: list[str] = []
    taken_over = threading.Event()

    def write() -> None:
        try:
            with pair[0].database.write() as connection:
                connection.execute(text("SET idle_in_transaction_session_timeout = 0"))  # never, here
                connection.execute(text("UPDATE runs SET last_round = 1"))
                taken_over.wait()
                connection.execute(text("SELECT 1"))
        except StoreUnavailableError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    writers = (
        "SELECT count(*) FROM pg_locks WHERE relation = 'runs'::regclass AND mode = 'RowExclusiveLock'"  # one waits for a row
    )
    with pair[1].database.read() as connection:
        while connection.execute(text(writers)).scalar_one() < 2:
            pass
    end_lock_session(pair[1])
    try:
        assert second.acquire(0)
    finally:
        taken_over.set()
        for thread in threads:
            thread.join()
    assert ["terminating connection due to administrator command" in text for text in ended] == [True, True]
    assert pair[1].run("run").progress.last_round == 0
    pair[1].commit_round(a_commit(1))
    second.release()


def test_waiting_ends_when_released(pair: tuple[SqlStore, SqlStore]) -> None:
    first, second = leader_of(pair[0], "one"), leader_of(pair[1], "two")
    assert first.acquire(0)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(second.acquire()))
    waiter.start()
    second.release()
    waiter.join(10)
    assert answers == [False]
    first.release()


def test_a_database_that_is_away_is_no_lead_and_no_crash(new_postgres_url: NewUrl) -> None:
    store = open_store(new_postgres_url())
    away = store.database.url.set(database="nowhere")
    store.database.url = away
    assert not leader_of(store, "one").acquire(0)
    store.close()


def test_on_sqlite_the_folder_is_led_by_one_process(tmp_path: Path) -> None:
    store = open_store(sqlite_url(tmp_path))
    first = leadership_of(store.database, tmp_path, "one")
    second = leadership_of(store.database, tmp_path, "two")
    assert isinstance(first, FolderLeadership)
    assert first.acquire(0)
    assert not second.acquire(0)
    assert first.hold()
    first.release()
    assert second.acquire(0)
    assert not first.hold()
    second.release()
    store.close()
