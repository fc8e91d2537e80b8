"""The error tree. The core raises these; one interceptor in the server maps them to a gRPC status.

    FedrepError
    ├── InvalidInputError      what the caller handed in cannot be used           INVALID_ARGUMENT
    │   ├── DecodeError        bytes from a peer that are not what they claim     INVALID_ARGUMENT
    │   └── NonFiniteError     NaN or infinity in a vector, with its first index  INVALID_ARGUMENT
    ├── SettingsError          run or service settings that cannot work together  FAILED_PRECONDITION
    ├── CryptoError            a signature, share, key or ciphertext is not valid UNAUTHENTICATED
    ├── ProtocolError          a message that the round cannot take now
    │   ├── OutOfPhaseError    right message, wrong moment                        FAILED_PRECONDITION
    │   ├── ConflictError      differs from what the same silo already sent       ALREADY_EXISTS
    │   ├── UnknownSiloError   the sender is not in the round's roster            PERMISSION_DENIED
    │   ├── WrongRoundError    another run or round than the current one          FAILED_PRECONDITION
    │   └── NotFoundError      a run, model version or certificate nobody has     NOT_FOUND
    ├── RefusedError           a silo's own rule or policy forbids the step       FAILED_PRECONDITION
    ├── LimitError             more calls, streams or time than one caller gets   RESOURCE_EXHAUSTED
    └── StoreUnavailableError  the database or disk cannot be used now            UNAVAILABLE

`reason` is the stable, machine-readable word sent as google.rpc.ErrorInfo; the text addresses a person.

An error that arrived over the wire is one of these and a `SaidByPeer` besides.
"""

from __future__ import annotations

from typing import ClassVar


class FedrepError(Exception):
    """Anything this project raises on purpose."""

    status: ClassVar[str] = "INTERNAL"
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason


class InvalidInputError(FedrepError):
    status = "INVALID_ARGUMENT"
    default_reason = "INVALID_INPUT"


class DecodeError(InvalidInputError):
    default_reason = "MALFORMED"


class NonFiniteError(InvalidInputError):
    default_reason = "NOT_FINITE"


class SettingsError(FedrepError):
    status = "FAILED_PRECONDITION"
    default_reason = "BAD_SETTINGS"


class CryptoError(FedrepError):
    status = "UNAUTHENTICATED"
    default_reason = "BAD_CRYPTOGRAPHY"


class ProtocolError(FedrepError):
    status = "FAILED_PRECONDITION"
    default_reason = "PROTOCOL"


class OutOfPhaseError(ProtocolError):
    default_reason = "OUT_OF_PHASE"


class ConflictError(ProtocolError):
    status = "ALREADY_EXISTS"
    default_reason = "CONFLICT"


class UnknownSiloError(ProtocolError):
    status = "PERMISSION_DENIED"
    default_reason = "UNKNOWN_SILO"


class WrongRoundError(ProtocolError):
    default_reason = "WRONG_ROUND"


class NotFoundError(ProtocolError):
    status = "NOT_FOUND"
    default_reason = "NOT_FOUND"


class RefusedError(FedrepError):
    status = "FAILED_PRECONDITION"
    default_reason = "REFUSED_BY_SILO"


class LimitError(FedrepError):
    status = "RESOURCE_EXHAUSTED"
    default_reason = "LIMIT"


class StoreUnavailableError(FedrepError):
    status = "UNAVAILABLE"
    default_reason = "STORE_UNAVAILABLE"


class SaidByPeer:
    """Marks an error that a peer raised and this process only passes on: what it says is the peer's word, not a rule's here."""
