"""Errors over the wire: a gRPC status, a sentence for the person, and the reason as google.rpc.ErrorInfo for programs.

A status names fewer kinds than the error tree has, so an error does not come back as the class it was: a silo's RefusedError and
a server's OutOfPhaseError are both FAILED_PRECONDITION. Its text and its reason do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from fedrep.errors import CryptoError, FedrepError, InvalidInputError, NotFoundError, ProtocolError, RefusedError, SaidByPeer

DOMAIN = "fedrep"
DETAILS_KEY = "grpc-status-details-bin"  # the trailer with a google.rpc.Status
# Statuses travel as HTTP/2 trailers, of which a peer takes 8 KiB; a text that quotes a peer's own words may be of any length.
LONGEST_TEXT = 1000


class PeerInvalidInputError(SaidByPeer, InvalidInputError):
    pass


class PeerCryptoError(SaidByPeer, CryptoError):
    pass


class PeerRefusedError(SaidByPeer, RefusedError):
    pass


class PeerProtocolError(SaidByPeer, ProtocolError):
    pass


class PeerNotFoundError(SaidByPeer, NotFoundError):
    pass


_BY_STATUS: dict[grpc.StatusCode, type[FedrepError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: PeerInvalidInputError,
    grpc.StatusCode.UNAUTHENTICATED: PeerCryptoError,
    grpc.StatusCode.PERMISSION_DENIED: PeerCryptoError,
    grpc.StatusCode.FAILED_PRECONDITION: PeerRefusedError,
    grpc.StatusCode.ALREADY_EXISTS: PeerProtocolError,
    grpc.StatusCode.NOT_FOUND: PeerNotFoundError,
}


def rich_status(error: FedrepError) -> status_pb2.Status:
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    code: int = grpc.StatusCode[error.status].value[0]
    text = str(error)
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 4] + " ..."
    return status_pb2.Status(code=code, message=text, details=[info])


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: FedrepError) -> NoReturn:
    status = rpc_status.to_status(rich_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort always raises")


def reason_of(error: grpc.RpcError) -> str | None:
    """The machine-readable word a peer sent with its refusal, if it is one of this project's and can be read."""
    metadata: Any = error.trailing_metadata() or ()
    try:
        return next((reason for key, value in metadata if key == DETAILS_KEY for reason in _reasons(value)), None)
    except DecodeError:
        return None


def _reasons(status: bytes) -> Iterator[str]:
    for detail in status_pb2.Status.FromString(status).details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            yield str(info.reason)


def error_of(error: grpc.RpcError) -> FedrepError | None:
    """A peer's refusal, with its text and reason, as the kind that its status stands for here, and a SaidByPeer.

    None for trouble on the way, such as a peer out of reach, and for a peer that cannot use its own disk: both pass.
    """
    reason = reason_of(error)
    kind = _BY_STATUS.get(error.code())
    if reason is None or kind is None:
        return None
    return kind(str(error.details()), reason=reason)
