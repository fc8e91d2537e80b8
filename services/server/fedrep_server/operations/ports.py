"""Ports that cannot be had, as a sentence."""

from __future__ import annotations

from collections.abc import Callable

from fedrep.errors import SettingsError
from fedrep_runtime.listening import address


def bind(listen: Callable[[], int], host: str, port: int) -> int:
    try:
        return listen()
    except (RuntimeError, OSError) as error:
        raise cannot_listen(host, port) from error


def cannot_listen(host: str, port: int) -> SettingsError:
    return SettingsError(
        f"cannot listen on {address(host, port)}; another program uses the port, or the address is not this machine's. "
        "Choose another in the server's settings",
        reason="PORT_IN_USE",
    )
