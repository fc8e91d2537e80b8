"""Who is calling: the identity in the caller's certificate, judged anew at every call and while a stream is open.

TLS checks a certificate once, at the handshake; a stream may stay open for hours after. So the server asks
`peer_certificate` on every RPC, and lets `until_unwelcome` run beside every stream it holds open.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from fedrep.errors import CryptoError, FedrepError
from fedrep_identity.certificates import PeerCertificate, TrustStore
from fedrep_identity.names import Role
from fedrep_runtime.tls import SecuredContext, require_tls13

_log = structlog.get_logger(__name__)


def peer_certificate(
    context: SecuredContext,
    trust: TrustStore,
    roles: Sequence[Role] | None = None,
    now: dt.datetime | None = None,
) -> PeerCertificate:
    """The caller's certificate after every check, or CryptoError with a sentence that goes back to the caller."""
    require_tls13(context)
    properties = context.auth_context()
    presented = list(properties.get("x509_pem_cert", ()))
    if len(presented) != 1:
        raise CryptoError(
            "This port is for holders of a certificate of this federation, and none was presented. "
            "Enrol first with the token you were sent: fedrep enroll TOKEN.",
            reason="NO_CERTIFICATE",
        )
    chain = next(iter(properties.get("x509_pem_cert_chain", ())), b"")
    # The leaf alone decides who calls; the chain only supplies intermediates.
    return trust.verify(presented[0] + b"\n" + chain, now, roles=roles)


async def until_unwelcome(trust: TrustStore, peer: PeerCertificate, every: float = 1.0) -> CryptoError:
    """Returns the reason as soon as `peer` is revoked or expired; race it against the stream it guards."""
    while True:
        try:
            trust.verify(peer.chain)
        except CryptoError as error:
            return error
        await asyncio.sleep(every)


class RevocationSource(Protocol):
    """Gives a bundle, or None while it is the one that was believed last. One that was not is given again, and complained of
    again, until a better one is there."""

    async def __call__(self) -> bytes | None: ...

    def believed(self) -> None:
        """Said by who took what was given last."""
        ...


class RevocationsFile:
    """A bundle that somebody else puts there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int, int] | None = None
        self._believed: tuple[int, int, int] | None = None

    async def __call__(self) -> bytes | None:
        try:
            state = self._path.stat()
        except FileNotFoundError:
            return None
        self._read = (state.st_mtime_ns, state.st_size, state.st_ino)
        return None if self._read == self._believed else self._path.read_bytes()

    def believed(self) -> None:
        self._believed = self._read


async def refresh_revocations(trust: TrustStore, source: RevocationSource) -> None:
    """Ask the source once, and take what it has."""
    bundle = await source()
    if bundle is None:
        return
    known = len(trust.revoked)
    trust.update_revocations(bundle)
    source.believed()
    if len(trust.revoked) != known:
        _log.info("revocations_updated", revoked=len(trust.revoked))


async def follow_revocations(trust: TrustStore, source: RevocationSource, every: float = 2.0) -> None:
    """Runs beside a server for as long as it lives: together with `until_unwelcome`, seconds from `fedrep silo revoke`
    to the end of the silo's streams. A source that fails leaves what is known in force, and is said once, not every time.
    """
    said: str | None = None
    while True:
        try:
            await refresh_revocations(trust, source)
            overdue = trust.revoked.overdue(dt.datetime.now(dt.UTC))
            problem = "The authority promised a newer revocation list by now; none has arrived." if overdue else None
        except (FedrepError, OSError) as error:
            problem = str(error)
        if problem != said:
            if problem is None:
                _log.info("revocations_current")
            else:
                _log.warning("revocations_not_updated", problem=problem)
            said = problem
        await asyncio.sleep(every)
