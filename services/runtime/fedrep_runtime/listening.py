"""Where a service listens: on one address, or on all that this machine has, of either family of the Internet protocol.

`::` stands for all. gRPC takes it, and `0.0.0.0` too, for both families; asyncio and Python's HTTP servers do not, so that their
sockets are opened here.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

ALL = "::"
ALL_OF_IPV4 = "0.0.0.0"


def address(host: str, port: int) -> str:
    """host:port as gRPC and people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reached_at(host: str) -> str:
    """Where this machine finds what listens on `host`."""
    return "127.0.0.1" if host in (ALL, ALL_OF_IPV4) else host


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections; `::` also those of IPv4, and these alone where the machine knows no IPv6."""
    if host == ALL:
        if socket.has_dualstack_ipv6():
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        host = ALL_OF_IPV4
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, at = min(found, key=lambda one: one[0] != socket.AF_INET)  # a name of both families is dialled by either
    return socket.create_server((str(at[0]), port), family=family)


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every scrape would be a line."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(opened.getsockname()[:2], _Quiet, bind_and_activate=False)
        self.socket.close()
        self.socket = opened
        self.server_name, self.server_port = "metrics", opened.getsockname()[1]
        self.setup_environ()


@contextmanager
def serving_metrics(host: str, port: int, registry: CollectorRegistry) -> Iterator[int]:
    """Prometheus' text at /metrics, in plaintext and to whoever asks, until the end; gives the port."""
    from prometheus_client import make_wsgi_app

    with _MetricsServer(listening(host, port)) as server:
        server.set_app(make_wsgi_app(registry))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
