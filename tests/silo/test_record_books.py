"""What training costs the records: charged before it starts, over all runs of a data set; the silo stops before the budget."""

from __future__ import annotations

import json
import multiprocessing
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedrep.errors import FedrepError, RefusedError, SettingsError
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.silo_effects import Trained, TrainingFailed, TrainingRefused
from fedrep.protocol.silo_state import Journal
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_cli.client_check import _policy, _records
from fedrep_silo.audit import Audit
from fedrep_silo.config import SiloSettings, load_silo_settings
from fedrep_silo.following import Follower
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.reports import _add_records
from fedrep_silo.run_folders import settings_for
from fedrep_silo.state import StateFolder
from fedrep_trainers.layout import Vector
from fedrep_trainers.settings import PrivacySettings
from fedrep_trainers.trainer import TrainResult
from tests.harness.federation import PARAMETERS, Federation, StubTrainer
from tests.harness.scenarios import finish_in_step, serve
from tests.protocol.federation import Federation as CoreFederation
from tests.silo.charging import PRIVACY, StatingTrainer, books, charge_until_refused, die, trained, training


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("records"), silos=4)


class LateTrainer(StatingTrainer):
    """Notes what the books hold when its training starts."""

    def __init__(self, books: RecordBooks) -> None:
        super().__init__()
        self._books = books
        self.charged: list[int] = []

    def train(self, model: Vector, round_number: int) -> TrainResult:
        self.charged.append(self._books.ledger().trainings)
        return super().train(model, round_number)


def test_a_training_is_charged_before_it_starts(tmp_path: Path) -> None:
    trainer = LateTrainer(books(tmp_path))
    assert isinstance(trained(training(tmp_path, trainer)), Trained)
    assert trainer.charged == [1]


def test_a_training_that_fails_is_charged_all_the_same(tmp_path: Path) -> None:
    class Failing(StatingTrainer):
        def train(self, *_: Any) -> TrainResult:
            raise RuntimeError("out of memory")

    assert isinstance(trained(training(tmp_path, Failing())), TrainingFailed)
    assert books(tmp_path).standing().epsilon == pytest.approx(0.4)


def test_the_silo_stops_before_the_budget_and_trains_no_more(tmp_path: Path) -> None:
    trainer = StatingTrainer()
    work = training(tmp_path, trainer)
    outcomes = [type(trained(work, round_number=number)) for number in (1, 2, 3)]
    assert outcomes == [Trained, Trained, TrainingRefused], "a third training would make 1.2 of 1.0"
    assert trainer.trained_rounds == [1, 2]
    standing = books(tmp_path).standing()
    assert standing.epsilon == pytest.approx(0.8)
    assert standing.budget == 1.0


def test_one_budget_covers_all_runs_over_a_data_set(tmp_path: Path) -> None:
    assert isinstance(trained(training(tmp_path, StatingTrainer()), "first"), Trained)
    assert isinstance(trained(training(tmp_path, StatingTrainer()), "second"), Trained)
    assert isinstance(trained(training(tmp_path, StatingTrainer()), "third"), TrainingRefused)


def test_purging_a_run_forgets_nothing_of_what_training_cost(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    trained(training(tmp_path / "ledger", StatingTrainer()))
    folder.purge()
    assert books(tmp_path / "ledger").standing().epsilon == pytest.approx(0.4)


def test_two_silos_of_one_data_set_never_charge_the_same_budget_twice(tmp_path: Path) -> None:
    """Processes that all see the same file: only as many trainings as fit are let through."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        let_through = pool.starmap(charge_until_refused, [(tmp_path, f"run-{n}") for n in range(4)])
    assert sum(let_through) == 20
    assert books(tmp_path, PrivacySettings(epsilon=2.0, delta=1e-5)).ledger().trainings == 20


@pytest.mark.parametrize(("moment", "charged"), [("before", 0), ("during", 1), ("after", 1)])
def test_kill_9_forgets_no_training_that_started(tmp_path: Path, moment: str, charged: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(tmp_path, moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert books(tmp_path).ledger().trainings == charged
    assert isinstance(trained(training(tmp_path, StatingTrainer())), Trained)
    assert books(tmp_path).ledger().trainings == charged + 1, "it is trained again, and paid for again"


def test_trainings_without_a_statement_are_counted_and_no_later_budget_covers_them(tmp_path: Path) -> None:
    assert isinstance(trained(training(tmp_path, StubTrainer(), None)), Trained)
    assert books(tmp_path, None).standing().figures() == {"record_epsilon": "none"}
    with pytest.raises(RefusedError, match="no epsilon covers it"):
        books(tmp_path).check(StatingTrainer())
    assert isinstance(trained(training(tmp_path, StatingTrainer())), TrainingRefused)


def test_a_trainer_that_states_its_privacy_is_in_the_books_without_a_budget(tmp_path: Path) -> None:
    trained(training(tmp_path, StatingTrainer(), None))
    figures = books(tmp_path, None).standing().figures()
    assert figures == {"record_epsilon": 0.4, "record_delta": 1e-5, "record_budget": None, "record_trainings": 1}


def test_a_budget_needs_a_trainer_that_says_what_it_costs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="StubTrainer does not"):
        books(tmp_path).check(StubTrainer())
    silent = StatingTrainer()
    silent.statement = None
    assert isinstance(trained(training(tmp_path, silent)), TrainingRefused)
    assert silent.trained_rounds == []


def test_books_that_cannot_be_read_stop_the_silo(tmp_path: Path) -> None:
    trained(training(tmp_path, StatingTrainer()))
    (tmp_path / "records.json").write_text('{"charges": [')
    with pytest.raises(SettingsError, match="restore it from a backup"):
        books(tmp_path).check(StatingTrainer())
    outcome = trained(training(tmp_path, StatingTrainer()))
    assert isinstance(outcome, TrainingFailed)
    assert "restore it from a backup" in outcome.text


def test_a_silo_that_has_trained_does_not_start_without_its_books(federation: Federation, tmp_path: Path) -> None:
    """A ledger's disk that is not there would give a new budget for the same records."""
    own = {"privacy": PRIVACY, "ledger": tmp_path / "ledger", "state": tmp_path / "state"}
    federation.daemon(0, "books-lost", StatingTrainer(), **own)  # new: nothing was trained, so there is nothing to know of
    StateFolder(tmp_path / "state", private=True).save_journal(Journal(run="aa", proposal=(3, 2, 0.5, "")))
    with pytest.raises(SettingsError, match="knows of no training") as refused:
        federation.daemon(0, "books-lost", StatingTrainer(), **own)
    assert refused.value.reason == "BOOKS_LOST"
    trained(training(tmp_path / "ledger", StatingTrainer()))
    federation.daemon(0, "books-lost", StatingTrainer(), **own)


def test_a_running_silo_trains_no_more_when_its_books_go_missing_or_back(tmp_path: Path) -> None:
    mine = training(tmp_path, StatingTrainer())
    trained(mine)
    kept = (tmp_path / "records.json").read_bytes()
    trained(mine)
    for earlier in (None, kept):
        if earlier is None:
            (tmp_path / "records.json").unlink()
        else:
            (tmp_path / "records.json").write_bytes(earlier)
        outcome = trained(mine)
        assert isinstance(outcome, TrainingFailed)
        assert "has seen 2 trainings in its books" in outcome.text


def test_a_following_silo_does_not_start_without_the_books_of_its_earlier_runs(federation: Federation, tmp_path: Path) -> None:
    own = {"privacy": PRIVACY, "ledger": tmp_path / "ledger", "state": tmp_path / "state"}
    settings = federation.settings(0, "*", **own)

    def follow() -> Follower:
        return Follower(settings, StatingTrainer, lambda of, trainer: federation.daemon(0, of.run, trainer, **own))

    follow()
    earlier = settings_for(settings, "earlier").state
    StateFolder(earlier, private=True).save_journal(Journal(run="aa", proposal=(3, 2, 0.5, "")))
    with pytest.raises(SettingsError, match="knows of no training") as refused:
        follow()
    assert refused.value.reason == "BOOKS_LOST"
    trained(training(tmp_path / "ledger", StatingTrainer()))
    follow()


def test_what_a_trainer_states_is_no_guarantee_for_others_without_a_budget(tmp_path: Path) -> None:
    """Nothing else keeps losses, counts and timings from leaving beside it."""
    trained(training(tmp_path, StatingTrainer(), None))
    request = pb.ReportMetricsRequest()
    _add_records(request, books(tmp_path, None).standing())
    assert request.record_none
    assert not request.HasField("record_epsilon")


def test_the_audit_says_what_each_training_cost(tmp_path: Path) -> None:
    work = training(tmp_path, StatingTrainer())
    for number in (1, 2):
        trained(work, round_number=number)
    entries = list(Audit(tmp_path / "audit.jsonl").entries())
    assert [(e["what"], e["bytes"], e["round"]) for e in entries] == [("training", 0, 1), ("training", 0, 2)]
    assert [e["record_epsilon"] for e in entries] == pytest.approx([0.4, 0.8])


def test_privacy_refuses_a_memory_from_before_it(tmp_path: Path) -> None:
    state = {"momentum": np.zeros(PARAMETERS, np.float32)}
    before = StateFolder(tmp_path)
    before.save_journal(Journal())
    before.save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), state)
    with pytest.raises(SettingsError, match="before \\[privacy\\]"):
        StateFolder(tmp_path, private=True).load(StatingTrainer())
    private = StateFolder(tmp_path, private=True)
    private.save_memory(ErrorMemory(np.ones(PARAMETERS, np.float32)), state)
    assert StateFolder(tmp_path, private=True).load(StatingTrainer()).memory.residual.sum() == PARAMETERS


def test_privacy_refuses_figures_that_it_does_not_cover() -> None:
    with pytest.raises(ValidationError, match="which \\[privacy\\] does not"):
        SiloSettings(privacy=PRIVACY, report="all")


def test_three_lines_of_toml_reach_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "client.toml").write_text('run = "r"\n[privacy]\nepsilon = 8\ndelta = 1e-5\n')
    settings = load_silo_settings(tmp_path / "client.toml", {})
    assert settings.trainer.privacy == settings.privacy == PrivacySettings(epsilon=8.0, delta=1e-5)


def test_a_budget_under_trainer_is_refused_with_the_table_it_belongs_to(tmp_path: Path) -> None:
    (tmp_path / "client.toml").write_text('run = "r"\n[trainer.privacy]\nepsilon = 8\ndelta = 1e-5\n')
    with pytest.raises(FedrepError, match="write \\[privacy\\]"):
        load_silo_settings(tmp_path / "client.toml", {})


def test_a_silo_whose_record_budget_is_spent_holds_shares_once_more_and_leaves(federation: Federation, tmp_path: Path) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3)
        federation.not_waiting_for(0, run, in_rounds=[3])
        frugal = federation.daemon(0, run, StatingTrainer(), privacy=PRIVACY, ledger=tmp_path)
        ended = await finish_in_step(frugal, *(federation.daemon(n, run) for n in (1, 2, 3)))
        assert isinstance(ended[0], RefusedError)
        assert "no further one fits its record budget of epsilon = 1" in str(ended[0])
        assert ended[1:] == [None] * 3
        assert any("record budget" in event.text for event in await federation.events(run, "problem"))
        status = json.loads((frugal.folder.folder / "status.json").read_text())
        assert status["record_epsilon"] == pytest.approx(0.8)
        assert status["record_budget"] == 1.0

    serve(federation, scenario, "record-budget")


def test_privacy_lets_no_sample_count_leave(federation: Federation, tmp_path: Path) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        generous = PrivacySettings(epsilon=5.0, delta=1e-6)
        daemons = [federation.daemon(n, run, StatingTrainer(n), privacy=generous, ledger=tmp_path / str(n)) for n in range(3)]
        daemons.append(federation.daemon(3, run))
        seen: dict[int, Any] = {}

        def listen(number: int) -> None:
            sent = daemons[number].connection.report

            async def spy(request: Any) -> None:
                seen[number] = request
                await sent(request)

            daemons[number].connection.report = spy  # type: ignore[method-assign]

        listen(0)
        listen(3)
        assert await finish_in_step(*daemons) == [None] * 4
        private, plain = seen[0], seen[3]
        assert not private.HasField("samples")
        assert plain.HasField("samples")
        assert (private.record_epsilon, private.record_delta, private.record_budget) == (pytest.approx(0.4), 1e-6, 5.0)
        assert not private.record_none
        assert plain.record_none
        assert not plain.HasField("record_epsilon")

    serve(federation, scenario, "record-report")


def test_a_run_that_asks_for_a_promise_is_joined_by_silos_with_a_budget_and_by_no_others(tmp_path: Path) -> None:
    """The fourth never comes: a server that gathered everybody would wait for it until its limit."""
    federation = Federation.create(tmp_path / "federation", silos=4, gather_seconds=0.0)

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1, quorum=3, record_epsilon_at_most=1.0, delta_at_most=1e-5)
        private = [federation.daemon(n, run, StatingTrainer(n), privacy=PRIVACY, ledger=tmp_path / str(n)) for n in range(3)]
        careless = federation.daemon(3, run)
        ended = await finish_in_step(*private, careless)
        assert ended[:3] == [None] * 3
        assert "this silo has no budget for records" in str(ended[3])

    serve(federation, scenario, "record-promise")


def test_check_says_whether_the_budget_meets_what_the_run_asks_for(tmp_path: Path) -> None:
    run = replace(CoreFederation.of(5).run, record_epsilon_at_most=1.0, delta_at_most=1e-5)
    assert _policy(SiloSettings(privacy=PRIVACY, ledger=tmp_path), run, "silo-00")["outcome"] == "ok"
    for privacy in (None, PrivacySettings(epsilon=1.1, delta=1e-5)):
        found = _policy(SiloSettings(privacy=privacy, ledger=tmp_path), run, "silo-00")
        assert found["outcome"] == "failed"
        assert "at most epsilon 1.0 at delta 1e-05" in found["text"]


def test_check_says_how_long_the_budget_lasts_and_charges_nothing(tmp_path: Path) -> None:
    run = replace(CoreFederation.of(5).run, rounds=10)
    settings = SiloSettings(privacy=PRIVACY, ledger=tmp_path)
    found = _records(settings, run, StatingTrainer(), 0)
    assert found["outcome"] == "warning"
    assert "spent 0.000 of 1, which lasts for 2 more trainings of 10" in found["text"]
    assert not list(tmp_path.glob("*.json"))
    assert _records(settings, run, StatingTrainer(), 8)["outcome"] == "ok"
    assert _records(settings, run, StubTrainer(), 8)["outcome"] == "failed"
    without = SiloSettings(ledger=tmp_path)
    assert "no budget set" in _records(without, run, StatingTrainer(), 8)["text"]
    assert _records(without, run, StubTrainer(), 8)["outcome"] == "warning"
