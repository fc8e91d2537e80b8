"""What a run's records ask of the store, and how often."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Statement
from fedrep.wire.v1 import observer_pb2
from fedrep_server.rounds.model_store import FolderModelStore
from fedrep_server.rounds.records import RunRecords
from fedrep_server.store import SqlStore
from tests.harness.store_fixtures import a_run

RUN = RunHash(b"run".ljust(32, b"."))


@pytest.fixture
def records(store: SqlStore, tmp_path: Path) -> RunRecords:
    store.create_run(a_run())
    return RunRecords(
        "run", RUN, observer_pb2.RunOptions(), bytes(32), store, FolderModelStore(tmp_path / "models"), 3, lambda _: None
    )


def a_statement(silo: str, number: int = 1) -> Statement:
    return Statement(SiloName(silo), RUN, number, silo.encode())


def test_callers_who_come_together_ask_the_database_once(records: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    records.keep_statement(a_statement("a"))
    store, asked = records.store, []
    real = store.statements

    def slowly(run: str, number: int) -> tuple[tuple[str, bytes], ...]:
        asked.append(number)
        time.sleep(0.2)  # the others arrive while this answer is on its way
        return real(run, number)

    monkeypatch.setattr(store, "statements", slowly)
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(records.statements, [1] * 8))
    assert answers == [(a_statement("a"),)] * 8
    assert asked == [1]
    assert records.known_statements(1) == answers[0]


def test_a_new_statement_is_in_the_next_answer(records: RunRecords) -> None:
    assert records.statements(1) == ()
    records.keep_statement(a_statement("b"))
    assert records.known_statements(1) is None
    assert records.statements(1) == (a_statement("b"),)
    records.keep_statement(a_statement("a"))
    assert records.statements(1) == (a_statement("a"), a_statement("b"))
    assert records.statements(2) == ()
