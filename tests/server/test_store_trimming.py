"""Old rounds lose what each silo and buffer did in them, on both databases; what privacy and late silos need does not go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.errors import NotFoundError
from fedrep_server.store import NewModel, Retention, RoundView, SqlStore, open_store
from fedrep_server.store.tables import metrics
from tests.harness.store_fixtures import a_commit, a_round, a_run

ROUNDS = 4  # begun at 1001 to 1004
MOMENT = 1003.0


@pytest.fixture
def played(store: SqlStore) -> SqlStore:
    """Every round with two silos' reports and the evaluator's; b has no guarantee for its records."""
    store.create_run(a_run(), NewModel(0, b"\0" * 32, b"c" * 32, 1000))
    for number in range(1, ROUNDS + 1):
        store.commit_round(a_commit(number))
        store.add_statement("run", number, "a", b"signature")
        spent = {"epsilon_total": 10.0 * number, "record_epsilon": 0.5 * number, "record_delta": 1e-5}
        store.add_metrics("run", number, "a", "silo", {"accuracy": 0.5, "problem": "hot", **spent})
        store.add_metrics("run", number, "b", "silo", {"accuracy": 0.75, "record_none": True})
        figures = {"accuracy": 1.0 - 0.125 * number, "loss": 0.25, "model_version": number, "metrics": {"auc": 0.5}}
        store.add_metrics("run", number, "eval", "evaluator", figures)
    return store


def all_rounds(store: SqlStore) -> list[RoundView]:
    return store.rounds("run", 0, 100)


def test_old_rounds_keep_their_figures_and_lose_what_each_silo_did_and_said(played: SqlStore) -> None:
    before = all_rounds(played)
    assert played.trim_rounds("run", MOMENT, 100) == 2
    after = all_rounds(played)
    for whole, trimmed in zip(before[:2], after[:2], strict=True):
        bare = replace(whole, row=replace(whole.row, silos=(), buffers=()), silo_accuracy=(), silo_loss=(), records={})
        assert trimmed == bare
        assert (trimmed.accuracy, trimmed.metrics) == (whole.accuracy, {"auc": 0.5})
        assert whole.records == {"a": 0.5 * whole.row.round, "b": None}
    assert after[2:] == before[2:]
    assert played.trim_rounds("run", MOMENT, 100) == 0
    assert all_rounds(played) == after


def test_nothing_that_was_spent_goes_with_the_details(played: SqlStore) -> None:
    def accounts() -> object:
        ledgers = [played.ledger("run", silo) for silo in ("a", "b")]
        return played.spent(), played.silo_rows("run"), played.summary("run"), ledgers

    before = accounts()
    assert played.trim_rounds("run", float("inf"), 100) == ROUNDS - 1
    assert accounts() == before
    assert [entry.round for entry in played.ledger("run", "a")] == [1, 2, 3, 4]
    (a, b) = played.silo_rows("run")
    assert (a.epsilon_ledger, a.epsilon_reported, a.record_epsilon, b.record_none) == (6.0, 40.0, 2.0, True)
    assert played.summary("run").best_accuracy == 0.875, "of a round that was trimmed"


def test_a_silo_that_was_away_still_gets_updates_of_trimmed_rounds(played: SqlStore) -> None:
    def kept() -> object:
        updates = [played.round_update("run", number) for number in range(1, ROUNDS + 1)]
        return updates, [played.statements("run", number) for number in range(1, ROUNDS + 1)], played.models("run")

    before = kept()
    played.trim_rounds("run", float("inf"), 100)
    assert kept() == before


def test_the_newest_round_stays_whole_so_that_its_commit_may_come_again(played: SqlStore) -> None:
    played.trim_rounds("run", float("inf"), 100)
    assert all_rounds(played)[-1].row == a_round(ROUNDS)
    assert played.commit_round(a_commit(ROUNDS)) == ()


def test_rounds_are_trimmed_a_few_at_a_time_the_oldest_first(played: SqlStore) -> None:
    assert played.trim_rounds("run", float("inf"), 2) == 2
    assert [bool(view.row.silos) for view in all_rounds(played)] == [False, False, True, True]
    assert [played.trim_rounds("run", float("inf"), 2) for _ in range(2)] == [1, 0]


def test_a_report_that_comes_after_its_round_was_trimmed_goes_the_next_time(played: SqlStore) -> None:
    played.trim_rounds("run", MOMENT, 100)
    played.add_metrics("run", 1, "a", "silo", {"accuracy": 0.5, "epsilon_total": 99.0})
    assert played.trim_rounds("run", MOMENT, 100) == 1
    with played.database.read() as connection:
        left = connection.execute(metrics.select().order_by(metrics.c.round, metrics.c.reporter)).all()
    assert [(row.round, row.reporter) for row in left][:3] == [(1, "eval"), (2, "eval"), (3, "a")]
    assert played.silo_rows("run")[0].epsilon_reported == 99.0


def test_another_runs_rounds_are_left_alone(played: SqlStore) -> None:
    played.create_run(a_run("other"))
    played.commit_round(a_commit(1, "other"))
    played.commit_round(a_commit(2, "other"))
    before = played.rounds("other", 0, 10)
    played.trim_rounds("run", float("inf"), 100)
    assert played.rounds("other", 0, 10) == before


def test_without_being_asked_no_round_loses_anything(url: str) -> None:
    store = open_store(url, Retention(update_payloads=1, events=1))
    store.create_run(a_run())
    for number in range(1, 4):
        store.commit_round(a_commit(number))
    store.forget_past("run")
    assert [view.row for view in all_rounds(store)] == [a_round(number) for number in range(1, 4)]
    store.close()


def test_trimming_an_unknown_run_says_so(store: SqlStore) -> None:
    with pytest.raises(NotFoundError):
        store.trim_rounds("nobody", 0.0, 1)
