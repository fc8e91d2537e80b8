"""What an operator relies on while the server runs: waiting calls, joining and leaving, stop rules, a store that is away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrep.errors import StoreUnavailableError
from fedrep.protocol.manifests import SiloName
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from fedrep_runtime.run_config import StopConfig
from fedrep_runtime.tls import channel_options, client_channel_credentials
from tests.harness.live_server import (
    PARAMETERS,
    SILOS,
    STEP,
    LiveServer,
    joined,
    refusal,
    stage,
    wait_for_round,
    wait_until,
)
from tests.harness.mini_silo import SECONDS, play_round
from tests.harness.people import People


def kinds(server: LiveServer, run: str) -> list[str]:
    return [stored.event.kind for stored in server.running.coordinator.store.events(run, 0, 1000)]


def test_folders_that_the_server_makes_are_its_own_and_one_that_was_there_stays_as_it_is(people: People, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    for data in (tmp_path / "made", there):
        with LiveServer(people, data) as server:
            server.create_run("a")
        modes = {path.name: path.stat().st_mode & 0o777 for path in [data, *data.rglob("*")] if path.is_dir()}
        assert modes == {data.name: 0o755 if data is there else 0o700, "models": 0o700, "a": 0o700}


def test_thousands_of_calls_wait_cheaply_and_all_are_answered_or_cancelled(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, wait_seconds=120.0, calls_at_once=4000, calls_per_second=1000.0) as server:
        hold_and_answer(server, "waited-for", 2000)


def hold_and_answer(server: LiveServer, run_name: str, count: int) -> None:
    """Many calls wait for the end of a round; half of them are cancelled, then the round ends."""
    at = stage(server, run_name, "reveal")
    own = server.people.credentials["silo-a"]
    calm = server.tasks()

    async def wait_for_the_end() -> tuple[list[int], int]:
        credentials = client_channel_credentials(own.root, own.key_pair)
        async with grpc.aio.secure_channel(server.address, credentials, options=channel_options()) as channel:
            stub: Any = FederationServiceStub(channel)  # type: ignore[no-untyped-call]
            calls = [stub.GetUpdate(pb.GetUpdateRequest(run=at.first.run, round=1)) for _ in range(count)]
            waiting = [asyncio.ensure_future(anext(aiter(call))) for call in calls]
            while server.waiting(run_name) < count:
                await asyncio.sleep(0.01)
            for call in calls[: count // 2]:
                call.cancel()
            while server.waiting(run_name) > count // 2:
                await asyncio.sleep(0.01)
            finish.set()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            cancelled = sum(isinstance(answer, asyncio.CancelledError) for answer in answers)
            return [answer.header.round for answer in answers if isinstance(answer, pb.GetUpdateResponse)], cancelled

    finish = threading.Event()
    work = asyncio.run_coroutine_threadsafe(wait_for_the_end(), server.loop)
    assert finish.wait(SECONDS)
    for silo in at.silos[1:3]:
        silo.stub.RevealShares(at.sent[f"reveal/{silo.name}"], timeout=SECONDS)
    rounds, cancelled = work.result(SECONDS)
    assert (len(rounds), set(rounds), cancelled) == (count // 2, {1}, count // 2)
    wait_until(lambda: server.tasks() <= calm + 10)


def test_a_late_silo_gets_the_model_then_updates_and_one_that_leaves_is_missed_by_nobody(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, gather_seconds=0.0) as server:  # a quorum waits for nobody
        come_late_and_leave(server, "late")


def come_late_and_leave(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name, quorum=3)
    early = joined(server, run_name, SILOS[:3])
    for number in (1, 2):
        play_round(early, wait_for_round(server, run_name, after=number - 1), STEP)
    late = server.silo("silo-d")
    answer = late.join(run_name)
    assert answer.last_round == 2
    late.fetch_model(answer.model_version)
    assert late.model == early[0].model
    open_round = wait_for_round(server, run_name, after=2)
    play_round(early, open_round, STEP)
    late.enter(open_round)
    header, payload = late.update(3)
    late.follow(header, payload)
    fourth = wait_for_round(server, run_name, after=3)
    assert [entry.name for entry in fourth.roster] == list(SILOS)
    play_round([*early, late], fourth, STEP)
    late.stub.Leave(pb.LeaveRequest(run=late.run))
    late.stub.Leave(pb.LeaveRequest(run=late.run))
    play_round(early, wait_for_round(server, run_name, after=4), STEP)
    assert [entry.name for entry in wait_for_round(server, run_name, after=5).roster] == list(SILOS[:3])
    assert kinds(server, run_name).count("left") == 1


def test_runs_do_not_disturb_each_other(server: LiveServer) -> None:
    names = ("first", "second", "third")
    runs = {}
    for name in names:
        server.create_run(name)
        runs[name] = joined(server, name)
    for number in (1, 2):
        for name in names:
            play_round(runs[name], wait_for_round(server, name, after=number - 1), STEP)
    assert {server.driver(name).model.state.version for name in names} == {2}
    first = runs["first"][0]
    with pytest.raises(grpc.RpcError):
        first.stub.GetConsensus(pb.GetConsensusRequest(run=runs["second"][0].run, round=99)).__next__()


def test_a_run_ends_after_its_rounds(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name, rounds=2)
    silos = joined(server, run_name)
    for number in (1, 2):
        header = play_round(silos, wait_for_round(server, run_name, after=number - 1), STEP)
    assert header.state == "finished"
    assert not header.HasField("next_round")
    assert server.driver(run_name).state_reason == "all 2 rounds played"


def test_a_run_ends_at_its_target_accuracy(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name, stop=StopConfig(target_accuracy=0.8))
    silos = joined(server, run_name)
    evaluator = FederationServiceStub(server.channel("evaluator"))  # type: ignore[no-untyped-call]
    play_round(silos, wait_for_round(server, run_name), STEP)
    for accuracy in (0.79, 0.81):
        report = pb.ReportMetricsRequest(run=silos[0].run, round=1, model_version=1, accuracy=accuracy, loss=0.5)
        evaluator.ReportMetrics(report)
        evaluator.ReportMetrics(report)
    assert kinds(server, run_name).count("metrics") == 2
    header = play_round(silos, wait_for_round(server, run_name, after=1), STEP)
    assert header.state == "finished"
    assert server.driver(run_name).state_reason == "target accuracy 0.8 reached"


def test_a_run_ends_when_its_epsilon_is_used_up(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name, stop=StopConfig(epsilon_budget=10.0))
    silos = joined(server, run_name)
    drawn = dict(STEP)
    for number in range(1, 20):
        values = [0.5 if number <= index < number + 10 else 0.001 for index in range(PARAMETERS)]
        drawn = dict.fromkeys(SILOS, values)
        header = play_round(silos, wait_for_round(server, run_name, after=number - 1), drawn)
        if header.state == "finished":
            break
    spent = server.running.coordinator.store.summary(run_name).epsilon_total
    assert spent is not None
    assert spent >= 10.0
    assert "epsilon budget of 10" in server.driver(run_name).state_reason


def test_one_silos_word_about_its_epsilon_is_shown_and_ends_no_run(server: LiveServer, run_name: str) -> None:
    """It may lie, and it counts all runs over its data. What came late or was lost is the business of its own budget."""
    server.create_run(run_name, stop=StopConfig(epsilon_budget=1000.0))
    silos = joined(server, run_name)
    manifest = wait_for_round(server, run_name)
    silos[0].stub.ReportMetrics(pb.ReportMetricsRequest(run=silos[0].run, round=1, epsilon_total=1000.5), timeout=SECONDS)
    header = play_round(silos, manifest, STEP)
    assert header.state == "running"
    assert server.running.coordinator.store.summary(run_name).epsilon_total == 1000.5
    manifest = wait_for_round(server, run_name, after=1)
    assert manifest.round == 2
    silos[0].stub.ReportMetrics(pb.ReportMetricsRequest(run=silos[0].run, round=1, epsilon_none=True), timeout=SECONDS)
    found = server.observer().call("GetRun", observer_pb2.GetRunRequest(name=run_name))
    assert not found.summary.HasField("epsilon_total")
    assert [silo.HasField("epsilon_total") for silo in found.silos] == [False, True, True, True]
    assert play_round(silos, manifest, STEP).state == "running"


def test_models_and_events_are_kept_as_the_server_says_unless_the_run_says_otherwise(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, retention={"models": 1, "events": 4}) as live:
        live.create_run("brief")
        live.create_run("long", keep_models=2)
        for run in ("brief", "long"):
            silos = joined(live, run)
            for number in range(3):
                play_round(silos, wait_for_round(live, run, after=number), STEP)
            wait_until(lambda run=run: live.driver(run).last_round == 3)
        store = live.running.coordinator.store
        assert [row.version for row in store.models("brief")] == [3]
        assert [row.version for row in store.models("long")] == [2, 3]
        assert len(store.events("brief", 0, 100)) <= 5, "four when the last round was written, and perhaps one since"


def test_missing_silos_cost_a_round_its_time_and_nothing_else(server: LiveServer, run_name: str) -> None:
    """Nobody proposes, then too few do: both rounds are skipped with the reason, the model stays, the run goes on."""
    server.create_run(run_name)
    silos = joined(server, run_name)
    number = wait_for_round(server, run_name).round
    server.pass_deadline(run_name)
    header, _ = silos[0].update(number)
    assert (header.outcome, header.reason) == (pb.OUTCOME_SKIPPED, "0 silos proposed: fewer than 1 buffers have 2 of them")
    assert header.model_version == 0
    assert kinds(server, run_name).count("late") == 4
    assert server.driver(run_name).open is None
    for silo in silos:
        silo.join(run_name)
    second = wait_for_round(server, run_name, after=1)
    silos[0].enter(second)
    silos[0].propose(*silos[0].proposal(range(0, 10 * second.per_silo, 10)))
    server.pass_deadline(run_name)
    header, _ = silos[0].update(2)
    assert (header.outcome, header.reason) == (pb.OUTCOME_SKIPPED, "1 silos proposed: fewer than 1 buffers have 2 of them")
    assert header.model_version == 0
    for silo in silos:
        silo.join(run_name)
    assert wait_for_round(server, run_name, after=2).model_version == 0


def test_a_database_that_is_away_delays_the_answer_and_loses_nothing(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears of an outcome that is not on disk."""
    at = stage(server, run_name, "reveal")
    store = server.running.coordinator.store
    real = store.commit_round
    refusals: list[int] = []

    def away(commit: Any) -> Any:
        if len(refusals) < 2:
            refusals.append(server.driver(run_name).last_round)
            raise StoreUnavailableError("the disk is full")
        return real(commit)

    monkeypatch.setattr(store, "commit_round", away)
    for silo in at.silos[1:3]:
        silo.stub.RevealShares(at.sent[f"reveal/{silo.name}"], timeout=SECONDS)
    header, _ = at.first.update(1)
    assert header.outcome == pb.OUTCOME_APPLIED
    assert refusals == [0, 0]


def test_a_transient_error_after_a_round_was_committed_does_not_hang_the_run(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a commit is lost, then old models cannot be retired: the round counts once, and the next one starts."""
    server.create_run(run_name)
    silos = joined(server, run_name)
    store = server.running.coordinator.store
    real = store.commit_round
    lost: list[Any] = []

    def lose_the_answer(commit: Any) -> Any:
        answer = real(commit)
        if not lost:
            lost.append(commit)
            raise StoreUnavailableError("the connection was lost")
        return answer

    def away(*_: object) -> list[int]:
        raise StoreUnavailableError("the database is away")

    with monkeypatch.context() as broken:
        broken.setattr(store, "commit_round", lose_the_answer)
        broken.setattr(store, "retire_models", away)
        header = play_round(silos, wait_for_round(server, run_name), STEP)
    assert (header.outcome, header.model_version) == (pb.OUTCOME_APPLIED, 1)
    assert len(lost) == 1
    play_round(silos, wait_for_round(server, run_name, after=1), STEP)
    assert store.summary(run_name).rounds_applied == 2


def test_what_cannot_be_written_is_refused_and_can_be_asked_again(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk while an admin and a silo change things: UNAVAILABLE, nothing half done, and the same call works later."""
    store = server.running.coordinator.store

    def full(*_: object) -> None:
        raise StoreUnavailableError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(store, "create_run", full)
        with pytest.raises(StoreUnavailableError):
            server.ask(create(server, run_name))
    server.create_run(run_name)
    silo = server.silo("silo-a")
    silo.join(run_name)
    before = server.snapshot(run_name)
    driver = server.driver(run_name)
    kept, order = driver.records.model(0), codec.rollback_from_wire(server.rollback_request(run_name, 0).order)
    with monkeypatch.context() as broken:
        for name in ("append_events", "save_progress", "set_run_state"):
            broken.setattr(store, name, full)
        first = SiloName("silo-a")
        changes: list[Callable[[], Awaitable[None]]] = [
            lambda: driver.leave(first),
            lambda: driver.pause("look"),
            lambda: driver.exclude(first, "admin", ""),
            lambda: driver.roll_back(kept, order),
        ]
        for change in changes:
            with pytest.raises(StoreUnavailableError):
                server.ask(change())
        refused = refusal(lambda: server.silo("silo-b").join(run_name))
        assert refused == ("UNAVAILABLE", "STORE_UNAVAILABLE")
    after = dict(server.snapshot(run_name))
    assert {row.name for row in after.pop("silos")} == {"silo-a", "silo-b"}  # that it was seen may be known
    assert after == {key: value for key, value in before.items() if key != "silos"}
    server.silo("silo-b").join(run_name)
    server.ask(driver.pause("look"))
    assert driver.state.value == "paused"


async def create(server: LiveServer, name: str) -> None:
    signed, config, vector = server.signed_run(name)
    await server.running.coordinator.create_run(signed, config.options(""), vector.tobytes())
