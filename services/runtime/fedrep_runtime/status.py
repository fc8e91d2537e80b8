"""Errors over the wire: a gRPC status, a sentence for the person, and the reason as google.rpc.ErrorInfo for programs."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from fedrep.errors import CryptoError, FedrepError, InvalidInputError, NotFoundError, ProtocolError, RefusedError

DOMAIN = "fedrep"
# Statuses travel as HTTP/2 trailers, of which a peer takes 8 KiB; a text that quotes a peer's own words may be of any length.
LONGEST_TEXT = 1000

_BY_STATUS: dict[grpc.StatusCode, type[FedrepError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.UNAUTHENTICATED: CryptoError,
    grpc.StatusCode.PERMISSION_DENIED: CryptoError,
    grpc.StatusCode.FAILED_PRECONDITION: RefusedError,
    grpc.StatusCode.ALREADY_EXISTS: ProtocolError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
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
    """The machine-readable word a peer sent with its refusal, if it is one of this project's."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return str(info.reason)
    return None


def error_of(error: grpc.RpcError) -> FedrepError | None:
    """A peer's refusal as the error it raised there; None for trouble on the way, such as a peer out of reach."""
    reason = reason_of(error)
    kind = _BY_STATUS.get(error.code())
    if reason is None or kind is None:
        return None
    return kind(str(error.details()), reason=reason)
