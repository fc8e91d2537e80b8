"""Figures of calls, as plain numbers until somebody asks: every message of a round is a call, and is counted four times."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fedrep_server.calls.meter import FinishedCall

BUCKETS = tuple(map(float, Histogram.DEFAULT_BUCKETS))


@dataclass(slots=True)
class _Counts:
    """`values` of one set of labels; `created` as Prometheus wants to know it."""

    values: list[int]
    created: float = field(default_factory=time.time)


@dataclass(slots=True)
class _Times:
    counts: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    total: float = 0.0

    def cumulative(self) -> list[tuple[str, float]]:
        upper, so_far = [], 0
        for bound, count in zip(BUCKETS, self.counts, strict=True):
            so_far += count
            upper.append((floatToGoString(bound), float(so_far)))  # type: ignore[no-untyped-call]
        return upper


class CallFigures(Collector):
    """Counted in the event loop, and read from the thread that serves the metrics."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], _Counts] = {}
        self._times: dict[str, _Times] = {}
        self._bytes: dict[tuple[str, str], _Counts] = {}

    def called(self, call: FinishedCall) -> None:
        method = call.method
        calls = self._calls.get((method, call.code))
        if calls is None:
            calls = self._calls[method, call.code] = _Counts([0])
        calls.values[0] += 1
        times = self._times.get(method)
        if times is None:
            times = self._times[method] = _Times()
        times.counts[bisect_left(BUCKETS, call.seconds)] += 1
        times.total += call.seconds
        if not call.caller:
            return
        passed = self._bytes.get((method, call.caller))
        if passed is None:
            passed = self._bytes[method, call.caller] = _Counts([0, 0])
        passed.values[0] += call.up
        passed.values[1] += call.down

    def collect(self) -> Iterable[Metric]:
        calls = CounterMetricFamily("fedrep_rpc_calls", "RPCs served", labels=["method", "code"])
        for (method, code), counted in list(self._calls.items()):
            calls.add_metric([_short(method), code], counted.values[0], created=counted.created)
        seconds = HistogramMetricFamily("fedrep_rpc_seconds", "Time in an RPC, waiting included", labels=["method"])
        for method, times in list(self._times.items()):
            seconds.add_metric([_short(method)], times.cumulative(), times.total)
        passed = CounterMetricFamily("fedrep_bytes", "Bytes of messages", labels=["method", "caller", "direction"])
        for (method, caller), counted in list(self._bytes.items()):
            for direction, count in zip(("up", "down"), counted.values, strict=True):
                passed.add_metric([_short(method), caller, direction], count, created=counted.created)
        return calls, seconds, passed


def _short(method: str) -> str:
    return method.rsplit("/", 1)[-1]
