"""The store's contract, run against SQLite and PostgreSQL alike."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace

import pytest

from fedrep.errors import ConflictError, InvalidInputError, NotFoundError
from fedrep.protocol.attendance import Attendance, Standing
from fedrep.protocol.manifests import RecordPromise, RosterEntry, SiloName
from fedrep.protocol.messages import Outcome
from fedrep_server.store import (
    LedgerEntry,
    NewEvent,
    NewModel,
    RecordFigures,
    Retention,
    SqlStore,
    StoredUpdate,
    Traffic,
    attendance_from_json,
    attendance_to_json,
    open_store,
)
from tests.harness.store_fixtures import a_commit, a_progress, a_round, a_run


@pytest.fixture
def started(store: SqlStore) -> SqlStore:
    store.create_run(a_run(), NewModel(0, b"\0" * 32, b"c" * 32, 1000))
    return store


def snapshot(store: SqlStore) -> object:
    """Everything a refused write must leave alone."""
    name = "run"
    return (
        store.run(name),
        store.summary(name),
        store.rounds(name, 0, 100),
        store.silo_rows(name),
        store.ledger(name, "a"),
        store.events(name, 0, 100),
        store.models(name),
        [store.round_update(name, number) for number in range(5)],
    )


def test_a_run_comes_back_as_it_was_created(store: SqlStore) -> None:
    store.create_run(a_run())
    assert store.run("run") == a_run()
    assert store.run_by_hash(a_run().run) == a_run()


def test_runs_are_listed_newest_first(store: SqlStore) -> None:
    store.create_run(replace(a_run("old"), created_at=1.0))
    store.create_run(replace(a_run("new"), created_at=2.0))
    assert [run.name for run in store.runs()] == ["new", "old"]


def test_a_second_run_of_the_same_name_is_refused_and_changes_nothing(started: SqlStore) -> None:
    before = snapshot(started)
    with pytest.raises(ConflictError, match="exists already"):
        started.create_run(replace(a_run(), run=b"another" * 4, reason="changed"))
    assert snapshot(started) == before


def test_a_second_run_of_the_same_manifest_is_refused(started: SqlStore) -> None:
    with pytest.raises(ConflictError):
        started.create_run(replace(a_run("other"), run=a_run().run))


def test_every_call_about_an_unknown_run_says_so(store: SqlStore) -> None:
    calls = [
        lambda: store.run("nobody"),
        lambda: store.run_by_hash(b"?" * 32),
        lambda: store.set_run_state("nobody", "paused", ""),
        lambda: store.save_progress("nobody", a_progress()),
        lambda: store.summary("nobody"),
        lambda: store.open_round("nobody", 1),
        lambda: store.commit_round(a_commit(1, run="nobody")),
        lambda: store.add_statement("nobody", 1, "a", b"s"),
        lambda: store.add_metrics("nobody", 1, "a", "silo", {}),
        lambda: store.touch_silo("nobody", "a", "1", 0.0, 0.0),
        lambda: store.add_traffic("nobody", {}),
        lambda: store.append_events("nobody", []),
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()  # type: ignore[no-untyped-call]


def test_a_state_change_is_kept_with_its_reason_and_event(started: SqlStore) -> None:
    started.set_run_state("run", "paused", "the operator asked", [NewEvent(5.0, "state", "paused")])
    assert (started.run("run").state, started.run("run").reason) == ("paused", "the operator asked")
    assert [entry.event.kind for entry in started.events("run", 0, 10)] == ["state"]


def test_a_committed_round_comes_back_whole(started: SqlStore) -> None:
    positions = started.commit_round(a_commit(1))
    view = started.round_row("run", 1)
    assert view is not None
    assert view.row == a_round(1)
    assert started.run("run").progress == a_progress(1, 1)
    assert started.round_update("run", 1) == StoredUpdate(b"header 1", b"coordinates", b"levels")
    assert [(e.position, e.event) for e in started.events("run", 0, 10)] == [(positions[0], a_commit(1).events[0])]
    assert [(row.name, row.bytes_up, row.bytes_down, row.epsilon_ledger) for row in started.silo_rows("run")] == [
        ("a", 10, 20, 1.5),
        ("b", 30, 60, 1.5),
    ]
    assert started.ledger("run", "a") == [LedgerEntry("a", 1, 1000, 25, 0.5, 1.5)]
    assert [model.version for model in started.models("run")] == [0, 1]


def test_a_second_commit_of_a_round_is_refused_and_changes_nothing(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    before = snapshot(started)
    with pytest.raises(ConflictError, match="round 1 was committed"):
        started.commit_round(a_commit(1, update=StoredUpdate(b"another header", b"coordinates", b"levels")))
    with pytest.raises(ConflictError, match="round 1 was committed"):
        started.commit_round(a_commit(1, round=a_round(1, started_at=9.0)))
    with pytest.raises(ConflictError):
        started.commit_round(a_commit(0))
    assert snapshot(started) == before


def test_the_same_commit_again_succeeds_and_changes_nothing(started: SqlStore) -> None:
    """Its first success may have been lost on the way back."""
    noisy = a_commit(1, round=a_round(1, clip_rate=float("nan"), update_norm=float("inf"), reason="a\x00b"))
    assert len(started.commit_round(noisy)) == 1
    before = snapshot(started)
    assert started.commit_round(noisy) == ()
    assert snapshot(started) == before


def test_a_commit_that_fails_at_its_last_step_leaves_nothing_behind(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    before = snapshot(started)
    twice = (LedgerEntry("a", 2, 1000, 25, 0.5, 1.5),) * 2
    with pytest.raises(ConflictError):
        started.commit_round(a_commit(2, ledger=twice))
    assert snapshot(started) == before


def test_a_commit_whose_progress_names_another_round_is_refused(started: SqlStore) -> None:
    with pytest.raises(InvalidInputError):
        started.commit_round(a_commit(2, progress=a_progress(1, 1)))


def test_an_opened_number_is_given_out_once_and_cleared_by_the_commit(started: SqlStore) -> None:
    started.open_round("run", 1)
    assert started.run("run").open_round == 1
    with pytest.raises(ConflictError):
        started.open_round("run", 1)
    started.commit_round(a_commit(1))
    assert started.run("run").open_round == 0
    with pytest.raises(ConflictError):
        started.open_round("run", 1)
    started.open_round("run", 2)


def test_progress_between_rounds_is_saved_with_model_and_event_but_never_moves_the_round(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    rolled_back = a_progress(1, 2)
    started.save_progress("run", rolled_back, NewModel(2, b"h", b"c", 9), [NewEvent(1.0, "state", "rolled back")])
    assert started.run("run").progress == rolled_back
    assert [model.version for model in started.models("run")] == [0, 1, 2]
    with pytest.raises(ConflictError):
        started.save_progress("run", a_progress(0, 2))
    assert started.run("run").progress == rolled_back


def test_everything_is_there_after_a_restart(url: str) -> None:
    store = open_store(url)
    store.create_run(a_run())
    store.commit_round(a_commit(1))
    before = snapshot(store)
    store.close()
    again = open_store(url)
    assert snapshot(again) == before
    again.close()


def test_old_payloads_go_and_their_headers_stay(url: str) -> None:
    store = open_store(url, Retention(update_payloads=2))
    store.create_run(a_run())
    for number in range(1, 5):
        store.commit_round(a_commit(number))
    store.forget_past("run")
    found = [store.round_update("run", number) for number in range(1, 6)]
    assert found[:2] == [StoredUpdate(b"header 1", None, None), StoredUpdate(b"header 2", None, None)]
    assert [update is not None and update.levels for update in found[2:]] == [b"levels", b"levels", False]
    store.close()


def test_old_events_go_and_positions_go_on(url: str) -> None:
    store = open_store(url, Retention(events=2))
    store.create_run(a_run())
    for number in range(1, 5):
        store.commit_round(a_commit(number))
    store.forget_past("run")
    assert [entry.position for entry in store.events("run", 0, 10)] == [3, 4]
    store.close()


def test_a_silo_cannot_write_to_the_terminal_of_whoever_reads_the_store(started: SqlStore) -> None:
    evil = "\x1b[2J\x9b31m\u202ea\nb"
    started.touch_silo("run", "a", evil, 0.0, 0.0)
    started.add_metrics("run", 0, "a", "silo", {"problem": evil, "drill": evil})
    started.append_events("run", [NewEvent(1.0, "problem", evil, silo=evil)])
    row, event = started.silo_rows("run")[0], started.events("run", 0, 10)[-1].event
    for text in (row.software_version, row.problem, row.drill, event.text, event.silo):
        assert text == "\ufffd[2J\ufffd31m\ufffda b"


def test_a_runs_epsilon_is_the_largest_of_what_was_counted_and_what_silos_say(started: SqlStore) -> None:
    """A proposal that came late or was lost in a crash was made all the same; only the silo's own figure holds it."""
    started.commit_round(a_commit(1))
    assert started.summary("run").epsilon_total == 1.5
    started.add_metrics("run", 1, "a", "silo", {"epsilon_total": 1.0})
    assert started.summary("run").epsilon_total == 1.5
    started.add_metrics("run", 1, "b", "silo", {"epsilon_total": 4.5})
    assert started.summary("run").epsilon_total == 4.5
    started.add_metrics("run", 2, "b", "silo", {"epsilon_total": 3.0})  # a purge takes nothing back
    started.add_metrics("run", 1, "a", "silo", {"epsilon_total": 2.0})
    assert [(row.name, row.epsilon_ledger, row.epsilon_reported) for row in started.silo_rows("run")] == [
        ("a", 1.5, 2.0),
        ("b", 1.5, 4.5),
    ]
    started.add_metrics("run", 2, "a", "silo", {"epsilon_total": 5.0})
    started.add_metrics("run", 1, "a", "silo", {"epsilon_total": 6.0})  # told late, and no less true
    assert started.summary("run").epsilon_total == 6.0
    started.add_metrics("run", 3, "a", "silo", {"epsilon_total": float("inf")})
    assert started.summary("run").epsilon_total == 6.0
    assert started.summary("run").epsilon_counted == 1.5


def test_once_a_silo_says_that_it_has_no_guarantee_in_all_its_runs_no_figure_takes_that_back(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.add_metrics("run", 1, "judge", "evaluator", {"epsilon_none": True})
    assert started.summary("run").epsilon_total == 1.5, "an evaluator's word about it counts for nobody"
    started.add_metrics("run", 1, "a", "silo", {"epsilon_total": 2.0})
    started.add_metrics("run", 3, "a", "silo", {"epsilon_none": True})
    started.add_metrics("run", 4, "a", "silo", {"epsilon_total": 3.0})
    assert {row.name: row.epsilon for row in started.silo_rows("run")} == {"a": None, "b": 1.5}
    assert {row.silo: row.epsilon for row in started.spent()} == {"a": None, "b": 1.5}
    figures = started.summary("run")
    assert (figures.epsilon_total, figures.epsilon_counted) == (None, 1.5), "no silo's word ends a run"


def test_what_silos_say_about_their_records_is_kept_for_each_silo_and_round_and_never_summed(started: SqlStore) -> None:
    for number in (1, 2):
        started.commit_round(a_commit(number))
    assert started.summary("run").records == RecordFigures()
    first = {"record_epsilon": 1.5, "record_delta": 1e-5, "record_budget": 8.0}
    started.add_metrics("run", 1, "a", "silo", first)
    started.add_metrics("run", 2, "a", "silo", {**first, "record_epsilon": 2.5})
    started.add_metrics("run", 1, "b", "silo", {"record_none": True})
    started.add_metrics("run", 1, "c", "silo", {"accuracy": 0.5})
    rows = {row.name: row for row in started.silo_rows("run")}
    assert (rows["a"].record_epsilon, rows["a"].record_delta, rows["a"].record_budget) == (2.5, 1e-5, 8.0)
    assert (rows["b"].record_epsilon, rows["b"].record_none) == (None, True)
    assert (rows["c"].record_epsilon, rows["c"].record_none) == (None, False)
    assert [dict(view.records) for view in started.rounds("run", 0, 10)] == [{"a": 1.5, "b": None}, {"a": 2.5}]
    figures = started.summary("run")
    assert figures.records == RecordFigures(2.5, 1e-5, reporting=1, without=1)
    assert figures.epsilon_total == 3.0, "of the coordinates, which is another statement"


def test_a_records_epsilon_never_falls_at_one_delta_and_is_another_figure_at_another(started: SqlStore) -> None:
    def told(number: int, **figures: float | bool) -> tuple[float | None, float | None, bool]:
        started.add_metrics("run", number, "a", "silo", figures)
        (row,) = started.silo_rows("run")
        return row.record_epsilon, row.record_delta, row.record_none

    assert told(3, record_epsilon=2.0, record_delta=1e-5) == (2.0, 1e-5, False)
    assert told(4, record_epsilon=1.0, record_delta=1e-5) == (2.0, 1e-5, False)
    assert told(1, record_epsilon=3.0, record_delta=1e-5) == (3.0, 1e-5, False), "told late, and no less true"
    assert told(2, record_epsilon=9.0, record_delta=1e-3) == (3.0, 1e-5, False), "told late, at a delta of before"
    assert told(5, record_epsilon=2.5, record_delta=1e-4) == (2.5, 1e-4, False)
    assert told(6, record_epsilon=float("nan"), record_delta=1e-4) == (2.5, 1e-4, False)
    assert told(7, record_none=True)[2]
    assert told(8, record_epsilon=0.1, record_delta=1e-4) == (None, 1e-4, True), "once trained without guarantee, always"


def test_what_silos_have_spent_is_never_less_than_they_said_and_never_a_number_without_guarantee(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.commit_round(a_commit(2, ledger=(LedgerEntry("c", 2, 1000, 25, 0.0, None),)))
    started.add_metrics("run", 1, "a", "silo", {"epsilon_total": 4.5, "record_epsilon": 0.5, "record_delta": 1e-5})
    started.add_metrics("run", 2, "a", "silo", {"record_none": True})
    started.add_metrics("run", 1, "b", "silo", {"epsilon_total": 1.0})
    started.add_metrics("run", 1, "c", "silo", {"epsilon_total": 9.0, "record_epsilon": 0.5, "record_delta": 1e-5})
    found = [(row.silo, row.epsilon, row.record_epsilon, row.record_none) for row in started.spent()]
    assert found == [("a", 4.5, None, True), ("b", 1.5, None, False), ("c", None, 0.5, False)]


def test_an_evaluators_word_about_records_counts_for_nobody(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.add_metrics("run", 1, "judge", "evaluator", {"record_epsilon": 9.0, "record_none": True})
    assert started.summary("run").records == RecordFigures()
    assert started.rounds("run", 0, 10)[0].records == {}


def test_no_flood_of_other_lines_pushes_an_alert_out(url: str) -> None:
    store = open_store(url, Retention(events=3))
    store.create_run(a_run())
    store.append_events("run", [NewEvent(1.0, "stalled", f"alert {n}", "alert") for n in range(5)])
    store.append_events("run", [NewEvent(1.0, "joined", "x")] * 50)
    store.commit_round(a_commit(1))
    store.forget_past("run")
    kept = store.events("run", 0, 100)
    assert [entry.event.text for entry in kept if entry.event.severity == "alert"] == ["alert 2", "alert 3", "alert 4"]
    assert [entry.position for entry in kept if entry.event.severity != "alert"] == [54, 55, 56]
    store.close()


def test_a_statement_given_twice_is_kept_once(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.add_statement("run", 1, "b", b"first")
    started.add_statement("run", 1, "b", b"second")
    started.add_statement("run", 1, "a", b"of a")
    assert started.statements("run", 1) == (("a", b"of a"), ("b", b"first"))
    assert started.statements("run", 2) == ()


def test_positions_only_go_up_also_when_threads_append_at_once(started: SqlStore) -> None:
    given: list[int] = []

    def append() -> None:
        for _ in range(5):
            given.extend(started.append_events("run", [NewEvent(1.0, "phase", "x"), NewEvent(1.0, "phase", "y")]))

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 41))
    assert [entry.position for entry in started.events("run", 30, 5)] == [31, 32, 33, 34, 35]
    assert started.summary("run").last_event == 40


def test_a_round_shows_the_evaluator_and_the_spread_of_the_silos(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.add_metrics("run", 1, "judge", "evaluator", {"accuracy": 0.9, "loss": 0.3, "model_version": 1})
    for name, accuracy in (("a", 0.5), ("b", 0.8), ("c", 0.6)):
        started.add_metrics("run", 1, name, "silo", {"accuracy": accuracy, "clip_rate": accuracy / 100})
    view = started.round_row("run", 1)
    assert view is not None
    assert (view.accuracy, view.loss) == (0.9, 0.3)
    assert view.silo_accuracy == (0.5, 0.6, 0.8)
    assert view.silo_loss == ()
    assert view.clip_rate == pytest.approx(0.006)


def test_the_clip_rate_that_moved_the_range_counts_before_later_reports(started: SqlStore) -> None:
    started.commit_round(a_commit(1, round=a_round(1, clip_rate=0.25)))
    started.add_metrics("run", 1, "a", "silo", {"clip_rate": 0.75})
    view = started.round_row("run", 1)
    assert view is not None
    assert view.clip_rate == 0.25


def test_a_second_report_adds_to_the_first(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.add_metrics("run", 1, "a", "silo", {"loss": 2.0, "accuracy": 0.1})
    started.add_metrics("run", 1, "a", "silo", {"loss": 1.0, "accuracy": None})
    view = started.round_row("run", 1)
    assert view is not None
    assert (view.silo_loss, view.silo_accuracy) == ((1.0,) * 3, (0.1,) * 3)


def test_figures_no_database_can_hold_are_stored_alike_and_fail_nothing(started: SqlStore) -> None:
    started.commit_round(a_commit(1, round=a_round(1, update_norm=math.inf, clip_rate=math.nan)))
    hostile = {"loss": math.nan, "accuracy": -math.inf, "samples": 2**64 - 1, "given_up": 2**64 - 1, "problem": "a\x00b"}
    started.add_metrics("run", 1, "a", "silo", hostile)
    view = started.round_row("run", 1)
    assert view is not None
    assert (view.row.update_norm, view.clip_rate, view.silo_loss, view.silo_accuracy) == (None, None, (), ())
    assert (started.silo_rows("run")[0].problem, started.silo_rows("run")[0].given_up) == ("a\ufffdb", 2**63 - 1)
    with pytest.raises(InvalidInputError):
        started.add_metrics("run", 2**64 - 1, "a", "silo", {})
    with pytest.raises(InvalidInputError):
        started.add_metrics("run", 1, "a", "silo", {"drop table": 1.0})


def test_asking_for_numbers_beyond_the_store_finds_nothing_and_fails_nothing(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    huge = 2**64 - 1
    assert started.rounds("run", huge, huge) == []
    assert (started.round_row("run", huge), started.round_update("run", huge)) == (None, None)
    assert (started.statements("run", huge), started.events("run", huge, huge)) == ((), [])
    assert len(started.thinned_rounds("run", huge)) == 1
    with pytest.raises(InvalidInputError):
        started.add_statement("run", huge, "a", b"s")


def test_a_silo_shows_its_latest_report_not_the_last_to_arrive(started: SqlStore) -> None:
    started.touch_silo("run", "a", "0.1.0", 2000.0, 10.0)
    report = {"drill": "sign_flip", "problem": "disk", "given_up": 3, "epsilon_total": 4.5, "epsilon_budget": 9.0}
    started.add_metrics("run", 7, "a", "silo", report)
    started.add_metrics("run", 6, "a", "silo", {"drill": "", "problem": "", "given_up": 2, "epsilon_total": 3.0})
    started.touch_silo("run", "a", "0.1.1", 3000.0, 20.0)
    (row,) = started.silo_rows("run")
    assert (row.drill, row.problem, row.given_up, row.epsilon_reported, row.epsilon_budget) == ("sign_flip", "disk", 3, 4.5, 9.0)
    assert (row.software_version, row.certificate_expires, row.last_seen) == ("0.1.1", 3000.0, 20.0)
    started.add_metrics("run", 8, "a", "silo", {"problem": ""})
    assert started.silo_rows("run")[0].problem == ""


def test_a_silos_problem_is_over_with_the_first_later_report_that_has_none(started: SqlStore) -> None:
    started.add_metrics("run", 3, "a", "silo", {"problem": "the disk is full"})
    started.add_metrics("run", 3, "a", "silo", {"loss": 0.5})
    assert started.silo_rows("run")[0].problem == "the disk is full", "another report of the same round does not take it back"
    started.add_metrics("run", 4, "a", "silo", {"loss": 0.4})
    assert started.silo_rows("run")[0].problem == ""


def test_an_evaluator_is_no_silo(started: SqlStore) -> None:
    started.add_metrics("run", 1, "judge", "evaluator", {"accuracy": 0.5})
    assert started.silo_rows("run") == []


def test_the_summary_adds_up(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    skipped = a_round(2, Outcome.SKIPPED, roster_size=3)
    started.commit_round(a_commit(2, round=skipped, model=None, ledger=(LedgerEntry("a", 2, 1000, 25, 0.5, 1.5),)))
    started.add_traffic("run", {"a": Traffic(1, 2), "c": Traffic(5, 0)})
    started.add_metrics("run", 1, "judge", "evaluator", {"accuracy": 0.75, "loss": 0.5})
    started.add_metrics("run", 2, "judge", "evaluator", {"accuracy": 0.5, "loss": 0.75})
    started.add_metrics("run", 2, "a", "silo", {"accuracy": 1.0, "epsilon_budget": 10.0})
    started.add_metrics("run", 2, "b", "silo", {"epsilon_budget": 8.0})
    figures = started.summary("run")
    assert (figures.rounds_applied, figures.rounds_skipped, figures.last_roster) == (1, 1, 3)
    assert (figures.bytes_up, figures.bytes_down) == (86, 162)
    assert (figures.bytes_up, figures.bytes_down) == tuple(
        sum(getattr(row, name) for row in started.silo_rows("run")) for name in ("bytes_up", "bytes_down")
    )
    assert (figures.accuracy, figures.loss, figures.best_accuracy) == (0.5, 0.75, 0.75)
    assert (figures.epsilon_total, figures.epsilon_budget) == (3.0, 8.0)


def test_one_proposal_without_guarantee_leaves_no_total(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.commit_round(a_commit(2, ledger=(LedgerEntry("a", 2, 1000, 25, 0.0, None),)))
    assert {row.name: row.epsilon_ledger for row in started.silo_rows("run")} == {"a": None, "b": 1.5}
    assert (started.summary("run").epsilon_total, started.summary("run").epsilon_counted) == (None, None)


def test_a_new_run_has_spent_nothing(started: SqlStore) -> None:
    figures = started.summary("run")
    assert (figures.rounds_applied, figures.epsilon_total, figures.accuracy, figures.last_roster) == (0, 0.0, None, 0)


def test_rounds_come_a_page_at_a_time(started: SqlStore) -> None:
    for number in range(1, 6):
        started.commit_round(a_commit(number))
    assert [view.row.round for view in started.rounds("run", 2, 3)] == [2, 3, 4]
    assert [view.row.round for view in started.rounds("run", 5, 3)] == [5]
    assert started.rounds("run", 6, 3) == []
    assert started.round_row("run", 6) is None


def test_thinning_keeps_the_evaluated_rounds_and_the_last(started: SqlStore) -> None:
    for number in range(1, 24):
        started.commit_round(a_commit(number))
    for number in (3, 8, 13, 18):
        started.add_metrics("run", number, "judge", "evaluator", {"accuracy": number / 100})
    views = started.thinned_rounds("run", 4)
    assert [(view.row.round, view.accuracy) for view in views] == [(3, 0.03), (8, 0.08), (18, 0.18), (23, None)]
    assert len(started.thinned_rounds("run", 1000)) == 23


def test_the_last_and_the_best_model_are_kept(started: SqlStore) -> None:
    for number in range(1, 7):
        started.commit_round(a_commit(number))
    started.add_metrics("run", 2, "judge", "evaluator", {"accuracy": 0.9, "model_version": 2})
    started.add_metrics("run", 3, "judge", "evaluator", {"accuracy": 0.7, "model_version": 3})
    assert started.retire_models("run", keep_last=2) == [0, 1, 3, 4]
    assert [(model.version, model.best, model.accuracy) for model in started.models("run")] == [
        (2, True, 0.9),
        (5, False, None),
        (6, False, None),
    ]
    assert started.retire_models("run", keep_last=0) == [5]


def test_the_best_model_moves_on_and_the_old_best_may_go(started: SqlStore) -> None:
    for number in range(1, 4):
        started.commit_round(a_commit(number))
        started.add_metrics("run", number, "judge", "evaluator", {"accuracy": number / 10, "model_version": number})
    assert [model.version for model in started.models("run") if model.best] == [3]
    assert started.retire_models("run", keep_last=1) == [0, 1, 2]


def test_the_evaluators_own_figures_come_back_with_the_round_and_the_run(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.commit_round(a_commit(2))
    figures = {"auroc": 0.9, "f\x001": 0.5, "broken": float("nan")}
    started.add_metrics("run", 1, "judge", "evaluator", {"loss": 0.5, "metrics": figures})
    started.add_metrics("run", 1, "judge", "evaluator", {"loss": 0.25})
    started.add_metrics("run", 2, "a", "silo", {"loss": 0.5, "metrics": {"auroc": 0.1}})
    kept = {"auroc": 0.9, "f\ufffd1": 0.5}
    assert [view.metrics for view in started.rounds("run", 1, 5)] == [kept, {}]
    assert started.summary("run").metrics == kept


def test_a_reporter_cannot_fill_the_store_with_figures(started: SqlStore) -> None:
    started.commit_round(a_commit(1))
    started.add_metrics("run", 1, "judge", "evaluator", {"loss": 0.5, "metrics": {"x" * 5000 + str(n): 1.0 for n in range(100)}})
    started.add_metrics("run", 1, "judge", "evaluator", {"loss": 0.5, "metrics": {f"{n:04}": 1.0 for n in range(1000)}})
    assert len(started.summary("run").metrics) == 64


def test_the_score_decides_which_model_is_the_best_and_without_one_none_is(started: SqlStore) -> None:
    for number in range(1, 4):
        started.commit_round(a_commit(number))
    started.add_metrics("run", 1, "judge", "evaluator", {"accuracy": 0.3, "score": -2.0, "model_version": 1})
    started.add_metrics("run", 2, "judge", "evaluator", {"accuracy": 0.9, "score": -5.0, "model_version": 2})
    started.add_metrics("run", 3, "judge", "evaluator", {"accuracy": 0.9, "score": None, "model_version": 3})
    assert [(model.version, model.best, model.score) for model in started.models("run")] == [
        (0, False, None),
        (1, True, -2.0),
        (2, False, -5.0),
        (3, False, None),
    ]


def test_attendance_survives_json() -> None:
    entry = RosterEntry(SiloName("a"), b"\x01" * 32, b"\x02" * 32, b"\x03" * 70)
    attendance = Attendance({SiloName("a"): Standing(entry, 3, False, 2, 9)}, frozenset({SiloName("b")}))
    assert attendance_from_json(attendance_to_json(attendance)) == attendance
    promised = replace(entry, promise=RecordPromise(8.0, 1e-5))
    standing = Attendance({SiloName("a"): Standing(promised, 3)})
    assert attendance_from_json(json.loads(json.dumps(attendance_to_json(standing)))) == standing
    older = attendance_to_json(attendance)
    del older["standings"]["a"]["promise"]
    assert attendance_from_json(older) == attendance
    assert attendance_from_json({}) == Attendance()
