"""Ports without TLS name silos and tell their bytes and epsilon: to this machine only, unless a setting says otherwise."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from fedrep_cli.free_ports import free_port
from fedrep_server.operations.standby import Relay
from tests.harness.live_server import LiveServer
from tests.harness.people import People

ANOTHER = "127.0.0.2"  # an address of this machine that a socket on 127.0.0.1 does not answer, and one on 0.0.0.0 does


def answers(port: int | None, host: str = ANOTHER) -> bool:
    assert port is not None
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize("opened", [(), ("metrics_host",), ("health_host",)])
def test_a_plaintext_port_listens_elsewhere_only_when_its_own_setting_says_so(
    people: People, tmp_path: Path, opened: tuple[str, ...]
) -> None:
    given = dict.fromkeys(opened, "0.0.0.0")
    with LiveServer(people, tmp_path, host="0.0.0.0", metrics_port=0, **given) as live:
        assert answers(live.running.port)
        assert answers(live.running.metrics_port) == ("metrics_host" in opened)
        assert answers(live.running.health_port) == ("health_host" in opened)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="This machine has no IPv6.")
def test_a_server_that_listens_everywhere_is_found_by_either_family_on_every_port(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, host="::", metrics_port=0, metrics_host="::", health_host="::") as live:
        for port in (live.running.port, live.running.metrics_port, live.running.health_port):
            assert [answers(port, host) for host in (ANOTHER, "::1")] == [True, True]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="This machine has no IPv6.")
@pytest.mark.parametrize("host", ["::", "0.0.0.0"])
def test_a_standby_is_found_where_the_leader_would_be(host: str) -> None:
    port = free_port()

    async def scenario() -> list[bool]:
        relay = Relay(host, port, f"[::1]:{port}")
        await relay.lead_to("")
        try:
            return [answers(port, "127.0.0.1"), answers(port, "::1")]
        finally:
            await relay.close()

    assert asyncio.run(scenario()) == [True, True]
