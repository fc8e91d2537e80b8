"""What an operator relies on while the server runs: waiting calls, joining and leaving, stop rules, alerts, probes, traces."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fedrep.errors import StoreUnavailableError
from fedrep.protocol.manifests import SiloName
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from services.runtime.run_config import DeadlineConfig, StopConfig
from services.runtime.tls import channel_options, client_channel_credentials
from services.server import alerts
from services.server.telemetry import Telemetry
from tests.contract.live_server import (
    PARAMETERS,
    SILOS,
    LiveServer,
    People,
    refusal,
    stage,
    wait_for_round,
    wait_until,
)
from tests.contract.mini_client import MiniSilo, play_round

STEP = dict.fromkeys(SILOS, [0.01] * PARAMETERS)


def joined(server: LiveServer, run: str, names: tuple[str, ...] = SILOS) -> list[MiniSilo]:
    silos = [server.silo(name) for name in names]
    for silo in silos:
        silo.fetch_model(silo.join(run).model_version)
    return silos


def kinds(server: LiveServer, run: str) -> list[str]:
    return [stored.event.kind for stored in server.running.coordinator.store.events(run, 0, 1000)]


def test_thousands_of_calls_wait_cheaply_and_all_are_answered_or_cancelled(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, wait_seconds=120.0) as server:
        hold_and_answer(server, "waited-for", 2000)


def hold_and_answer(server: LiveServer, run_name: str, count: int) -> None:
    """Many calls wait for the end of a round; half of them are cancelled, then the round ends."""
    at = stage(server, run_name, "reveal")
    own = server.people.credentials["silo-a"]
    calm = server.ask(tasks())

    async def wait_for_the_end() -> tuple[list[int], int, int]:
        credentials = client_channel_credentials(own.root, own.key_pair)
        async with grpc.aio.secure_channel(server.address, credentials, options=channel_options()) as channel:
            stub: Any = FederationServiceStub(channel)  # type: ignore[no-untyped-call]
            calls = [stub.GetUpdate(pb.GetUpdateRequest(run=at.first.run, round=1)) for _ in range(count)]
            waiting = [asyncio.ensure_future(anext(aiter(call))) for call in calls]
            while len(server.driver(run_name)._bell._ring._waiters) < count:
                await asyncio.sleep(0.01)
            for call in calls[: count // 2]:
                call.cancel()
            while len(server.driver(run_name)._bell._ring._waiters) > count // 2:
                await asyncio.sleep(0.01)
            held = await tasks()
            finish.set()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            cancelled = sum(isinstance(answer, asyncio.CancelledError) for answer in answers)
            return [answer.header.round for answer in answers if isinstance(answer, pb.GetUpdateResponse)], cancelled, held

    finish = threading.Event()
    work = asyncio.run_coroutine_threadsafe(wait_for_the_end(), server.loop)
    assert finish.wait(60)
    for silo in at.silos[1:3]:
        silo.stub.RevealShares(at.sent[f"reveal/{silo.name}"], timeout=10)
    rounds, cancelled, _ = work.result(60)
    assert (len(rounds), set(rounds), cancelled) == (count // 2, {1}, count // 2)
    wait_until(lambda: server.ask(tasks()) <= calm + 10)


async def tasks() -> int:
    return len(asyncio.all_tasks())


def test_a_late_silo_gets_the_model_then_updates_and_one_that_leaves_is_missed_by_nobody(
    server: LiveServer, run_name: str
) -> None:
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
    play_round([*early, late], wait_for_round(server, run_name, after=4), STEP)
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
    server.create_run(run_name, deadlines=DeadlineConfig(propose=0.3, submit=5, confirm=5, reveal=5))
    silos = joined(server, run_name)
    header, _ = silos[0].update(wait_for_round(server, run_name).round)
    assert (header.outcome, header.reason) == (pb.OUTCOME_SKIPPED, "0 silos proposed, the quorum is 3")
    assert header.model_version == 0
    wait_until(lambda: kinds(server, run_name).count("late") >= 4)
    assert server.driver(run_name).open is None
    for silo in silos:
        silo.join(run_name)
    assert wait_for_round(server, run_name, after=1).model_version == 0


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
        silo.stub.RevealShares(at.sent[f"reveal/{silo.name}"], timeout=10)
    header, _ = at.first.update(1)
    assert header.outcome == pb.OUTCOME_APPLIED
    assert refusals == [0, 0]


class Receiver(BaseHTTPRequestHandler):
    got: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []
    handler = type("Handler", (Receiver,), {"got": got})
    listening = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}/alerts", got
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_alerts_are_events_and_reach_the_webhook_once(
    people: People, tmp_path: Path, webhook: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = webhook
    monkeypatch.setattr(alerts, "CHECK_SECONDS", 0.05)
    options = {"webhook": url, "stalled_after": 0.4, "missing_after": 0.05, "epsilon_warning": 0.001}
    with LiveServer(people, tmp_path, alerts=options) as live:
        live.create_run("watched", stop=StopConfig(epsilon_budget=1000.0))
        silos = joined(live, "watched")
        play_round(silos, wait_for_round(live, "watched"), STEP)
        live.running.coordinator.store.touch_silo("watched", "silo-d", "", time.time() - 60, time.time())
        silos[3].stub.Leave(pb.LeaveRequest(run=silos[3].run))
        wait_until(lambda: {"stalled", "silo_missing", "epsilon_budget"} <= {alert["kind"] for alert in got})
        time.sleep(0.3)
        found = [alert["kind"] for alert in got]
        assert {alert["run"] for alert in got} == {"watched"}
        assert found.count("silo_missing") == 1
        missing = next(alert for alert in got if alert["kind"] == "silo_missing")
        assert missing["silo"] == "silo-d"
        assert "silo-d does not answer: the certificate it last came with expired on" in missing["text"]
        events = [s.event for s in live.running.coordinator.store.events("watched", 0, 1000) if s.event.severity == "alert"]
        assert {event.kind for event in events} == set(found)


def test_probes_metrics_and_reflection_tell_what_they_should(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, metrics_port=0) as live:
        live.create_run("measured")
        silos = joined(live, "measured")
        for number in (1, 2):
            play_round(silos, wait_for_round(live, "measured", after=number - 1), STEP)
        with grpc.insecure_channel(f"127.0.0.1:{live.running.health_port}") as plain:
            health: Any = health_pb2_grpc.HealthStub(plain)
            for name in ("", "fedrep.wire.v1.FederationService", "fedrep.wire.v1.ObserverService"):
                assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
            stub: Any = FederationServiceStub(plain)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as caught:
                stub.Join(pb.JoinRequest(run_name="measured"))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(live.channel("viewer"))
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        listed = next(reflection.ServerReflectionInfo(asked)).list_services_response.service
        assert "fedrep.wire.v1.FederationService" in [service.name for service in listed]
        address = f"http://127.0.0.1:{live.running.metrics_port}/metrics"
        text = urllib.request.urlopen(address).read().decode()
    with LiveServer(people, tmp_path, metrics_port=0) as again:
        address = f"http://127.0.0.1:{again.running.metrics_port}/metrics"
        later = urllib.request.urlopen(address).read().decode().splitlines()
    spent = next(line for line in text.splitlines() if line.startswith("fedrep_epsilon_total{"))
    assert float(spent.split()[-1]) > 0
    for line in (spent, 'fedrep_model_version{run="measured"} 2.0'):
        assert line in later, "a restart takes nothing back"
    for line in (
        'fedrep_rounds_total{outcome="applied",run="measured"} 2.0',
        'fedrep_buffers_total{fate="opened",run="measured"} 4.0',
        'fedrep_dropouts_total{run="measured",stage="propose"} 0.0',
        'fedrep_rpc_calls_total{code="OK",method="SubmitMaskedShare"} 8.0',
        'fedrep_phase_seconds_count{phase="reveal",run="measured"} 2.0',
        'fedrep_model_version{run="measured"} 2.0',
        'fedrep_clip_range{run="measured"} 1.0',
    ):
        assert line in text, text
    for name in ("fedrep_bytes_total{", "fedrep_buffer_distance{", "fedrep_epsilon_round{", "fedrep_epsilon_total{"):
        assert name in text


def test_silos_that_vanish_are_counted_at_the_stage_where_they_did(server: LiveServer, run_name: str) -> None:
    stage(server, run_name, "reveal", deadlines=DeadlineConfig(propose=60, submit=60, confirm=60, reveal=0.5))
    wait_until(lambda: server.driver(run_name).last_round == 1)
    registry = server.running.coordinator.metrics.registry
    stages = ("propose", "submit", "reveal")
    counted = {at: registry.get_sample_value("fedrep_dropouts_total", {"run": run_name, "stage": at}) for at in stages}
    assert counted == {"propose": 0, "submit": 0, "reveal": 3}, "one of four revealed, three were needed"


def test_rpcs_and_phases_of_rounds_are_traced(people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    endpoints: list[str] = []

    def to_endpoint(endpoint: str) -> Telemetry:
        endpoints.append(endpoint)
        return Telemetry(exporter)

    monkeypatch.setattr(Telemetry, "to_endpoint", to_endpoint)
    with LiveServer(people, tmp_path, telemetry="http://collector:4317") as live:
        live.create_run("traced")
        play_round(joined(live, "traced"), wait_for_round(live, "traced"), STEP)
    assert endpoints == ["http://collector:4317"]
    spans = exporter.get_finished_spans()
    names = [span.name for span in spans]
    assert names.count("SubmitMaskedShare") == 4
    whole = next(span for span in spans if span.name == "round")
    phases = [span for span in spans if span.parent is not None and span.parent.span_id == whole.context.span_id]
    assert [span.name for span in phases] == ["propose", "submit", "confirm", "reveal"]
    assert whole.attributes is not None
    assert (whole.attributes["fedrep.run"], whole.attributes["fedrep.outcome"]) == ("traced", "applied")
    assert whole.start_time == phases[0].start_time
    assert whole.end_time == phases[-1].end_time


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
    with monkeypatch.context() as broken:
        for name in ("append_events", "save_progress", "set_run_state"):
            broken.setattr(store, name, full)
        first = SiloName("silo-a")
        changes: list[Callable[[], Awaitable[None]]] = [
            lambda: driver.leave(first),
            lambda: driver.pause("look"),
            lambda: driver.change_attendance(lambda now: now.exclude(first), "excluded", "", first),
            lambda: server.running.coordinator.roll_back(driver, 0),
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
