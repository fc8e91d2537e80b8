"""A Ray cluster for as long as something runs on it: the one that RAY_ADDRESS names, or one on this machine that ends with it."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedrep.errors import SettingsError


@contextmanager
def ray_cluster(processors: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected. One that is connected already is used, and left as it is."""
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise SettingsError("The Ray engine needs the package ray: pip install 'fedrep[ray]', or use --engine local.") from error
    mine = not ray.is_initialized()
    if mine:
        address = os.environ.get("RAY_ADDRESS")
        settings: dict[str, Any] = {"address": address} if address else {"num_cpus": processors, "include_dashboard": False}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()
