"""OpenTelemetry traces, when an OTLP endpoint is set: a span per RPC, and per round one span with one below it per phase.

Spans are written after the fact, from times the server measures anyway, so a server without telemetry does nothing extra. A call
ends before its round does, so the round's ids follow from its run and number: a call's parent is a span that is yet to come.
"""

from __future__ import annotations

import hashlib
import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, set_span_in_context

from fedrep import __version__
from fedrep.protocol.messages import Outcome
from fedrep_server.calls.meter import FinishedCall
from fedrep_server.operations.metrics import PHASES
from fedrep_server.rounds.interpreter import EndedRound

NANOSECONDS = 1_000_000_000
LARGEST_ATTRIBUTE = 2**63 - 1


def round_context(run: str, round_number: int) -> SpanContext:
    digest = hashlib.sha256(f"{round_number}/{run}".encode()).digest()
    ids = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    return SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class RoundIds(RandomIdGenerator):
    """At random, but for the span of a round. Spans are started in the event loop alone."""

    def __init__(self) -> None:
        self.due: SpanContext | None = None

    def generate_trace_id(self) -> int:
        return self.due.trace_id if self.due is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.due.span_id if self.due is not None else super().generate_span_id()


class Telemetry:
    def __init__(self, exporter: SpanExporter) -> None:
        self._ids = RoundIds()
        resource = Resource({SERVICE_NAME: "fedrep-server", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("fedrep.server", __version__)

    @classmethod
    def to_endpoint(cls, endpoint: str) -> Telemetry:
        return cls(OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://")))

    def called(self, call: FinishedCall) -> None:
        service, name = call.method.lstrip("/").rsplit("/", 1)
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": name,
            "rpc.grpc.status": call.code,
        }
        attributes |= {key: value for key, value in (("fedrep.caller", call.caller), ("fedrep.run", call.run)) if value}
        ended = time.time_ns()
        started = ended - int(call.seconds * NANOSECONDS)
        above = None
        if 0 < call.round <= LARGEST_ATTRIBUTE:  # the number is the caller's word
            attributes["fedrep.round"] = call.round
            above = set_span_in_context(NonRecordingSpan(round_context(call.run, call.round)))
        span = self._tracer.start_span(name, above, kind=SpanKind.SERVER, attributes=attributes, start_time=started)
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
        self._ids.due = round_context(ended.run, row.round)
        try:
            span = self._tracer.start_span("round", attributes=attributes, start_time=start)
        finally:
            self._ids.due = None
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
