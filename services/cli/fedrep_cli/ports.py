"""Whether a port is free, before something is started that would only find out later."""

from __future__ import annotations

import socket

from fedrep.errors import SettingsError


def require_free(host: str, port: int, advice: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port that was just left counts as free
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port} ({error.strerror}): another program uses the port, or the address is not this "
                f"machine's. {advice}",
                reason="PORT_IN_USE",
            ) from error
