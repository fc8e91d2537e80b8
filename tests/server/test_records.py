"""What a run's records ask of the store, and how often."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fedrep.errors import ConflictError, StoreUnavailableError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Statement
from fedrep.protocol.round_closing import skip_after_restart
from fedrep.protocol.run_effects import CommitRound, OpenRound
from fedrep.protocol.run_events import RoundDue
from fedrep.protocol.run_progress import RunProgress
from fedrep.wire.v1 import observer_pb2
from fedrep_server.rounds.model_store import FolderModelStore
from fedrep_server.rounds.records import RunRecords
from fedrep_server.rounds.round_row import Clock, ledger_entries, round_row
from fedrep_server.store import SqlStore, Store
from tests.harness.store_fixtures import a_run
from tests.protocol.federation import Federation
from tests.protocol.played_run import MemoryDisk, PlayedRun

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


def a_commit(number: int, reason: str = "") -> CommitRound:
    federation = Federation.of(4, parameters=32)
    progress = RunProgress.first(federation.run, federation.model)
    closed = skip_after_restart(federation.run, number, progress)
    return CommitRound(replace(closed, update=replace(closed.update, reason=reason or closed.update.reason)), (closed.line(),))


def test_a_round_that_a_restart_cut_off_is_in_the_ledger_of_who_may_have_proposed() -> None:
    run = PlayedRun.of(4, parameters=32)
    assert isinstance(run, PlayedRun)
    run.serve(MemoryDisk.of(run.run, run.model))
    run.join()
    closed = skip_after_restart(run.run, 1, run.interpreter.machine.progress.after_restart())
    assert closed.charge.epsilon is not None
    expected = [(silo, 1, closed.charge.epsilon) for silo in sorted(run.silos)]
    assert [(entry.silo, entry.round, entry.epsilon) for entry in ledger_entries(closed)] == expected
    assert round_row(closed, Clock(0.0, ()), {}).epsilon == closed.charge.epsilon


def losing_the_answer(monkeypatch: pytest.MonkeyPatch, store: Store, method: str) -> None:
    """The transaction succeeds, and the connection breaks before anybody here knows."""
    real = getattr(store, method)

    def lost(*args: object) -> None:
        real(*args)
        raise StoreUnavailableError("the connection was lost")

    monkeypatch.setattr(store, method, lost)


def test_a_commit_whose_answer_was_lost_is_found_by_the_next_try(records: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = a_commit(1)
    with monkeypatch.context() as broken:
        losing_the_answer(broken, records.store, "commit_round")
        with pytest.raises(StoreUnavailableError):
            records.write(commit)
    records.write(commit)
    assert records.update(1) == commit.closed.update
    assert records.totals().rounds == 1
    with pytest.raises(ConflictError):
        records.write(a_commit(1, "another outcome"))


def test_a_number_whose_answer_was_lost_is_still_ours_to_announce(records: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    run = PlayedRun.of(4, parameters=32)
    assert isinstance(run, PlayedRun)
    run.serve(MemoryDisk.of(run.run, run.model))
    run.join()
    [opening] = run.interpreter.machine.receive(RoundDue())
    assert isinstance(opening, OpenRound)
    with monkeypatch.context() as broken:
        losing_the_answer(broken, records.store, "open_round")
        with pytest.raises(StoreUnavailableError):
            records.write(opening)
    records.write(opening)
    assert records.store.run("run").open_round == 1
    records.write(a_commit(1))
    with pytest.raises(ConflictError):
        records.write(opening)


def test_old_models_that_cannot_go_do_not_undo_a_commit(records: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> list[int]:
        raise StoreUnavailableError("the database is away")

    with monkeypatch.context() as broken:
        broken.setattr(records.store, "retire_models", away)
        records.write(a_commit(1))
    assert records.update(1).round == 1
