"""How an operator sees into a running server: alerts, probes, metrics, traces."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.run_events import GraceOver, LineLost
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.run_config import StopConfig
from fedrep_server.operations import alerts
from fedrep_server.operations.telemetry import Telemetry
from tests.harness.live_server import (
    SILOS,
    STEP,
    LiveServer,
    joined,
    stage,
    wait_for_round,
    wait_until,
)
from tests.harness.mini_silo import play_round
from tests.harness.people import People


class Receiver(BaseHTTPRequestHandler):
    got: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append(json.loads(body))
        self.send_response(403 if "wrong" in self.path else 204)
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
    looks: list[None] = []
    check = alerts._Watch.check

    async def counted(watch: alerts._Watch) -> None:
        await check(watch)
        looks.append(None)

    monkeypatch.setattr(alerts._Watch, "check", counted)
    options = {"webhook": url, "stalled_after": 0.4, "missing_after": 0.05, "epsilon_warning": 0.001}
    with LiveServer(people, tmp_path, alerts=options) as live:
        live.create_run("watched", stop=StopConfig(epsilon_budget=1000.0))
        silos = joined(live, "watched")
        play_round(silos, wait_for_round(live, "watched"), STEP)
        live.running.coordinator.store.touch_silo("watched", "silo-d", "", time.time() - 60, time.time())
        silos[2].stub.Leave(pb.LeaveRequest(run=silos[2].run))  # which is no reason for an alarm
        driver, lost = live.driver("watched"), SiloName("silo-d")
        live.ask(driver._interpreter.tell(LineLost(lost)))
        live.ask(driver._interpreter.tell(GraceOver(lost, driver.machine._broken[lost])))
        wait_until(lambda: {"stalled", "silo_missing", "epsilon_budget"} <= {alert["kind"] for alert in got})
        looked = len(looks)
        wait_until(lambda: len(looks) > looked + 2)
        found = [alert["kind"] for alert in got]
        assert {alert["run"] for alert in got} == {"watched"}
        assert found.count("silo_missing") == 1
        missing = next(alert for alert in got if alert["kind"] == "silo_missing")
        assert missing["silo"] == "silo-d"
        assert "silo-d does not answer: the certificate it last came with expired on" in missing["text"]
        events = [s.event for s in live.running.coordinator.store.events("watched", 0, 1000) if s.event.severity == "alert"]
        assert {event.kind for event in events} == set(found)


def test_of_the_webhooks_address_the_log_has_the_host_alone(
    webhook: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever knows the rest may post there."""
    url, got = webhook
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    level = root.level
    configured = structlog.get_config()
    try:
        configure_logging("server", json=True, level="DEBUG")
        asyncio.run(alerts._posted(f"{url}/T0PS3CRET", {"run": "a"}))
        asyncio.run(alerts._posted(f"{url}/wrong-T0PS3CRET", {"run": "b"}))
        asyncio.run(alerts._posted(f"http://user:T0PS3CRET@127.0.0.1:1/T0PS3CRET?{url}", {"run": "c"}))
    finally:
        root.setLevel(level)
        structlog.configure(**configured)
    said = capsys.readouterr().err
    assert [each["run"] for each in got] == ["a", "b"]
    assert "T0PS3CRET" not in said
    assert "/alerts" not in said
    failed = [line for line in map(json.loads, said.splitlines()) if line["event"] == "webhook_failed"]
    assert [line["host"] for line in failed] == ["127.0.0.1", "127.0.0.1"]
    assert failed[0]["problem"] == "the answer was 403"


def test_a_silo_that_says_it_is_above_the_runs_limit_raises_an_alert_and_is_in_the_metrics(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "CHECK_SECONDS", 0.05)
    with LiveServer(people, tmp_path, metrics_port=0) as live:
        live.create_run("limited", record_epsilon_at_most=8.0, delta_at_most=1e-5)
        silos = [live.silo(name) for name in SILOS]
        for silo in silos:
            silo.promise = (8.0, 1e-5)
            silo.fetch_model(silo.join("limited").model_version)
        play_round(silos, wait_for_round(live, "limited"), STEP)
        told: list[dict[str, Any]] = [
            {"record_epsilon": 8.00001, "record_delta": 1e-5, "record_budget": 9.0},
            {"record_epsilon": 1.0, "record_delta": 7.0},
            {"record_none": True},
            {"record_epsilon": 8.0, "record_delta": 1e-5},
        ]
        for silo, figures in zip(silos, told, strict=True):
            silo.stub.ReportMetrics(pb.ReportMetricsRequest(run=silo.run, round=1, **figures))
        store = live.running.coordinator.store

        def raised() -> dict[str, str]:
            found = [stored.event for stored in store.events("limited", 0, 1000) if stored.event.kind == "record_limit"]
            return {event.silo: event.text for event in found if event.severity == "alert"}

        wait_until(lambda: len(raised()) == 3)
        alerted = raised()
        text = urllib.request.urlopen(f"http://127.0.0.1:{live.running.metrics_port}/metrics").read().decode()
    assert set(alerted) == set(SILOS[:3])
    assert alerted["silo-a"] == (
        "silo-a says that epsilon 8.001 at delta 1e-05 is spent on its training records; "
        "the run allows epsilon 8.0 at delta 1e-05"
    )
    assert "there is no guarantee for its training records" in alerted["silo-c"]
    for line in (
        'fedrep_record_epsilon{run="limited",silo="silo-a"} 8.00001',
        'fedrep_record_epsilon{run="limited",silo="silo-c"} +Inf',
        'fedrep_record_budget{run="limited",silo="silo-a"} 9.0',
        'fedrep_record_epsilon_at_most{run="limited"} 8.0',
    ):
        assert line in text, text


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
                stub.Join(pb.JoinRequest(run_name="measured", protocol_version=3))
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
    spent = next(line for line in text.splitlines() if line.startswith("fedrep_epsilon_spent{"))
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
    for name in ("fedrep_bytes_total{", "fedrep_buffer_distance{", "fedrep_epsilon_round{", "fedrep_epsilon_spent{"):
        assert name in text


def test_silos_that_vanish_are_counted_at_the_stage_where_they_did(server: LiveServer, run_name: str) -> None:
    stage(server, run_name, "reveal")
    server.pass_deadline(run_name)
    registry = server.running.metrics.registry
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
    below = [span for span in spans if span.parent is not None and span.parent.span_id == whole.context.span_id]
    phases = [span for span in below if span.kind is SpanKind.INTERNAL]
    assert [span.name for span in phases] == ["propose", "submit", "confirm", "reveal"]
    assert whole.attributes is not None
    assert (whole.attributes["fedrep.run"], whole.attributes["fedrep.outcome"]) == ("traced", "applied")
    for name in ("ProposeCoordinates", "GetConsensus", "SubmitMaskedShare", "GetSurvivors", "RevealShares", "GetUpdate"):
        calls = [span for span in spans if span.name == name]
        assert len(calls) >= 4
        for call in calls:
            assert call.parent is not None, name
            assert (call.parent.trace_id, call.parent.span_id) == (whole.context.trace_id, whole.context.span_id)
    assert all(span.parent is None for span in spans if span.name == "Join")
    assert whole.start_time == phases[0].start_time
    assert whole.end_time == phases[-1].end_time
