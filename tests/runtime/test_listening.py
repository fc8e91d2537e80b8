"""Listening on every address of this machine: callers of both families are answered, and on one address nobody else is."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from fedrep_runtime.listening import address, listening, reached_at, serving_metrics

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="This machine has no IPv6.")


def answers(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        return probe.connect_ex((host, port)) == 0


@needs_ipv6
def test_everywhere_means_both_families() -> None:
    with listening("::", 0) as opened:
        port = opened.getsockname()[1]
        assert [answers(host, port) for host in ("127.0.0.1", "127.0.0.2", "::1")] == [True, True, True]


def test_on_a_machine_without_ipv6_everywhere_means_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listening("::", 0) as opened:
        assert opened.family == socket.AF_INET
        assert answers("127.0.0.2", opened.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_loopback_address_answers_only_there(host: str) -> None:
    with listening(host, 0) as opened:
        port = opened.getsockname()[1]
        assert answers(opened.getsockname()[0], port)
        assert not answers("127.0.0.2", port)


@needs_ipv6
def test_ipv6_alone_can_be_had_by_its_address() -> None:
    with listening("::1", 0) as opened:
        port = opened.getsockname()[1]
        assert answers("::1", port)
        assert not answers("127.0.0.1", port)


def test_addresses_are_written_so_that_they_can_be_read() -> None:
    assert address("2001:db8::1", 8550) == "[2001:db8::1]:8550"
    assert address("10.0.0.1", 8550) == "10.0.0.1:8550"
    assert [reached_at(host) for host in ("::", "0.0.0.0", "::1", "10.0.0.1")] == ["127.0.0.1", "127.0.0.1", "::1", "10.0.0.1"]


@needs_ipv6
def test_metrics_are_served_until_the_end_and_then_no_more() -> None:
    registry = CollectorRegistry()
    Gauge("answer", "", registry=registry).set(42)
    with serving_metrics("::", 0, registry) as port:
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as page:
                assert b"answer 42.0" in page.read()
    assert not answers("127.0.0.1", port)
