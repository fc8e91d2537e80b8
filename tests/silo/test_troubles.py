"""What a silo does when something is wrong: the server is away, training fails, its state is taken."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedrep.errors import FedrepError, RefusedError
from fedrep.protocol.messages import Aborted
from fedrep.wire.v1 import federation_pb2
from fedrep_cli.free_ports import free_port
from fedrep_identity.certificates import Role
from fedrep_runtime.files import lock_folder
from fedrep_runtime.run_config import DeadlineConfig
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import FIRST_PAUSE, LONGEST_PAUSE, ServerAwayError
from fedrep_silo.evaluator import Evaluator
from fedrep_silo.following import Follower
from fedrep_silo.state import StateFolder
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import run_scenario
from tests.harness.scenarios import confirmed_rounds, finish, finish_in_step, serve


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("troubles"), silos=4)


def test_a_failed_training_is_reported_and_the_next_round_is_tried(federation: Federation, lines: list[Any]) -> None:
    def fail_once(round_number: int) -> None:
        if round_number == 1:
            raise RuntimeError("CUDA out of memory")

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3)
        broken = federation.daemon(0, run, StubTrainer(0, before_training=fail_once))
        assert await finish_in_step(broken, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        rounds = await federation.rounds(run)
        assert [row.silos[0].status for row in rounds] == ["abstained", "on_time", "on_time"]
        assert all(row.outcome == federation_pb2.OUTCOME_APPLIED for row in rounds)
        (event,) = await federation.events(run, "problem")
        assert event.text == "silo-0: training failed; the silo's log says why"
        assert (event.silo, event.round) == ("silo-0", 1)

    serve(federation, scenario, "training-fails-once")
    assert any(line["event"] == "training_failed" and line["round"] == 1 for line in lines)


def test_a_silo_whose_training_keeps_failing_stops_and_leaves(federation: Federation) -> None:
    def fail(round_number: int) -> None:
        raise ValueError("patient 4711 has no label")

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, quorum=3)
        federation.not_waiting_for(0, run)
        trainer = StubTrainer(0, before_training=fail)
        broken = federation.daemon(0, run, trainer, training_failures=2, report="counts")
        ended = await finish_in_step(broken, *(federation.daemon(n, run) for n in (1, 2, 3)))
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
        # A silo that still trains after half this time asks whether it is too late.
        deadlines = DeadlineConfig(propose=1, submit=60, confirm=60, reveal=60)
        await federation.create_run(run, rounds=2, quorum=3, deadlines=deadlines)  # the third miss in a row would count
        federation.not_waiting_for(0, run)
        assert federation.running is not None
        driver = federation.running.coordinator.run_named(run)

        def until_the_round_is_over(round_number: int) -> None:
            while driver.last_round < round_number:
                time.sleep(0.02)

        slow = federation.daemon(0, run, StubTrainer(0, before_training=until_the_round_is_over))
        assert await finish_in_step(slow, *(federation.daemon(n, run) for n in (1, 2, 3))) == [None] * 4
        rounds = await federation.rounds(run)
        assert [row.reason for row in rounds] == [""] * 2
        assert [row.silos[0].status for row in rounds] == ["late"] * 2
        silo = (await federation.status(run)).silos[0]
        assert (silo.state, silo.strikes, silo.reason) == ("left", 0, "the run is over")
        assert confirmed_rounds(slow) == {1, 2}, "it still answers for the others' shares"
        assert slow.model is not None
        assert slow.model.version == 2
        assert not slow.state.memory.residual.any(), "stale updates do not pile up"

    serve(federation, scenario, "slow")


def test_an_audit_that_cannot_be_written_ends_the_silo_with_the_disks_error(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        daemon = federation.daemon(0, run)
        monkeypatch.setattr(daemon.connection._audit, "sent", full)
        with pytest.raises(OSError, match="No space left"):
            await daemon.run()
        await daemon.connection.close()

    serve(federation, scenario, "audit-full")


@pytest.mark.parametrize("error", [KeyError("99"), asyncio.CancelledError()], ids=["foreign", "cancelled by nobody"])
def test_a_call_that_dies_of_an_unforeseen_error_ends_the_silo_with_a_sentence(
    federation: Federation, lines: list[Any], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def fail(_: Any) -> Any:
        raise error

    async def scenario(federation: Federation, run: str) -> None:
        daemon = federation.daemon(0, run)
        monkeypatch.setattr(daemon.connection, "join", fail)
        with pytest.raises(FedrepError, match=f"nobody expected, {type(error).__name__}.*Start the silo again"):
            await daemon.run()
        await daemon.connection.close()

    serve(federation, scenario, f"dies-{type(error).__name__}")
    assert any(line["event"] == "task_died" for line in lines)


def test_a_report_that_the_audit_has_no_room_for_stays_here_and_stops_nobody(
    federation: Federation, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=2)
        daemons = [federation.daemon(n, run) for n in range(4)]
        sent = daemons[0].connection._audit.sent

        def no_room(what: str, *rest: Any, **details: Any) -> None:
            if what == "ReportMetrics":
                raise OSError(errno.ENOSPC, "No space left on device")
            sent(what, *rest, **details)

        monkeypatch.setattr(daemons[0].connection._audit, "sent", no_room)
        assert await finish(*daemons) == [None] * 4

    serve(federation, scenario, "report-full")
    assert sum(line["event"] == "report_not_sent" for line in lines) == 2


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
        first = federation.settings(0, run)
        (ended,) = await finish(federation.daemon(0, f"{run}-2", state=first.state, ledger=first.ledger))
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

    jitter: list[tuple[float, float]] = []

    def longest(least: float, most: float) -> float:
        jitter.append((least, most))
        return most

    monkeypatch.setattr("fedrep_silo.connection.asyncio.sleep", quick)
    monkeypatch.setattr("fedrep_silo.connection.time", SimpleNamespace(monotonic=lambda: sum(pauses)))
    monkeypatch.setattr("fedrep_silo.connection.random", SimpleNamespace(uniform=longest))
    nobody = f"localhost:{free_port()}"

    async def scenario() -> None:
        daemon = federation.daemon(0, "away", server=nobody, give_up_after=50.0)
        with pytest.raises(ServerAwayError, match="out of reach"):
            await daemon.run()
        await daemon.connection.close()
        told = daemon.folder.status()
        assert told["server_away"], "and the status says why"
        assert told["away_since"] <= time.time()

    run_scenario(scenario())
    waits = [pause for pause in pauses if pause >= FIRST_PAUSE]
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE], "they grow"
    assert set(jitter) == {(0.5, 1.0)}, "and are jittered"
    assert sum(line["event"] == "server_away" for line in lines) == 1


@pytest.mark.parametrize("kind", ["evaluator", "follower"])
def test_whoever_else_finds_the_server_away_says_so_in_its_status(federation: Federation, kind: str) -> None:
    nobody = f"localhost:{free_port()}"

    async def scenario() -> None:
        watching: Evaluator | Follower
        if kind == "evaluator":
            settings = federation.settings(kind, "away")
            watching = federation.evaluator("away", server=nobody, give_up_after=0.2)
        else:
            given = federation.settings(1, "follows").model_dump()
            settings = SiloSettings.model_validate(given | {"run": "*", "server": nobody, "give_up_after": 0.2})
            watching = Follower(settings, StubTrainer, lambda *_: pytest.fail("there is no run"))
        with pytest.raises(ServerAwayError):
            await watching.run()
        await watching.connection.close()
        assert watching.status["server_away"]
        assert StateFolder(settings.state).status()["server_away"] == watching.status["server_away"]

    run_scenario(scenario())


def test_a_silo_whose_own_certificate_has_expired_says_so_and_goes_on_with_a_new_one(tmp_path: Path, lines: list[Any]) -> None:
    federation = Federation.create(tmp_path, silos=3)
    federation.issue("silo-0", Role.SILO, days=-0.001)

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        daemons = [federation.daemon(n, run) for n in range(3)]
        silos = asyncio.ensure_future(finish(*daemons))
        while not any(line["event"] == "server_away" for line in lines):
            await asyncio.sleep(0.05)
        assert "silo-0 expired on" in daemons[0].reports.status["server_away"]
        federation.issue("silo-0", Role.SILO)
        assert await silos == [None] * 3
        assert "server_away" not in daemons[0].folder.status(), "it has answered since"

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


def test_a_silo_started_before_its_run_waits_for_it(federation: Federation, lines: list[Any]) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        early = asyncio.ensure_future(finish(*(federation.daemon(n, run) for n in range(4))))
        while sum(line["event"] == "waiting_for_run" for line in lines) < 4:
            await asyncio.sleep(0.05)
        await federation.create_run(run, rounds=1)
        assert await early == [None] * 4

    serve(federation, scenario, "later")


def test_silos_go_on_by_themselves_after_the_server_was_killed_in_mid_round(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=3)

    async def scenario() -> None:
        server = federation.start_server_process()
        await server.until_serving()
        await federation.create_run(rounds=5)
        killed = threading.Event()

        def until_it_is_killed(round_number: int) -> None:
            assert round_number < 2 or killed.wait(120)

        trainers = [StubTrainer(number, before_training=until_it_is_killed) for number in range(3)]
        daemons = [federation.daemon(number, trainer=trainers[number]) for number in range(3)]
        silos = asyncio.ensure_future(finish(*daemons))
        await federation.until(lambda status: status.open_round == 2)
        server.kill()
        killed.set()
        server = federation.start_server_process()
        await server.until_serving()
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
            assert daemon.state.memory.pending is None, "the fate of the broken round's values was decided"
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
        before = [daemon.state.memory for daemon in daemons]
        await driver._interpreter.tell(Aborted("maintenance"))
        held.set()
        assert await silos == [None] * 4
        rounds = await federation.rounds(run)
        assert rounds[0].outcome == federation_pb2.OUTCOME_SKIPPED
        for daemon, memory in zip(daemons, before, strict=True):
            assert memory.pending is not None
            assert memory.pending.place.round == 1
            assert np.abs(memory.pending.sent).sum() > 0
            assert daemon.state.journal.renounced == (1,)
            assert daemon.state.memory.pending is None
            assert daemon.state.memory.given_up == 0

    serve(federation, scenario, "renounce")
