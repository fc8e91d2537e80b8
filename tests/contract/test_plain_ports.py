"""Ports without TLS name silos and tell their bytes and epsilon: to this machine only, unless a setting says otherwise."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.harness.live_server import LiveServer
from tests.harness.people import People

ANOTHER = "127.0.0.2"  # an address of this machine that a socket on 127.0.0.1 does not answer, and one on 0.0.0.0 does


def answers(port: int | None) -> bool:
    assert port is not None
    with socket.socket() as probe:
        return probe.connect_ex((ANOTHER, port)) == 0


@pytest.mark.parametrize("opened", [(), ("metrics_host",), ("health_host",)])
def test_a_plaintext_port_listens_elsewhere_only_when_its_own_setting_says_so(
    people: People, tmp_path: Path, opened: tuple[str, ...]
) -> None:
    given = dict.fromkeys(opened, "0.0.0.0")
    with LiveServer(people, tmp_path, host="0.0.0.0", metrics_port=0, **given) as live:
        assert answers(live.running.port)
        assert answers(live.running.metrics_port) == ("metrics_host" in opened)
        assert answers(live.running.health_port) == ("health_host" in opened)
