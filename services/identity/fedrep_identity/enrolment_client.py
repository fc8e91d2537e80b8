"""The silo's side of enrolment and renewal: the key is made here and stays here; a request goes out, a certificate comes
back, and the root is believed only by the fingerprint in the invitation."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import structlog

from fedrep.errors import CryptoError, FedrepError, RefusedError
from fedrep.wire.v1 import enrolment_pb2 as wire
from fedrep.wire.v1 import enrolment_pb2_grpc as wire_grpc
from fedrep_identity.authority import certificate_request
from fedrep_identity.authority_name import AUTHORITY_NAME
from fedrep_identity.certificates import Credentials, load_chain, to_pem
from fedrep_identity.folder import (
    FederationAddresses,
    check_root,
    finish_installation,
    install,
    prepare_request,
    refuse_if_enrolled,
)
from fedrep_identity.invitations import Invitation
from fedrep_identity.names import Identity
from fedrep_identity.revocation_file import keep_revocations
from fedrep_runtime.files import lock_folder
from fedrep_runtime.proxy import open_connection
from fedrep_runtime.status import error_of
from fedrep_runtime.tls import KeyPair, channel_options, client_channel_credentials

TIMEOUT = 20.0
_log = structlog.get_logger(__name__)


class UnreachableError(FedrepError):
    """The other side did not answer; trying again later may help."""

    status = "UNAVAILABLE"
    default_reason = "UNREACHABLE"


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise RefusedError(f"{address!r} is not host:port.", reason="BAD_ADDRESS")
    return host.strip("[]"), int(port)


def fetch_root(address: str, fingerprint: bytes, timeout: float = TIMEOUT) -> bytes:
    """The root certificate (PEM) from the chain that the authority presents, accepted only by its fingerprint.

    Nothing is sent and nothing else is believed on this first, unverified connection.
    """
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    unverified.minimum_version = ssl.TLSVersion.TLSv1_3
    unverified.set_alpn_protocols(["h2"])
    try:
        with (
            open_connection(*split_address(address), timeout) as plain,
            unverified.wrap_socket(plain, server_hostname=AUTHORITY_NAME) as secured,
        ):
            presented = _presented_chain(secured)
    except (OSError, ssl.SSLError) as error:
        raise UnreachableError(
            f"The certificate authority at {address} cannot be reached: {error}. "
            "Check the network, and that `fedrep ca serve` runs there."
        ) from None
    check_root(presented[-1] if presented else b"", fingerprint)
    return to_pem(load_chain(presented[-1]))


def _presented_chain(secured: ssl.SSLSocket) -> list[bytes]:
    """Python has this as a public method from 3.13 on; 3.11 and 3.12 have it one level deeper."""
    public: Any = getattr(secured, "get_unverified_chain", None)
    if public is not None:
        return list(public())
    inner: Any = secured._sslobj  # type: ignore[attr-defined]
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in inner.get_unverified_chain() or ()]


async def enrol(token: str, folder: Path, *, replace: bool = False, timeout: float = TIMEOUT) -> Credentials:
    """From a token to credentials in `folder`. May be repeated after any failure with the same token and folder."""
    invitation = Invitation.from_token(token)
    with lock_folder(folder):
        finish_installation(folder)
        refuse_if_enrolled(folder, replace)
        root = await asyncio.to_thread(fetch_root, invitation.enrolment_address, invitation.root_fingerprint, timeout)
        request = prepare_request(folder)
        async with _open_channel(invitation.enrolment_address, root, None) as channel:
            answer: wire.EnrolResponse = await _call(
                invitation.enrolment_address,
                wire_grpc.EnrolmentServiceStub(channel).Enrol(  # type: ignore[no-untyped-call]
                    wire.EnrolRequest(invitation_id=invitation.id, proof=invitation.proof(request), certificate_request=request),
                    timeout=timeout,
                ),
            )
        credentials = install(
            folder,
            answer.certificate_chain,
            root,
            answer.revocations,
            addresses=FederationAddresses(
                invitation.federation,
                invitation.server_address,
                invitation.enrolment_address,
                answer.certificate_address,
            ),
            expected=Identity(invitation.name, invitation.role, invitation.federation),
        )
    _log.info("enrolled", identity=credentials.identity.uri, folder=str(folder))
    return credentials


async def renew(folder: Path, *, new_key: bool = False, timeout: float = TIMEOUT) -> Credentials:
    """A new certificate for the same identity. The key stays unless `new_key`, so pins and manifests stay valid.

    May be repeated after any failure: a new key that was made and perhaps certified already is asked for again.
    """
    credentials = Credentials.load(folder)
    address = FederationAddresses.load(folder).certificates
    request = prepare_request(folder) if new_key else certificate_request(credentials.private_key)
    async with _open_channel(address, credentials.root, credentials.key_pair) as channel:
        answer: wire.RenewResponse = await _call(
            address,
            wire_grpc.CertificateServiceStub(channel).Renew(  # type: ignore[no-untyped-call]
                wire.RenewRequest(certificate_request=request), timeout=timeout
            ),
            credentials,
        )
    fresh = install(folder, answer.certificate_chain, credentials.root, answer.revocations, expected=credentials.identity)
    _log.info("renewed", identity=fresh.identity.uri, until=fresh.certificate.not_valid_after_utc.isoformat())
    return fresh


class AuthorityRevocations:
    """A `RevocationSource` that asks the authority over one channel.

    `load` is asked again after a failure, so that a certificate renewed meanwhile is used. `keep` remembers the newest
    bundle over a restart.
    """

    def __init__(self, address: str, load: Callable[[], Credentials], keep: Path | None = None, timeout: float = TIMEOUT) -> None:
        self._address = address
        self._load = load
        self._keep = keep
        self._timeout = timeout
        self._given = self._known = b""
        self._channel: grpc.aio.Channel | None = None

    async def __call__(self) -> bytes | None:
        credentials = self._load()
        if self._channel is None:
            self._channel = _open_channel(self._address, credentials.root, credentials.key_pair)
        try:
            answer = await _ask(self._channel, self._address, credentials, self._known, self._timeout)
        except BaseException:
            await self.close()
            raise
        if not answer.revocations:
            return None
        if self._keep is not None:
            keep_revocations(self._keep, answer.revocations, credentials.root)
        self._given = hashlib.sha256(answer.revocations).digest()
        return answer.revocations

    def believed(self) -> None:
        self._known = self._given  # what could not be kept, or was not believed, is asked for again

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)


async def get_revocations(address: str, credentials: Credentials, timeout: float = TIMEOUT) -> wire.GetRevocationsResponse:
    async with _open_channel(address, credentials.root, credentials.key_pair) as channel:
        return await _ask(channel, address, credentials, b"", timeout)


async def _ask(
    channel: grpc.aio.Channel, address: str, credentials: Credentials, known: bytes, timeout: float
) -> wire.GetRevocationsResponse:
    call = wire_grpc.CertificateServiceStub(channel).GetRevocations(  # type: ignore[no-untyped-call]
        wire.GetRevocationsRequest(known_sha256=known), timeout=timeout
    )
    answer: wire.GetRevocationsResponse = await _call(address, call, credentials)
    return answer


def _open_channel(address: str, root: bytes, pair: KeyPair | None) -> grpc.aio.Channel:
    options = channel_options(server_name=AUTHORITY_NAME)
    return grpc.aio.secure_channel(address, client_channel_credentials(root, pair), options=options)


async def _call(address: str, call: Awaitable[Any], credentials: Credentials | None = None) -> Any:
    try:
        return await call
    except grpc.RpcError as error:
        refusal = error_of(error)
        if refusal is not None:
            raise refusal from None
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise UnreachableError(str(error.details()), reason="TOO_MANY_CALLS") from None
        if credentials is not None:
            credentials.check()  # an expired certificate of one's own looks like this
        if "CERTIFICATE_VERIFY_FAILED" in str(error.details()):
            raise CryptoError(
                f"The certificate authority at {address} could not prove that it belongs to this federation. Check the "
                "address and this machine's clock; if both are right, tell the federation's administrators.",
                reason="WRONG_AUTHORITY",
            ) from None
        raise UnreachableError(
            f"The certificate authority at {address} did not answer ({error.code().name}). Check the network and that "
            "`fedrep ca serve` runs there; `fedrep doctor` shows how far a connection gets."
        ) from None
