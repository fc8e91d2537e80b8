"""Ports: whether one is free, before something is started that would only find out later, and one for metrics."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from fedrep.errors import SettingsError
from fedrep_runtime.listening import address, serving_metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def require_free(host: str, port: int, advice: str) -> None:
    family = socket.AF_INET6 if ":" in host and socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port that was just left counts as free
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # taken in one family is taken
        try:
            probe.bind(("" if host == "::" else host, port))
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {address(host, port)} ({error.strerror}): another program uses the port, or the address is "
                f"not this machine's. {advice}",
                reason="PORT_IN_USE",
            ) from error


@contextmanager
def metrics_port(host: str, port: int | None, registry: CollectorRegistry) -> Iterator[None]:
    """Metrics while it lasts; without a port none."""
    with ExitStack() as stack:
        if port is not None:
            try:
                stack.enter_context(serving_metrics(host, port, registry))
            except OSError as error:
                raise SettingsError(
                    f"cannot listen on {address(host, port)} for metrics; choose another `metrics_port`", reason="PORT_IN_USE"
                ) from error
        yield
