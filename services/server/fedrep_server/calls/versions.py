"""A caller of another version of the protocol is told so, and what to install, instead of gRPC's `Method not found!`.

The version is part of every method's name (`/fedrep.wire.v1.FederationService/Join`); within one version messages only grow
(`buf breaking` in `make check` sees to it), so that silos of any release of that version work together.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import grpc

from fedrep.errors import SettingsError
from fedrep_runtime.status import abort_with

SPOKEN = 1
_VERSION = re.compile(r"^/fedrep\.wire\.v(\d+)\.")


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
