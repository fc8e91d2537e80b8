"""An authority that serves enrolment and renewal over real TLS on loopback, and those who call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from fedrep.wire.v1 import enrolment_pb2 as wire
from fedrep.wire.v1 import enrolment_pb2_grpc as wire_grpc
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.authority_name import AUTHORITY_NAME
from fedrep_identity.authority_server import Addresses, AuthorityServer, Limits
from fedrep_identity.certificates import Identity, Role
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.invitations import Invitation, invite
from fedrep_runtime.status import reason_of
from fedrep_runtime.tls import channel_options, client_channel_credentials

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca", "demo", PASSPHRASE)


@asynccontextmanager
async def serving(authority: CertificateAuthority, limits: Limits | None = None) -> AsyncIterator[AuthorityServer]:
    server = AuthorityServer(EnrolmentDesk(authority), Addresses("127.0.0.1", 0, 0, 0), limits)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def invitation_for(
    authority: CertificateAuthority, server: AuthorityServer | None = None, name: str = "hospital-a", role: Role = Role.SILO
) -> Invitation:
    """Without a server the invitation names an address that nobody dials."""
    return invite(
        authority.register,
        authority.root,
        Identity(name, role, authority.federation),
        enrolment_address=f"127.0.0.1:{server.enrolment_port if server is not None else 1}",
        server_address="127.0.0.1:8550",
    )


async def raw_enrol(authority: CertificateAuthority, server: AuthorityServer, request: wire.EnrolRequest) -> str:
    """Status and reason of a hand-made call, as somebody would make it who does not use our client."""
    credentials = client_channel_credentials(authority.root)
    options = channel_options(server_name=AUTHORITY_NAME)
    async with grpc.aio.secure_channel(f"127.0.0.1:{server.enrolment_port}", credentials, options) as channel:
        try:
            await wire_grpc.EnrolmentServiceStub(channel).Enrol(request, timeout=120)  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            return f"{error.code().name} {reason_of(error)}"
    return "OK"


def with_server(
    authority: CertificateAuthority,
    body: Callable[[AuthorityServer], Awaitable[None]],
    limits: Limits | None = None,
) -> None:
    async def run() -> None:
        async with serving(authority, limits) as server:
            await body(server)

    asyncio.run(run())
