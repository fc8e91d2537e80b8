"""The methods of FederationService as data, from the contract itself: what each takes and gives, and whether in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory

from fedrep.wire.v1 import federation_pb2 as pb

PLAY = "Play"


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    request: Any
    response: Any
    takes_parts: bool
    gives_parts: bool


def _methods() -> dict[str, Method]:
    service = pb.DESCRIPTOR.services_by_name["FederationService"]
    return {
        method.name: Method(
            method.name,
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.methods
    }


# Those that Play can carry: all but itself.
METHODS = {name: method for name, method in _methods().items() if name != PLAY}
