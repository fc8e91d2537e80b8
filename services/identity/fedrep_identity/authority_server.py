"""`fedrep ca serve`: the authority on two ports. Anybody may knock at the first, with an invitation; the second is mTLS.

What runs before a caller is known is kept small: a message limit, a limit per source and one for all, one parser for the
request (in `cryptography`), one lookup. The certificate of both ports is made by the authority itself, in memory.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from fedrep.errors import FedrepError, RefusedError, SettingsError
from fedrep.wire.v1 import enrolment_pb2 as wire
from fedrep.wire.v1 import enrolment_pb2_grpc as wire_grpc
from fedrep_identity.authority import LIST_LIFETIME, certificate_request
from fedrep_identity.authority_name import AUTHORITY_NAME, OWN_NAME
from fedrep_identity.certificates import REVOCATIONS_FILE, PeerCertificate, load_chain
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.keyfile import private_key_pem
from fedrep_identity.names import Identity, Role
from fedrep_identity.peer import RevocationsFile, peer_certificate, refresh_revocations
from fedrep_identity.rate_limit import RateLimit, source_of
from fedrep_identity.register import Hosts
from fedrep_runtime import listening
from fedrep_runtime.status import abort_with
from fedrep_runtime.tls import KeyPair, require_tls13, server_credentials, server_options

LARGEST_MESSAGE = 16 * 1024
LOOK_AT_LIST_SECONDS = 60.0
SAY_ROOT_LIST_ENDS = dt.timedelta(days=60)  # before; a safe is not opened at a day's notice
Answer = TypeVar("Answer")
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_log = structlog.get_logger(__name__)


class BusyError(RefusedError):
    """Too many calls; the caller should wait."""

    status = "RESOURCE_EXHAUSTED"
    default_reason = "TOO_MANY_CALLS"


@dataclass(frozen=True)
class Limits:
    """Enrolment is done once by a silo, renewal monthly; the numbers leave room for a person who tries again."""

    enrol_per_source: RateLimit = field(default_factory=lambda: RateLimit(burst=10, per_second=0.1))
    enrol_in_all: RateLimit = field(default_factory=lambda: RateLimit(burst=100, per_second=2.0))
    renew_per_name: RateLimit = field(default_factory=lambda: RateLimit(burst=10, per_second=0.01))


@dataclass(frozen=True)
class Addresses:
    """Where to listen (port 0: any free one), and where silos find the mTLS port from outside."""

    host: str = "0.0.0.0"
    enrolment_port: int = 8551
    certificate_port: int = 8552
    health_port: int | None = None
    public_certificate_address: str | None = None


class _OwnCertificate:
    """Made in memory, replaced at two thirds of its life, or when the clock is set back before its beginning; asked at every
    handshake."""

    def __init__(self, desk: EnrolmentDesk) -> None:
        self._desk = desk
        self._pair: KeyPair | None = None
        self._begins = self._renew_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    def load(self) -> KeyPair:
        now = dt.datetime.now(dt.UTC)
        if self._pair is None or not self._begins <= now < self._renew_at:
            authority = self._desk.authority
            key = ec.generate_private_key(ec.SECP256R1())
            identity = Identity(OWN_NAME, Role.SERVER, authority.federation)
            chain = authority.sign(certificate_request(key), identity, hosts=Hosts((AUTHORITY_NAME,)))
            certificate = load_chain(chain)[0]
            self._begins = certificate.not_valid_before_utc
            self._renew_at = now + (certificate.not_valid_after_utc - now) * 2 / 3
            # The root goes along for those who only know its fingerprint yet.
            self._pair = KeyPair(private_key_pem(key), chain + authority.root)
        return self._pair


class AuthorityServer:
    def __init__(self, desk: EnrolmentDesk, addresses: Addresses, limits: Limits | None = None) -> None:
        self._desk = desk
        self._addresses = addresses
        self._limits = limits or Limits()
        self._servers: list[grpc.aio.Server] = []
        self._publishing: asyncio.Task[None] | None = None
        self.enrolment_port = 0
        self.certificate_port = 0
        self.health_port: int | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._publish)  # before anybody reads what lies there, from whatever time it is
        own = _OwnCertificate(self._desk)
        root, host = self._desk.authority.root, self._addresses.host
        options = [
            *server_options(LARGEST_MESSAGE),
            ("grpc.max_metadata_size", 8192),
            ("grpc.max_connection_idle_ms", 60_000),
            ("grpc.max_concurrent_streams", 16),
        ]
        open_port = grpc.aio.server(options=options, maximum_concurrent_rpcs=64)
        closed_port = grpc.aio.server(options=options, maximum_concurrent_rpcs=256)
        everyone, members = server_credentials(own.load, None, require_client=False), server_credentials(own.load, root)
        self.certificate_port = _bound(
            lambda at: closed_port.add_secure_port(at, members), host, self._addresses.certificate_port
        )
        self.enrolment_port = _bound(lambda at: open_port.add_secure_port(at, everyone), host, self._addresses.enrolment_port)
        public = self._addresses.public_certificate_address or listening.address(host, self.certificate_port)
        wire_grpc.add_EnrolmentServiceServicer_to_server(  # type: ignore[no-untyped-call]
            _Enrolment(self._desk, self._limits, public), open_port
        )
        wire_grpc.add_CertificateServiceServicer_to_server(  # type: ignore[no-untyped-call]
            _Certificates(self._desk, self._limits), closed_port
        )
        self._servers = [open_port, closed_port]
        if self._addresses.health_port is not None:
            self._servers.append(await self._health_server(host, self._addresses.health_port))
        for server in self._servers:
            await server.start()
        self._publishing = asyncio.create_task(self._keep_list_fresh())
        _log.info("authority_started", enrolment_port=self.enrolment_port, certificate_port=self.certificate_port)

    async def _health_server(self, host: str, port: int) -> grpc.aio.Server:
        server = grpc.aio.server()
        servicer = health.HealthServicer()
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        add_HealthServicer_to_server(servicer, server)
        self.health_port = _bound(server.add_insecure_port, host, port)
        return server

    async def _keep_list_fresh(self) -> None:
        """A list is signed anew at half its life, so that nobody has to wonder whether the authority is still there.

        One that could not be written, as on a full disk, is tried again and said each time: were it given up, the last list would
        end while everything else looks well. The list's own dates are looked at, since the clock may be set.
        """
        while True:
            await asyncio.sleep(LOOK_AT_LIST_SECONDS)
            try:
                if self._desk.authority.list_is_due(LIST_LIFETIME):
                    await asyncio.to_thread(self._publish)
            except Exception as error:  # whatever it is, the next list is still due
                _log.exception("revocations_not_published", problem=str(error))

    def _publish(self) -> None:
        authority = self._desk.authority
        authority.publish_revocations(LIST_LIFETIME)
        upper = authority.upper_revocations()
        if upper is not None and upper.next_update - dt.datetime.now(dt.UTC) < SAY_ROOT_LIST_ENDS:
            _log.warning(
                "root_list_ending",
                ends=upper.next_update.isoformat(),
                do="sign a new one with the root (fedrep ca crl) and bring it here (fedrep ca crl --upper FILE)",
            )

    async def stop(self, grace: float = 1.0) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    async def wait(self) -> None:
        await asyncio.gather(*(server.wait_for_termination() for server in self._servers))


def _bound(bind: Callable[[str], int], host: str, port: int) -> int:
    try:
        return bind(listening.address(host, port))
    except RuntimeError as error:
        raise SettingsError(
            f"cannot listen on {listening.address(host, port)}; another program uses the port, or the address is not this "
            "machine's. Choose another in the authority's settings",
            reason="PORT_IN_USE",
        ) from error


async def _answer(context: Context, call: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
    """One log line for each call, and the error tree as gRPC status."""
    started, outcome = time.monotonic(), "OK"
    try:
        return await work()
    except FedrepError as error:
        outcome = error.reason
        await abort_with(context, error)
    except Exception as error:
        outcome = "INTERNAL"
        _log.exception("authority_fault", call=call, kind=type(error).__name__)
        await context.abort(grpc.StatusCode.INTERNAL, "The certificate authority has a fault; its log says which.")
        raise
    finally:
        elapsed = round((time.monotonic() - started) * 1000, 1)
        # Followers ask for revocations every few seconds; at `info` they would drown the rest.
        say = _log.debug if call == "GetRevocations" and outcome == "OK" else _log.info
        say("call", call=call, source=source_of(context.peer()), outcome=outcome, ms=elapsed)


class _Enrolment(wire_grpc.EnrolmentServiceServicer):
    def __init__(self, desk: EnrolmentDesk, limits: Limits, certificate_address: str) -> None:
        self._desk = desk
        self._limits = limits
        self._certificate_address = certificate_address

    async def Enrol(  # noqa: N802 - the RPC's name
        self, request: wire.EnrolRequest, context: Context
    ) -> wire.EnrolResponse:
        async def work() -> wire.EnrolResponse:
            require_tls13(context)
            source = source_of(context.peer())
            if not (self._limits.enrol_per_source.allows(source) and self._limits.enrol_in_all.allows("all")):
                raise BusyError("Too many attempts to enrol. Wait a minute and try again with the same token.")
            chain = await asyncio.to_thread(
                self._desk.enrol, request.invitation_id[:64], request.proof, request.certificate_request
            )
            return wire.EnrolResponse(
                certificate_chain=chain,
                revocations=self._desk.revocations(),
                certificate_address=self._certificate_address,
            )

        return await _answer(context, "Enrol", work)


class _Certificates(wire_grpc.CertificateServiceServicer):
    def __init__(self, desk: EnrolmentDesk, limits: Limits) -> None:
        self._desk = desk
        self._limits = limits
        self._trust = desk.authority.trust_store()
        self._source = RevocationsFile(desk.authority.folder / REVOCATIONS_FILE)

    async def _caller(self, context: Context) -> PeerCertificate:
        await refresh_revocations(self._trust, self._source)  # a list it cannot read must stop it, not be passed over
        return peer_certificate(context, self._trust)

    async def Renew(  # noqa: N802 - the RPC's name
        self, request: wire.RenewRequest, context: Context
    ) -> wire.RenewResponse:
        async def work() -> wire.RenewResponse:
            caller = await self._caller(context)
            if not self._limits.renew_per_name.allows(caller.identity.name):
                raise BusyError("This name was renewed many times just now. Wait some minutes and try again.")
            chain = await asyncio.to_thread(self._desk.renew, caller, request.certificate_request)
            return wire.RenewResponse(certificate_chain=chain, revocations=self._desk.revocations())

        return await _answer(context, "Renew", work)

    async def GetRevocations(  # noqa: N802 - the RPC's name
        self,
        request: wire.GetRevocationsRequest,
        context: Context,
    ) -> wire.GetRevocationsResponse:
        async def work() -> wire.GetRevocationsResponse:
            await self._caller(context)
            bundle = self._desk.revocations()
            known = hashlib.sha256(bundle).digest() == request.known_sha256
            return wire.GetRevocationsResponse(revocations=b"" if known else bundle, unix_seconds=int(time.time()))

        return await _answer(context, "GetRevocations", work)
