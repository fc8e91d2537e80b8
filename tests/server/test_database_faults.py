"""One error of the database, before or after what it was asked for has happened: the run goes on, and nothing counts twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrep.errors import StoreUnavailableError
from fedrep.protocol.run_progress import RunState
from fedrep.wire import codec
from fedrep_runtime.run_config import StopConfig
from fedrep_server.rounds import records
from fedrep_server.rounds.interpreter import EndedRound
from fedrep_server.store import Store
from tests.harness.live_server import SILOS, STEP, LiveServer, joined, wait_for_round, wait_until
from tests.harness.mini_silo import play_round
from tests.harness.people import People

RUN = "faulty"


class Faulty:
    """A store one of whose methods fails once: `early` before it did anything, else when all is done but the answer."""

    def __init__(self, store: Store, method: str, *, early: bool) -> None:
        self._store = store
        self._method = method
        self._early = early
        self.failed = False
        self.for_good = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._method or (self.failed and not self.for_good):
            return real

        def failing(*args: Any, **kwargs: Any) -> Any:
            self.failed = True
            if not self._early:
                real(*args, **kwargs)
            raise StoreUnavailableError("the database went away")

        return failing


class Failures:
    """Counts how often the database did not take the start or the end of a round."""

    def __init__(self) -> None:
        self.count = 0

    def round_ended(self, ended: EndedRound) -> None:
        assert ended.run == RUN

    def commit_failed(self) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People.create(tmp_path_factory.mktemp("people"), SILOS)


@pytest.fixture
def live(people: People, url: str, tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(people, tmp_path / "data", database=url) as server:
        yield server


def breaks(server: LiveServer, method: str, *, early: bool) -> Faulty:
    records = server.driver(RUN).records
    faulty = Faulty(records.store, method, early=early)
    records.store = faulty
    return faulty


def totals(server: LiveServer) -> tuple[int, int, int, list[float | None]]:
    store = server.running.coordinator.store
    figures = store.summary(RUN)
    spent = [row.epsilon_ledger for row in store.silo_rows(RUN)]
    return figures.rounds_applied, figures.rounds_skipped, server.driver(RUN).last_round, spent


@pytest.mark.parametrize("early", [True, False], ids=["not written", "written, and the word lost"])
def test_a_round_is_committed_once_and_the_next_one_opens(live: LiveServer, early: bool) -> None:
    live.create_run(RUN, alpha=0.5)
    silos = joined(live, RUN)
    first = wait_for_round(live, RUN)
    faulty = breaks(live, "commit_round", early=early)
    play_round(silos, first, STEP)
    play_round(silos, wait_for_round(live, RUN, after=1), STEP)
    assert faulty.failed
    applied, skipped, last, spent = totals(live)
    assert (applied, skipped, last) == (2, 0, 2)
    ledger = [live.running.coordinator.store.ledger(RUN, silo) for silo in SILOS]
    assert [[entry.round for entry in entries].count(1) for entries in ledger] == [1] * len(SILOS)
    assert spent == [sum(entry.epsilon or 0.0 for entry in entries) for entries in ledger]


@pytest.mark.parametrize("early", [True, False], ids=["not written", "written, and the word lost"])
def test_a_round_opens_although_its_number_was_asked_for_in_vain(live: LiveServer, early: bool) -> None:
    live.create_run(RUN)
    faulty = breaks(live, "open_round", early=early)
    silos = joined(live, RUN)
    play_round(silos, wait_for_round(live, RUN), STEP)
    assert faulty.failed
    assert totals(live)[:3] == (1, 0, 1)


@pytest.mark.parametrize("method", ["summary", "set_run_state"], ids=["the totals", "the end of the run"])
def test_a_budget_that_is_used_up_ends_the_run_although_the_database_fails_meanwhile(live: LiveServer, method: str) -> None:
    live.create_run(RUN, stop=StopConfig(epsilon_budget=1e-6))
    silos = joined(live, RUN)
    first = wait_for_round(live, RUN)
    faulty = breaks(live, method, early=True)
    play_round(silos, first, STEP)
    wait_until(lambda: live.driver(RUN).state is RunState.FINISHED)
    assert faulty.failed
    assert totals(live)[:3] == (1, 0, 1)


def test_while_the_totals_cannot_be_read_no_round_opens_and_then_the_next_does(live: LiveServer) -> None:
    live.create_run(RUN)
    silos = joined(live, RUN)
    first = wait_for_round(live, RUN)
    faulty = breaks(live, "summary", early=True)
    faulty.for_good = True
    failures = Failures()
    live.driver(RUN)._interpreter._listeners = [failures]
    play_round(silos, first, STEP)
    wait_until(lambda: failures.count)
    assert live.driver(RUN).open is None
    faulty.for_good = False
    play_round(silos, wait_for_round(live, RUN, after=1), STEP)
    assert totals(live)[:3] == (2, 0, 2)


@pytest.mark.parametrize("method", ["retire_models", "forget_past"])
@pytest.mark.parametrize("early", [True, False], ids=["not written", "written, and the word lost"])
def test_cleaning_up_may_fail_and_is_made_up_for(
    live: LiveServer, method: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHECKPOINT_EVERY", 1)  # else the model that replay starts from is kept
    live.create_run(RUN, keep_models=1)
    silos = joined(live, RUN)
    first = wait_for_round(live, RUN)
    faulty = breaks(live, method, early=early)
    play_round(silos, first, STEP)
    play_round(silos, wait_for_round(live, RUN, after=1), STEP)
    assert faulty.failed
    models = live.running.coordinator.models
    wait_until(lambda: models.versions(RUN) == [2])
    assert totals(live)[:3] == (2, 0, 2)


def test_cleaning_up_that_never_works_holds_no_round_up(live: LiveServer) -> None:
    live.create_run(RUN)
    silos = joined(live, RUN)
    first = wait_for_round(live, RUN)
    breaks(live, "retire_models", early=True).for_good = True
    play_round(silos, first, STEP)
    play_round(silos, wait_for_round(live, RUN, after=1), STEP)
    assert totals(live)[:3] == (2, 0, 2)


def rolled_back(server: LiveServer) -> None:
    """To the first model, as an admin's call does it."""
    admin = server.people.credentials["admin"]
    order = codec.rollback_from_wire(server.rollback_request(RUN, 0, "admin").order)
    driver, coordinator = server.driver(RUN), server.running.coordinator
    server.ask(coordinator.roll_back(driver, 0, order, admin.trust_store().verify(admin.chain)))


@pytest.mark.parametrize("away", [False, True], ids=["back at once", "away for a while"])
def test_a_rollback_whose_word_was_lost_is_found_and_counts(live: LiveServer, away: bool) -> None:
    live.create_run(RUN)
    silos = joined(live, RUN)
    play_round(silos, wait_for_round(live, RUN), STEP)
    wait_for_round(live, RUN, after=1)
    faulty = breaks(live, "save_progress", early=False)
    looked = breaks(live, "run", early=True) if away else None
    rolled_back(live)
    assert faulty.failed
    assert looked is None or looked.failed
    driver, store = live.driver(RUN), live.running.coordinator.store
    kept = store.run(RUN).progress
    assert (driver.model.state.version, driver.model.state.hash) == (kept.model_version, kept.model_hash)
    assert kept.model_version == 2
    assert [stored.event.kind for stored in store.events(RUN, 0, 100)].count("rolled_back") == 1
    third = wait_for_round(live, RUN, after=2)
    assert third.model_version == 2


def test_a_rollback_that_was_not_written_changes_nothing_and_stands_in_the_way_of_no_round(live: LiveServer) -> None:
    live.create_run(RUN)
    silos = joined(live, RUN)
    play_round(silos, wait_for_round(live, RUN), STEP)
    second = wait_for_round(live, RUN, after=1)
    breaks(live, "save_progress", early=True)
    driver, coordinator = live.driver(RUN), live.running.coordinator
    with pytest.raises(StoreUnavailableError):
        rolled_back(live)
    assert (driver.model.state.version, coordinator.store.run(RUN).progress.model_version) == (1, 1)
    assert second.round == 2
    third = wait_for_round(live, RUN, after=2)
    play_round(silos, third, STEP)
    assert driver.model.state.version == coordinator.store.run(RUN).progress.model_version == 2
    assert coordinator.store.models(RUN)[-1].hash == driver.model.state.hash


def test_a_run_whose_creation_was_not_heard_of_can_be_created_again(live: LiveServer) -> None:
    coordinator = live.running.coordinator
    signed, config, vector = live.signed_run(RUN)
    store = coordinator.store
    coordinator.store = Faulty(store, "create_run", early=False)
    with pytest.raises(StoreUnavailableError):
        live.ask(coordinator.create_run(signed, config.options(""), vector.tobytes()))
    coordinator.store = store
    live.ask(coordinator.create_run(signed, config.options(""), vector.tobytes()))
    silos = joined(live, RUN)
    play_round(silos, wait_for_round(live, RUN), STEP)
    assert totals(live)[:3] == (1, 0, 1)
