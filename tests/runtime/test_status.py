"""Errors over the wire: what a peer refused arrives with its words, and as the peer's."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from fedrep import errors
from fedrep.errors import (
    ConflictError,
    CryptoError,
    DecodeError,
    FedrepError,
    InvalidInputError,
    NotFoundError,
    OutOfPhaseError,
    ProtocolError,
    RefusedError,
    SaidByPeer,
    SettingsError,
    StoreUnavailableError,
    UnknownSiloError,
    WrongRoundError,
)
from fedrep_runtime.status import DETAILS_KEY, error_of, rich_status


class Received(grpc.RpcError):
    """An RPC error as a client sees it."""

    def __init__(self, code: grpc.StatusCode, text: str, metadata: Any = ()) -> None:
        self._code, self._text, self._metadata = code, text, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> Any:
        return self._metadata


def sent(error: FedrepError) -> Received:
    status = rpc_status.to_status(rich_status(error))
    return Received(status.code, status.details, status.trailing_metadata)


@pytest.mark.parametrize(
    ("raised", "arrives_as"),
    [
        (InvalidInputError, InvalidInputError),
        (DecodeError, InvalidInputError),
        (CryptoError, CryptoError),
        (UnknownSiloError, CryptoError),
        (RefusedError, RefusedError),
        (OutOfPhaseError, RefusedError),
        (WrongRoundError, RefusedError),
        (SettingsError, RefusedError),
        (ConflictError, ProtocolError),
        (NotFoundError, NotFoundError),
    ],
)
def test_a_refusal_keeps_its_words_and_is_known_as_the_peers(raised: type[FedrepError], arrives_as: type[FedrepError]) -> None:
    arrived = error_of(sent(raised("not like this", reason="A_REASON")))
    assert isinstance(arrived, arrives_as)
    assert isinstance(arrived, SaidByPeer)
    assert (str(arrived), arrived.reason) == ("not like this", "A_REASON")
    assert arrived.status == arrives_as.status, "passed on, it has a status again"


def test_no_error_raised_here_is_a_peers() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FedrepError)]
    assert len(kinds) > 10
    assert not any(issubclass(kind, SaidByPeer) for kind in kinds)


@pytest.mark.parametrize(
    "trouble",
    [
        Received(grpc.StatusCode.UNAVAILABLE, "connection refused"),
        Received(grpc.StatusCode.FAILED_PRECONDITION, "said by a proxy on the way"),
        sent(StoreUnavailableError("the disk is full")),
        Received(grpc.StatusCode.FAILED_PRECONDITION, "with details that are none", ((DETAILS_KEY, b"\xff\xff\xff"),)),
    ],
)
def test_trouble_that_may_pass_is_no_refusal(trouble: Received) -> None:
    assert error_of(trouble) is None
