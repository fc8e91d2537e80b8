"""OpenTelemetry traces, when an OTLP endpoint is set: a span per RPC, and per round one span with one below it per phase.

Spans are written after the fact, from times the server measures anyway, so a server without telemetry does nothing extra.
"""

from __future__ import annotations

import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from fedrep import __version__
from fedrep.protocol.messages import Outcome
from fedrep_server.calls.meter import FinishedCall
from fedrep_server.operations.metrics import PHASES
from fedrep_server.rounds.interpreter import EndedRound

NANOSECONDS = 1_000_000_000


class Telemetry:
    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=Resource({SERVICE_NAME: "fedrep-server", "service.version": __version__}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("fedrep.server", __version__)

    @classmethod
    def to_endpoint(cls, endpoint: str) -> Telemetry:
        return cls(OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://")))

    def called(self, call: FinishedCall) -> None:
        service, name = call.method.lstrip("/").rsplit("/", 1)
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name, "rpc.grpc.status": call.code}
        attributes |= {key: value for key, value in (("fedrep.caller", call.caller), ("fedrep.run", call.run)) if value}
        ended = time.time_ns()
        started = ended - int(call.seconds * NANOSECONDS)
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, attributes=attributes, start_time=started)
        if call.code in ("INTERNAL", "UNAVAILABLE"):
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended)

    def round_ended(self, ended: EndedRound) -> None:
        row = ended.row
        start = int(row.started_at * NANOSECONDS)
        lengths = [int(seconds * NANOSECONDS) for seconds in row.phase_seconds]
        attributes: dict[str, str | int] = {
            "fedrep.run": ended.run,
            "fedrep.round": row.round,
            "fedrep.outcome": row.outcome.value,
        }
        attributes |= {"fedrep.roster": row.roster_size, "fedrep.survivors": row.survivors}
        span = self._tracer.start_span("round", attributes=attributes, start_time=start)
        below = set_span_in_context(span)
        at = start
        for phase, length in zip(PHASES, lengths, strict=False):
            self._tracer.start_span(phase, context=below, start_time=at).end(at + length)
            at += length
        if row.outcome is not Outcome.APPLIED:
            span.set_status(Status(StatusCode.ERROR, row.reason))
        span.end(at)

    def commit_failed(self) -> None:
        """No span: the round's own will say how long it took."""

    def close(self) -> None:
        """Sends what is left; a collector that is away is not waited for long."""
        self._provider.shutdown()
