"""FedREP as a pure library: every formula of the paper as a typed function, with no clock, socket, disk or logging.

`fedrep.simulate` plays a whole federation; it is no part of the library, and loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrep_simulator import simulate as simulate

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "simulate":
        from importlib import import_module

        return import_module("fedrep_simulator").simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
