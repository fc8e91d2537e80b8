from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("invitation_id", "secret", "certificate_request", "proof")
    INVITATION_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    invitation_id: str
    secret: bytes
    certificate_request: bytes
    proof: bytes
    def __init__(self, invitation_id: _Optional[str] = ..., secret: _Optional[bytes] = ..., certificate_request: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class EnrolResponse(_message.Message):
    __slots__ = ("certificate_chain", "revocations", "certificate_address")
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    certificate_chain: bytes
    revocations: bytes
    certificate_address: str
    def __init__(self, certificate_chain: _Optional[bytes] = ..., revocations: _Optional[bytes] = ..., certificate_address: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate_request",)
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    certificate_request: bytes
    def __init__(self, certificate_request: _Optional[bytes] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("certificate_chain", "revocations")
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    certificate_chain: bytes
    revocations: bytes
    def __init__(self, certificate_chain: _Optional[bytes] = ..., revocations: _Optional[bytes] = ...) -> None: ...

class GetRevocationsRequest(_message.Message):
    __slots__ = ("known_sha256",)
    KNOWN_SHA256_FIELD_NUMBER: _ClassVar[int]
    known_sha256: bytes
    def __init__(self, known_sha256: _Optional[bytes] = ...) -> None: ...

class GetRevocationsResponse(_message.Message):
    __slots__ = ("revocations", "unix_seconds")
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    revocations: bytes
    unix_seconds: int
    def __init__(self, revocations: _Optional[bytes] = ..., unix_seconds: _Optional[int] = ...) -> None: ...
