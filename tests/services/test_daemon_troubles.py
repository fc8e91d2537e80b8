"""What a silo does when something is wrong: the server is away, training fails, its own policy says no."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from fedrep.errors import FedrepError, RefusedError, SettingsError
from fedrep.wire.v1 import federation_pb2
from services.client.config import DrillSettings, PolicySettings
from services.client.connection import ServerAwayError
from services.client.daemon import SiloDaemon
from services.identity.certificates import Role
from services.runtime.files import lock_folder
from services.runtime.run_config import DeadlineConfig
from tests.services.federation import Federation, StubTrainer, free_port, run_scenario

Scenario = Callable[[Federation, str], Awaitable[None]]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("troubles"), silos=4)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def serve(federation: Federation, scenario: Scenario, run: str) -> None:
    async def served() -> None:
        async with federation.serving():
            await scenario(federation, run)

    run_scenario(served(), 60)


async def finish(*daemons: SiloDaemon) -> list[BaseException | None]:
    """Every daemon until its end, and how each ended."""
    ended = await asyncio.gather(*(daemon.run() for daemon in daemons), return_exceptions=True)
    for daemon in daemons:
        await daemon.connection.close()
    return ended


def test_a_failed_training_is_reported_and_the_next_round_is_tried(federation: Federation, lines: list[Any]) -> None:
    def fail_once(round_number: int) -> None:
        if round_number == 1:
            raise RuntimeError("CUDA out of memory")

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3, deadlines=DeadlineConfig(propose=1.5, submit=9, confirm=9, reveal=9))
        broken = federation.daemon(0, run, StubTrainer(0, before_training=fail_once))
        assert await finish(broken, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        rounds = await federation.rounds(run)
        assert [row.silos[0].status for row in rounds] == ["late", "on_time", "on_time"]
        assert all(row.outcome == federation_pb2.OUTCOME_APPLIED for row in rounds)
        (event,) = await federation.events(run, "problem")
        assert "CUDA out of memory" in event.text
        assert (event.silo, event.round) == ("silo-0", 1)

    serve(federation, scenario, "training-fails-once")
    assert any(line["event"] == "training_failed" and line["round"] == 1 for line in lines)


def test_a_silo_whose_training_keeps_failing_stops_and_leaves(federation: Federation) -> None:
    def fail(round_number: int) -> None:
        raise ValueError("patient 4711 has no label")

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3, deadlines=DeadlineConfig(propose=1.5, submit=9, confirm=9, reveal=9))
        trainer = StubTrainer(0, before_training=fail)
        broken = federation.daemon(0, run, trainer, training_failures=2, report="counts")
        ended = await finish(broken, *(federation.daemon(n, run) for n in (1, 2, 3)))
        assert ended[1:] == [None] * 3
        assert isinstance(ended[0], FedrepError)
        assert "2 times in a row" in str(ended[0])
        status = await federation.status(run)
        assert status.silos[0].state == "left"
        problems = await federation.events(run, "problem")
        assert len(problems) == 2
        assert not any("4711" in event.text for event in problems), 'only report = "all" sends the text of an error'

    serve(federation, scenario, "training-fails")


def test_a_slow_trainer_is_a_bystander_and_not_punished(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3, deadlines=DeadlineConfig(propose=1.5, submit=9, confirm=9, reveal=9))
        slow = federation.daemon(0, run, StubTrainer(0, seconds=3.5))
        assert await finish(slow, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        rounds = await federation.rounds(run)
        assert [row.reason for row in rounds] == [""] * 3
        assert [row.silos[0].status for row in rounds] == ["late"] * 3
        silo = (await federation.status(run)).silos[0]
        assert (silo.state, silo.strikes) == ("present", 0)
        assert slow.books.journal.revealed == (1, 2, 3), "it still answers for the others' shares"
        assert slow.model is not None
        assert slow.model.version == 3
        assert not slow.books.memory.residual.any(), "stale updates do not pile up"

    serve(federation, scenario, "slow")


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "smallest_buffer": ({"smallest_buffer": 3}, {}, "smaller than the 3"),
    "least_alpha": ({"least_alpha": 0.9}, {}, "0.9 this silo asks for"),
    "largest_fraction": ({"largest_fraction": 0.1}, {}, "above the allowed 0.1"),
    "smallest_range": ({"smallest_range": 0.5}, {}, "below the 0.5"),
    "allowed_runs": ({"allowed_runs": ("another",)}, {}, "not among the runs"),
    "model_hash": ({"model_hash": "00" * 32}, {}, "not the one this silo expects"),
    "allow_drills": ({}, {"drills": True}, "attack drills"),
}


@pytest.mark.parametrize("field", REFUSALS)
def test_a_run_outside_the_policy_is_refused_with_the_reason_in_log_and_events(
    federation: Federation, lines: list[Any], field: str
) -> None:
    policy, options, reason = REFUSALS[field]

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, **options)
        (ended,) = await finish(federation.daemon(0, run, policy=PolicySettings(**policy)))
        assert isinstance(ended, RefusedError)
        assert reason in str(ended)
        (event,) = await federation.events(run, "problem")
        assert reason in event.text
        status = await federation.status(run)
        assert status.silos[0].state == "absent", "it never joined"
        assert reason in status.silos[0].problem

    serve(federation, scenario, f"policy-{field}")
    assert any(line["event"] == "run_refused" and reason in line["why"] for line in lines)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [({"smallest_roster": 5}, "roster of 4 is smaller"), ({"roster_file": "pins"}, "not in this silo's pinned roster")],
)
def test_a_round_outside_the_policy_is_refused_with_the_reason(
    federation: Federation, policy: dict[str, Any], reason: str
) -> None:
    pins = federation.folder / "pins.txt"
    pins.write_text("# only one silo is trusted\n" + "ab" * 32 + "\n")
    if "roster_file" in policy:
        policy = {"roster_file": pins}

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1, quorum=3, deadlines=DeadlineConfig(propose=1.5, submit=9, confirm=9, reveal=9))
        careful = federation.daemon(0, run, policy=PolicySettings(**policy))
        assert await finish(careful, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        (event,) = await federation.events(run, "problem")
        assert reason in event.text
        assert careful.books.journal.ledger.rounds == 0
        audit = [json.loads(line) for line in (careful.books.folder.folder / "audit.jsonl").read_text().splitlines()]
        assert not any(entry["what"] in ("ProposeCoordinates", "ConfirmSurvivors", "RevealShares") for entry in audit)

    serve(federation, scenario, f"round-policy-{next(iter(policy))}")


def test_outside_its_hours_a_silo_trains_nothing_but_holds_shares(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1, quorum=3, deadlines=DeadlineConfig(propose=1.5, submit=9, confirm=9, reveal=9))
        trainer = StubTrainer(0)
        asleep = federation.daemon(0, run, trainer, policy=PolicySettings(hours=(0, 0)))
        assert await finish(asleep, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        assert trainer.trained_rounds == []
        assert asleep.books.journal.revealed == (1,)

    serve(federation, scenario, "hours")


def test_a_spent_epsilon_budget_stops_the_silo_and_it_says_so(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3, deadlines=DeadlineConfig(propose=1.5, submit=9, confirm=9, reveal=9))
        frugal = federation.daemon(0, run, policy=PolicySettings(epsilon_budget=8.0))  # one proposal costs about 5.2
        ended = await finish(frugal, *(federation.daemon(n, run) for n in (1, 2, 3)))
        assert isinstance(ended[0], RefusedError)
        assert "budget of 8" in str(ended[0])
        assert ended[1:] == [None] * 3
        assert frugal.books.journal.ledger.rounds == 1
        assert frugal.books.journal.revealed == (1, 2), "in the round it declines it is still a holder"
        assert any("budget of 8" in event.text for event in await federation.events(run, "problem"))
        status = await federation.status(run)
        assert status.silos[0].state == "left"
        assert status.silos[0].epsilon_budget == 8.0
        assert status.summary.rounds_applied == 3

    serve(federation, scenario, "budget")


def test_a_drill_is_refused_unless_the_run_allows_it_and_is_shown_where_it_does(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        (ended,) = await finish(federation.daemon(0, run, drill=DrillSettings(attack="bitflip")))
        assert isinstance(ended, RefusedError)
        assert ended.reason == "NO_DRILLS"
        allowed = PolicySettings(allow_drills=True)
        await federation.create_run(f"{run}-allowed", drills=True)
        attacker = federation.daemon(0, f"{run}-allowed", drill=DrillSettings(attack="bitflip"), policy=allowed, report="none")
        honest = [federation.daemon(n, f"{run}-allowed", policy=allowed) for n in (1, 2, 3)]
        assert await finish(attacker, *honest) == [None] * 4
        status = await federation.status(f"{run}-allowed")
        assert [silo.drill for silo in status.silos] == ["bitflip", "", "", ""]

    serve(federation, scenario, "drill")


def test_a_drill_that_cannot_be_played_is_refused_before_anything_starts(federation: Federation) -> None:
    with pytest.raises(SettingsError, match="no attack 'bitflop'"):
        federation.daemon(0, "x", drill=DrillSettings(attack="bitflop"))
    with pytest.raises(SettingsError, match="cannot play 'foe'"):
        federation.daemon(0, "x", drill=DrillSettings(attack="foe", options={"epsilun": 1}))


@pytest.mark.parametrize("report", ["none", "counts", "all"])
def test_only_the_figures_that_the_operator_allows_leave_the_silo(federation: Federation, report: str) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        daemons = [federation.daemon(n, run, report=report) for n in range(4)]
        seen: list[set[str]] = []
        sent = daemons[0].connection.report

        async def spy(request: Any) -> None:
            seen.append({field.name for field, _ in request.ListFields()})
            await sent(request)

        daemons[0].connection.report = spy  # type: ignore[method-assign]
        assert await finish(*daemons) == [None] * 4
        counts = {"run", "round", "model_version", "clip_rate", "epsilon_total", "given_up", "samples"}
        figures = {"train_loss", "loss", "accuracy", "train_seconds"}
        allowed = {"none": set(), "counts": counts, "all": counts | figures}[report]
        union = set().union(*seen)
        assert union <= allowed
        assert figures <= union if report == "all" else not union & figures

    serve(federation, scenario, f"report-{report}")


def test_a_second_process_on_the_same_state_folder_is_refused(federation: Federation) -> None:
    state = federation.settings(0, "locked").state

    async def scenario() -> None:
        with lock_folder(state):
            silo = federation.start_silo_process(0, "locked")
            assert await silo.wait() == 1
            assert "in use by another process" in silo.log.read_text()

    run_scenario(scenario())


def test_a_state_folder_serves_one_run_only(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await federation.create_run(f"{run}-2", rounds=1)
        state = federation.settings(0, run).state
        (ended,) = await finish(federation.daemon(0, f"{run}-2", state=state))
        assert isinstance(ended, RefusedError)
        assert ended.reason == "OTHER_RUN"

    serve(federation, scenario, "one-run")


def test_a_server_away_is_tried_again_with_growing_pauses_and_mentioned_once(
    federation: Federation, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def quick(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("services.client.connection.asyncio.sleep", quick)
    nobody = f"localhost:{free_port()}"

    async def scenario() -> None:
        daemon = federation.daemon(0, "away", server=nobody, give_up_after=2.0)
        with pytest.raises(ServerAwayError, match="out of reach"):
            await daemon.run()
        await daemon.connection.close()

    run_scenario(scenario(), 60)
    waits = [pause for pause in pauses if pause >= 0.25][:6]
    assert all(later > 0.99 * earlier for earlier, later in pairwise(waits)), "they grow"
    assert max(waits) > 2
    assert len({round(pause, 6) for pause in waits}) == len(waits), "and are jittered"
    assert sum(line["event"] == "server_away" for line in lines) == 1


def test_a_silo_whose_own_certificate_has_expired_says_so_and_goes_on_with_a_new_one(tmp_path: Path, lines: list[Any]) -> None:
    federation = Federation.create(tmp_path, silos=3)
    federation.issue("silo-0", Role.SILO, days=-0.001)

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        silos = asyncio.ensure_future(finish(*(federation.daemon(n, run) for n in range(3))))
        while not any(line["event"] == "server_away" for line in lines):
            await asyncio.sleep(0.05)
        federation.issue("silo-0", Role.SILO)
        assert await silos == [None] * 3

    serve(federation, scenario, "expired")
    said = [line["why"] for line in lines if line["event"] == "server_away"]
    assert len(said) == 1
    assert "silo-0 expired on" in said[0]
    assert "fedrep enroll" in said[0]


def test_a_server_of_another_federation_is_called_that(federation: Federation, tmp_path: Path, lines: list[Any]) -> None:
    other = Federation.create(tmp_path, silos=1)

    async def scenario(federation: Federation, run: str) -> None:
        stranger = other.daemon(0, run, server=federation.address, give_up_after=0.5)
        with pytest.raises(ServerAwayError, match="could not prove that it belongs to this federation"):
            await stranger.run()
        await stranger.connection.close()

    serve(federation, scenario, "not-ours")


def test_a_silo_started_before_its_run_waits_for_it(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        early = asyncio.ensure_future(finish(*(federation.daemon(n, run) for n in range(4))))
        await asyncio.sleep(0.3)
        await federation.create_run(run, rounds=1)
        assert await early == [None] * 4

    serve(federation, scenario, "later")


def test_silos_go_on_by_themselves_after_the_server_was_killed_in_mid_round(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        server = federation.start_server_process()
        await server.wait_until_serving()
        await federation.create_run(rounds=5)
        slow = [StubTrainer(number, seconds=0.3) for number in range(3)]
        daemons = [federation.daemon(number, trainer=slow[number]) for number in range(3)]
        silos = asyncio.ensure_future(finish(*daemons))
        await federation.until(lambda status: status.open_round >= 2)
        server.kill()
        server = federation.start_server_process()
        await server.wait_until_serving()
        assert await silos == [None] * 3
        summary = await federation.summary()
        assert summary.state == "finished"
        assert summary.rounds_applied + summary.rounds_skipped == 5
        assert summary.rounds_applied >= 3
        for daemon in daemons:
            assert daemon.model is not None
            assert daemon.model.version == summary.model_version
        chains = {daemon.model.chain for daemon in daemons if daemon.model is not None}
        assert len(chains) == 1
        for daemon in daemons:
            assert daemon.books.memory.pending == (), "the broken round's values came back"
            assert daemon.books.memory.given_up == 0
        assert server.terminate() == 0

    run_scenario(scenario())


def test_values_of_a_skipped_round_come_back_once_the_holders_have_renounced(federation: Federation) -> None:
    """The run is paused out of existence in the middle of a round: everybody gives a statement, nobody loses anything."""

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=3)
        daemons = [federation.daemon(n, run) for n in range(4)]
        held = asyncio.Event()
        survivors = daemons[0].connection.survivors

        async def hold(*arguments: Any) -> Any:
            """The first silo never confirms round 1; the others wait for it until the round is called off."""
            if arguments[1] == 1:
                await held.wait()
            return await survivors(*arguments)

        for daemon in daemons:
            daemon.connection.survivors = hold  # type: ignore[method-assign, assignment]
        silos = asyncio.ensure_future(finish(*daemons))
        assert federation.running is not None
        driver = federation.running.coordinator.run_named(run)
        while driver.open is None or driver.open.machine.phase.value != "confirm":
            await asyncio.sleep(0.02)
        before = [daemon.books.memory for daemon in daemons]
        await federation.running.coordinator.roll_back(driver, 0)  # skips the open round
        held.set()
        assert await silos == [None] * 4
        rounds = await federation.rounds(run)
        assert rounds[0].outcome == federation_pb2.OUTCOME_SKIPPED
        for daemon, memory in zip(daemons, before, strict=True):
            assert [pending.round for pending in memory.pending] == [1]
            assert daemon.books.journal.renounced == (1,)
            assert daemon.books.memory.pending == ()
            assert daemon.books.memory.given_up == 0
        sent = [np.abs(memory.pending[0].sent).sum() for memory in before]
        assert min(sent) > 0

    serve(federation, scenario, "renounce")


def test_the_evaluator_reports_every_version_and_keeps_the_best_model(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        evaluator = federation.evaluator(run)
        watching = asyncio.ensure_future(evaluator.run())
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        summary = await federation.summary(run)
        best = federation.settings("evaluator", run).state / "best.safetensors"
        assert best.exists()
        assert summary.accuracy > 0
        assert evaluator.model is not None
        assert evaluator.model.version == 3
        written = best.stat().st_mtime_ns
        again = federation.evaluator(run)
        await again.run()
        await again.leave()
        assert best.stat().st_mtime_ns == written, "a restart does not replace the best by one no better"

    serve(federation, scenario, "evaluated")


@pytest.mark.parametrize(("own", "evaluated"), [(None, [0, 2, 3]), (3, [0, 3])], ids=["as the run says", "its own setting"])
def test_evaluator_and_silos_evaluate_as_often_as_the_run_says_unless_told_otherwise(
    federation: Federation, own: int | None, evaluated: list[int]
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, evaluation_interval=2)
        evaluator = federation.evaluator(run, evaluate_every=own)
        watching = asyncio.ensure_future(evaluator.run())
        await federation.until(lambda status: status.summary.HasField("accuracy"), run)
        assert await finish(*(federation.daemon(n, run, evaluate_every=own) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        assert [event.round for event in await federation.events(run, "metrics")] == evaluated
        with_figures = [round.round for round in await federation.rounds(run) if round.silo_accuracy]
        assert with_figures == [number for number in (2, 3) if number % (own or 2) == 0]

    serve(federation, scenario, f"interval-{own}")


def test_the_audit_holds_an_entry_before_the_bytes_leave(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        daemons = [federation.daemon(n, run) for n in range(4)]
        assert await finish(*daemons) == [None] * 4
        path = federation.settings(0, run).state / "audit.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        by_kind = {entry["what"]: entry for entry in entries}
        assert by_kind["ProposeCoordinates"]["epsilon_total"] == pytest.approx(5.21, abs=0.01)
        assert len(by_kind["SubmitMaskedShare"]["mates"]) == 1
        assert {"Join", "ConfirmSurvivors", "RevealShares", "ReportMetrics"} <= set(by_kind)
        assert all(entry["bytes"] > 0 and entry["at"] <= time.time() for entry in entries)

    serve(federation, scenario, "audit")
