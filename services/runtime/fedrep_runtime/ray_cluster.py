"""A Ray cluster for as long as something runs on it: the one that RAY_ADDRESS names, or one on this machine that ends with it."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedrep.errors import SettingsError

_LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Ray's name for it: there, too, a local Ray is for this machine alone


_ANSWER_SECONDS = 5.0


def _reach(address: str | None) -> None:
    """Ray itself asks an address where nothing listens for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()


@contextmanager
def ray_cluster(processors: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected. One that is connected already is used, and left as it is."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        # Read by all that ray starts: with it a node is at 127.0.0.1, and nothing listens elsewhere.
        os.environ.setdefault(_LOCAL_ONLY, "0")
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise SettingsError("The Ray engine needs the package ray: pip install 'fedrep[ray]', or use --engine local.") from error
    mine = not ray.is_initialized()
    if mine:
        if not address:  # ray read it when it was imported, which may have been before, by any library
            constants: Any = importlib.import_module("ray._private.ray_constants")
            constants.ENABLE_RAY_CLUSTER = False
        local = {"num_cpus": processors, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        settings: dict[str, Any] = {"address": address} if address else local
        try:
            _reach(address)
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        except Exception as error:  # Ray raises all kinds
            where = f"to the cluster that RAY_ADDRESS names ({address})" if address else "on this machine"
            said = str(error).strip().partition("\n")[0]
            raise SettingsError(f"Ray does not connect {where}: {said} Use --engine local, or mend it.") from error
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()
