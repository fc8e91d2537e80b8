"""Ports of a federation that a test sets up by `fedrep init`: where tests run, the usual ones may be taken."""

from __future__ import annotations

from fedrep_cli.free_ports import free_ports

NAMES = ("--port", "--enrolment-port", "--certificate-port", "--health-port", "--metrics-port", "--dashboard-port")


def ports() -> list[str]:
    return [word for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True) for word in (name, str(port))]
