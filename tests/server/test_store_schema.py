"""Opening a database: migrations, and every way in which it cannot be opened as one sentence."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event, inspect, text

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep_server.store import Database, SqlStore, open_store, sqlite_url
from fedrep_server.store.database import SQLITE_FILE
from fedrep_server.store.schema import current_revision, known_revisions, migrate
from fedrep_server.store.tables import BACKED_UP, leadership, metadata, model_chunks, model_files
from tests.harness.store_fixtures import NewUrl, a_commit, a_run


def test_the_migrations_make_exactly_the_tables_that_the_queries_use(store: SqlStore) -> None:
    with store.database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": False})
        assert compare_metadata(context, metadata) == []
    assert {*BACKED_UP, model_files, model_chunks, leadership} == set(metadata.sorted_tables)


def test_every_known_revision_upgrades_to_the_newest(new_url: NewUrl) -> None:
    for revision in known_revisions():
        database = Database(new_url())
        migrate(database, revision)
        assert current_revision(database) == revision
        migrate(database)
        assert current_revision(database) == known_revisions()[-1]
        database.close()


def test_a_newer_schema_is_one_sentence_and_nothing_is_touched(new_url: NewUrl) -> None:
    url = new_url()
    store = open_store(url)
    store.create_run(a_run())
    with store.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.close()
    with pytest.raises(SettingsError, match=r"written by a newer fedrep .*9999") as caught:
        open_store(url)
    assert caught.value.reason == "NEWER_SCHEMA"
    database = Database(url)
    assert current_revision(database) == "9999"
    database.close()


def test_two_servers_may_start_at_once_on_an_empty_database(new_url: NewUrl) -> None:
    url = new_url()
    problems: list[Exception] = []

    def start() -> None:
        try:
            open_store(url).close()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_migration_that_fails_leaves_the_database_empty(new_url: NewUrl) -> None:
    url = new_url()
    database = Database(url)

    def fail_late(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "CREATE TABLE leadership" in statement:
            raise KeyboardInterrupt

    event.listen(database.engine, "before_cursor_execute", fail_late)
    with pytest.raises(KeyboardInterrupt):
        migrate(database)
    assert inspect(database.engine).get_table_names() == []
    database.close()


def test_sqlite_is_durable_and_checks_foreign_keys(tmp_path: Path) -> None:
    store = open_store(sqlite_url(tmp_path / "data"))
    with store.database.read() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert found == ["wal", 2, 1]
    assert (tmp_path / "data" / SQLITE_FILE).exists()
    store.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("no url at all", "cannot be read"),
        ("mysql://host/name", "'mysql' is not supported"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_a_url_that_cannot_work_is_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        open_store(url)


def test_a_database_that_nobody_serves_is_one_sentence_without_the_password() -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
        open_store("postgresql://user:hunter2@127.0.0.1:1/fedrep")
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / SQLITE_FILE).write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreUnavailableError, match="is not a fedrep database"):
        open_store(sqlite_url(tmp_path))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailableError, match="cannot be created"):
        open_store(sqlite_url(tmp_path / "file" / "data"))


def test_a_read_only_database_is_one_sentence_and_changes_nothing(store: SqlStore) -> None:
    store.create_run(a_run())
    read_only = "PRAGMA query_only = ON" if store.database.is_sqlite else "SET default_transaction_read_only = on"
    store.database.close()
    event.listen(store.database.engine, "connect", lambda connection, _: _run_and_keep(connection, read_only))
    with pytest.raises(StoreUnavailableError, match="read-only"):
        store.commit_round(a_commit(1))
    assert store.run("run").progress.last_round == 0


def _run_and_keep(connection: object, statement: str) -> None:
    connection.execute(statement)  # type: ignore[attr-defined]
    connection.commit()  # type: ignore[attr-defined]


def test_a_full_disk_is_one_sentence_and_the_round_is_not_there(tmp_path: Path) -> None:
    store = open_store(sqlite_url(tmp_path))
    store.create_run(a_run())
    store.database.close()

    def no_more_pages(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # the present size becomes the limit

    event.listen(store.database.engine, "connect", no_more_pages)
    huge = a_commit(1).update
    with pytest.raises(StoreUnavailableError, match="is full"):
        store.commit_round(a_commit(1, update=type(huge)(b"h" * 1_000_000, b"", b"")))
    assert store.run("run").progress.last_round == 0
    assert store.round_row("run", 1) is None
    event.remove(store.database.engine, "connect", no_more_pages)
    store.database.close()
    store.commit_round(a_commit(1))
    store.close()


def test_a_killed_process_leaves_whole_rounds_only(tmp_path: Path) -> None:
    """kill -9 inside a transaction: the next open finds the last committed round, and goes on."""
    store = open_store(sqlite_url(tmp_path))
    store.create_run(a_run())
    store.commit_round(a_commit(1))
    store.close()
    child = os.fork()
    if child == 0:
        inner = open_store(sqlite_url(tmp_path))
        event.listen(inner.database.engine, "commit", lambda _: os.kill(os.getpid(), 9))
        inner.commit_round(a_commit(2))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    again = open_store(sqlite_url(tmp_path))
    assert again.run("run").progress.last_round == 1
    assert [view.row.round for view in again.rounds("run", 0, 10)] == [1]
    again.commit_round(a_commit(2))
    again.close()


def test_a_postgresql_that_comes_back_is_used_again(new_postgres_url: NewUrl) -> None:
    store = open_store(new_postgres_url())
    store.create_run(a_run())
    with store.database.read() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    other = Database(store.database.url.render_as_string(hide_password=False))
    with other.write() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    other.close()
    assert store.run("run").name == "run"
    store.close()
