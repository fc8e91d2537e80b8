"""The dashboard's own figures for Prometheus: requests, open streams, and whether the server answers. Nothing of a run.

They have a port of their own (`metrics_port`): whoever may see the pages, over whatever proxy, need not see these.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedrep.errors import FedrepError
from fedrep_dashboard.live import Message as LiveMessage
from fedrep_dashboard.observer import Observer
from fedrep_identity.certificates import Credentials


class CertificateCollector(Collector):
    """From the folder, where a renewed one appears."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            ends = Credentials.load(self._folder).certificate.not_valid_after_utc
        except FedrepError:
            return  # half replaced; the next question finds the whole
        yield GaugeMetricFamily(
            "fedrep_dashboard_certificate_expires_timestamp_seconds",
            "Unix time at which the dashboard's certificate ends",
            ends.timestamp(),
        )


class Metrics:
    def __init__(self, observer: Observer, credentials: Path | None = None) -> None:
        self.registry = CollectorRegistry()
        if credentials is not None:
            self.registry.register(CertificateCollector(credentials))
        labels = ("method", "route", "status")
        self.requests = Counter("fedrep_dashboard_requests", "HTTP requests answered.", labels, registry=self.registry)
        self.seconds = Histogram("fedrep_dashboard_request_seconds", "Time to the answer.", ("route",), registry=self.registry)
        self.streams = Gauge("fedrep_dashboard_live_streams", "Open live streams.", registry=self.registry)
        reachable = Gauge("fedrep_dashboard_server_reachable", "1 while the federation server answers.", registry=self.registry)
        reachable.set_function(lambda: float(observer.state.reachable))
        since = Gauge("fedrep_dashboard_server_state_since_seconds", "Unix time of the last change.", registry=self.registry)
        since.set_function(lambda: observer.state.since)

    async def counted(self, messages: AsyncIterator[LiveMessage]) -> AsyncIterator[LiveMessage]:
        with self.streams.track_inprogress():
            async for message in messages:
                yield message


class CountRequests:
    """Labels are route patterns, not paths: a stranger cannot make the registry grow."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
                self._metrics.requests.labels(method, route, str(message["status"])).inc()
                self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, counting)
