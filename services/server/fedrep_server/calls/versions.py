"""A caller of another version is told so, and what to install, instead of gRPC's `Method not found!`.

The major version of the contract is part of every method's name (`/fedrep.wire.v1.FederationService/Join`); within it messages
only grow (`buf breaking` in `make check` sees to it). The version of the protocol, the rules behind them, is told in Join.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import grpc

from fedrep.errors import SettingsError
from fedrep.wire.codec import PROTOCOL_VERSION
from fedrep_runtime.status import abort_with

SPOKEN = 1
_VERSION = re.compile(r"^/fedrep\.wire\.v(\d+)\.")


def require_same_version(spoken: int) -> None:
    """What Join says; a silo of before version 2 says nothing."""
    if spoken != PROTOCOL_VERSION:
        other = max(spoken, 1)
        outdated = "the silo's fedrep" if other < PROTOCOL_VERSION else "the server"
        raise SettingsError(
            f"This silo speaks version {other} of the protocol, this server (fedrep {version('fedrep')}) version "
            f"{PROTOCOL_VERSION}. Upgrade {outdated}, so that both speak the same version.",
            reason="OTHER_VERSION",
        )


def refusal(method: str) -> Any:
    """A handler that says which version is spoken here; None for a name that has nothing to do with this protocol."""
    found = _VERSION.match(method)
    if found is None or int(found[1]) == SPOKEN:
        return None
    other = "newer" if int(found[1]) > SPOKEN else "older"
    here = "the server" if other == "newer" else "your fedrep"
    error = SettingsError(
        f"Your fedrep speaks version {found[1]} of the protocol, which is {other} than version {SPOKEN} that this server "
        f"(fedrep {version('fedrep')}) speaks. Upgrade {here}, so that both speak the same version.",
        reason="OTHER_VERSION",
    )

    async def refuse(_requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort_with(context, error)

    # Whatever kind of call it is there, an answer of this kind ends it.
    return grpc.stream_stream_rpc_method_handler(refuse)
