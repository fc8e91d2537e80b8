"""mTLS on a real port: who gets through, rotation without restart, and revocation while a stream is open."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from fedrep.errors import CryptoError
from fedrep_identity.authority import CertificateAuthority, certificate_request, issue_credentials
from fedrep_identity.authority_server import Addresses, AuthorityServer
from fedrep_identity.certificates import CERTIFICATE_FILE, Credentials, Identity, Role, TrustStore
from fedrep_identity.diagnosis import Outcome, diagnose
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.enrolment_client import AuthorityRevocations
from fedrep_identity.folder import FederationAddresses, key_pair_loader
from fedrep_identity.peer import (
    RevocationsFile,
    follow_revocations,
    peer_certificate,
    refresh_revocations,
    until_unwelcome,
)
from fedrep_identity.register import Hosts
from fedrep_runtime.files import write_atomically
from fedrep_runtime.status import abort_with, error_of
from fedrep_runtime.tls import channel_options, client_channel_credentials, server_credentials, server_options

PASSPHRASE = "correct horse battery staple"
METHOD = "/test.Echo/Call"
STREAM = "/test.Echo/Stream"
SECONDS = 120.0  # for what would otherwise hang


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca") / "ca", "demo", PASSPHRASE)


@pytest.fixture(scope="module")
def server_folder(authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server")
    issue_credentials(authority, folder, Identity("main", Role.SERVER, "demo"), ("localhost",), ("127.0.0.1",))
    return folder


def credentials(
    authority: CertificateAuthority, folder: Path, name: str, role: Role = Role.SILO, days: float = 30
) -> Credentials:
    return issue_credentials(authority, folder / name, Identity(name, role, authority.federation), days=days)


@asynccontextmanager
async def echo_server(folder: Path, trust: TrustStore) -> AsyncIterator[int]:
    """Answers with the caller's URI; the stream stays open until the caller is unwelcome."""

    async def call(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:  # type: ignore[type-arg]
        try:
            return peer_certificate(context, trust, [Role.SILO]).identity.uri.encode()
        except CryptoError as error:
            await abort_with(context, error)

    async def stream(_request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:  # type: ignore[type-arg]
        peer = peer_certificate(context, trust)
        yield b"open"
        await abort_with(context, await until_unwelcome(trust, peer, every=0.02))

    server = grpc.aio.server(options=server_options())
    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(call),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    secure = server_credentials(key_pair_loader(folder), Credentials.load(folder).root)
    port = server.add_secure_port("127.0.0.1:0", secure)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def channel(port: int, own: Credentials | None, root: bytes) -> Any:
    """Any: the stubs do not know that serializers may be left out."""
    secure = client_channel_credentials(root, own.key_pair if own else None)
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", secure, options=channel_options())


async def outcome(port: int, own: Credentials | None, root: bytes) -> str:
    async with channel(port, own, root) as connection:
        try:
            return bytes(await connection.unary_unary(METHOD)(b"", timeout=SECONDS)).decode()
        except grpc.RpcError as error:
            refusal = error_of(error)
            return refusal.reason if refusal else error.code().name


def test_only_unrevoked_silos_of_this_federation_get_an_answer(
    authority: CertificateAuthority, server_folder: Path, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "other", "demo", PASSPHRASE)
    good = credentials(authority, tmp_path, "good")
    revoked = credentials(authority, tmp_path, "revoked")
    authority.revoke("revoked")
    viewer = credentials(authority, tmp_path, "viewer", Role.VIEWER)
    expired = credentials(authority, tmp_path, "expired", days=-0.001)
    stranger = credentials(other, tmp_path, "stranger")

    async def run() -> dict[str, str]:
        trust = authority.trust_store()
        async with echo_server(server_folder, trust) as port:
            return {
                name: await outcome(port, own, authority.root)
                for name, own in {
                    "good": good,
                    "none": None,
                    "stranger": stranger,
                    "expired": expired,
                    "revoked": revoked,
                    "viewer": viewer,
                }.items()
            }

    assert asyncio.run(run()) == {
        "good": "spiffe://demo/silo/good",
        "none": "UNAVAILABLE",  # TLS itself refuses these three, before any code of ours sees the connection
        "stranger": "UNAVAILABLE",
        "expired": "UNAVAILABLE",
        "revoked": "CERTIFICATE_REVOKED",
        "viewer": "WRONG_ROLE",
    }


def test_a_silo_certificate_cannot_pose_as_the_server(authority: CertificateAuthority, tmp_path: Path) -> None:
    silo = credentials(authority, tmp_path, "poser")

    async def run() -> str:
        async with echo_server(tmp_path / "poser", authority.trust_store()) as port:
            options = channel_options(server_name="poser")
            secure = client_channel_credentials(silo.root, silo.key_pair)
            connection: Any
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", secure, options=options) as connection:
                with pytest.raises(grpc.RpcError) as refused:
                    await connection.unary_unary(METHOD)(b"", timeout=SECONDS)
                return str(refused.value.code().name)

    assert asyncio.run(run()) == "UNAVAILABLE"


def test_a_renewed_server_certificate_is_used_without_restart_and_open_channels_go_on(
    authority: CertificateAuthority, tmp_path: Path, lines: list[Any]
) -> None:
    identity = Identity("rotating", Role.SERVER, "demo")
    before = issue_credentials(authority, tmp_path / "server", identity, ("localhost",), ("127.0.0.1",))
    silo = credentials(authority, tmp_path, "loyal")

    def presented(port: int) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", port), SECONDS) as plain, context.wrap_socket(plain) as secured:
            return x509.load_der_x509_certificate(secured.getpeercert(True) or b"").serial_number

    async def run() -> None:
        async with echo_server(tmp_path / "server", authority.trust_store()) as port:
            async with channel(port, silo, authority.root) as connection:
                call = connection.unary_unary(METHOD)
                await call(b"", timeout=SECONDS)
                assert await asyncio.to_thread(presented, port) == before.certificate.serial_number
                chain = authority.sign(certificate_request(before.private_key), identity, hosts=_hosts(authority))
                write_atomically(tmp_path / "server" / CERTIFICATE_FILE, chain, 0o644)
                fresh = Credentials.load(tmp_path / "server").certificate.serial_number
                assert await asyncio.to_thread(presented, port) == fresh != before.certificate.serial_number
                assert await call(b"", timeout=SECONDS) == b"spiffe://demo/silo/loyal"
            (tmp_path / "server" / CERTIFICATE_FILE).write_bytes(b"half a cert")  # what is in use stays in use
            for _ in range(2):
                assert await outcome(port, silo, authority.root) == "spiffe://demo/silo/loyal"

    asyncio.run(run())
    (line,) = lines  # not one for every connection
    assert line["event"] == "certificate_not_read"


def _hosts(authority: CertificateAuthority) -> Hosts:
    return authority.register.certificates("rotating")[-1].hosts


def test_revocation_ends_an_open_stream_by_file(authority: CertificateAuthority, server_folder: Path, tmp_path: Path) -> None:
    silo = credentials(authority, tmp_path, "caught-by-file")

    async def run() -> None:
        trust = authority.trust_store()
        source = RevocationsFile(authority.folder / "crl.pem")
        follower = asyncio.create_task(follow_revocations(trust, source, every=0.02))
        async with echo_server(server_folder, trust) as port, channel(port, silo, authority.root) as connection:
            stream = connection.unary_stream(STREAM)(b"", timeout=SECONDS)
            assert await stream.read() == b"open"
            await asyncio.to_thread(authority.revoke, "caught-by-file")
            with pytest.raises(grpc.RpcError) as ended:
                await stream.read()
            refusal = error_of(ended.value)
            assert refusal is not None
            assert "was revoked on" in str(refusal)
            assert await outcome(port, silo, authority.root) == "CERTIFICATE_REVOKED"
        follower.cancel()

    asyncio.run(run())


def test_a_damaged_list_is_complained_of_until_a_better_one_is_there(authority: CertificateAuthority, tmp_path: Path) -> None:
    path, whole = tmp_path / "crl.pem", (authority.folder / "crl.pem").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    trust, source = TrustStore(authority.root), RevocationsFile(path)

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(CryptoError, match="cannot be read"):
                await refresh_revocations(trust, source)
        write_atomically(path, whole)
        await refresh_revocations(trust, source)
        assert trust.revoked.lists
        assert await source() is None

    asyncio.run(run())


def test_revocation_reaches_a_server_that_asks_the_authority(
    authority: CertificateAuthority, server_folder: Path, tmp_path: Path, lines: list[Any]
) -> None:
    """And when the authority is gone, what is known stays in force."""
    silo = credentials(authority, tmp_path, "caught-online")
    kept = tmp_path / "kept.pem"

    async def run() -> None:
        ca = AuthorityServer(EnrolmentDesk(authority), Addresses("127.0.0.1", 0, 0))
        await ca.start()
        trust = TrustStore(authority.root)
        source = AuthorityRevocations(f"127.0.0.1:{ca.certificate_port}", lambda: Credentials.load(server_folder), keep=kept)
        for _ in range(2):
            assert await source() is not None, "nobody has taken it yet"
        source.believed()
        assert await source() is None  # nothing new, nothing sent
        follower = asyncio.create_task(follow_revocations(trust, source, every=0.05))
        peer = trust.verify(silo.chain)
        watch = asyncio.create_task(until_unwelcome(trust, peer, every=0.02))
        await asyncio.to_thread(authority.revoke, "caught-online")
        assert (await asyncio.wait_for(watch, SECONDS)).reason == "CERTIFICATE_REVOKED"
        await ca.stop(0)
        while not any(line["event"] == "revocations_not_updated" for line in lines):
            await asyncio.sleep(0.02)
        assert not follower.done()
        follower.cancel()
        await source.close()
        with pytest.raises(CryptoError, match="was revoked on"):
            trust.verify(silo.chain)

    asyncio.run(run())
    restarted = TrustStore(authority.root)
    restarted.update_revocations(kept.read_bytes())
    with pytest.raises(CryptoError, match="was revoked on"):
        restarted.verify(silo.chain)


def test_a_certificate_that_expires_ends_its_stream_too(authority: CertificateAuthority, tmp_path: Path) -> None:
    own = credentials(authority, tmp_path, "short-lived")
    strict = TrustStore(authority.root, skew=dt.timedelta(0))
    peer = strict.verify(own.chain)
    strict._skew = dt.timedelta(days=-31)  # as if a month had gone by

    async def run() -> CryptoError:
        return await asyncio.wait_for(until_unwelcome(strict, peer, every=0.01), SECONDS)

    assert asyncio.run(run()).reason == "CERTIFICATE_EXPIRED"


def test_tls_1_2_finds_no_way_in(authority: CertificateAuthority, server_folder: Path) -> None:
    """In a process that imports `services` first, as every `fedrep` command does."""
    script = f"""
import asyncio, pathlib, socket, ssl
from fedrep_identity.certificates import Credentials
from fedrep_identity.folder import key_pair_loader
from fedrep_runtime.tls import server_credentials
import grpc
def attempt(port, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, version
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), 60) as plain, context.wrap_socket(plain) as secured:
            return secured.version()
    except ssl.SSLError:
        return "refused"
async def run():
    folder = pathlib.Path({str(server_folder)!r})
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", server_credentials(key_pair_loader(folder), Credentials.load(folder).root))
    await server.start()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        print(await asyncio.to_thread(attempt, port, version))
    await server.stop(0)
asyncio.run(run())
"""
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_SSL_CIPHER_SUITES"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert done.stdout.split() == ["refused", "TLSv1.3"], done.stderr


def test_an_older_handshake_is_refused_at_the_call_as_well(authority: CertificateAuthority) -> None:
    class Old:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {"ssl_tls_version": [b"TLSv1.2"]}

    class Plain:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

    for context in (Old(), Plain()):
        with pytest.raises(CryptoError, match=r"TLS 1\.3"):
            peer_certificate(context, TrustStore(authority.root))


def test_the_doctor_tells_failures_apart(authority: CertificateAuthority, server_folder: Path, tmp_path: Path) -> None:
    credentials(authority, tmp_path, "patient")
    credentials(authority, tmp_path, "late", days=-0.001)
    other = CertificateAuthority.create(tmp_path / "other", "demo", PASSPHRASE)
    credentials(other, tmp_path, "lost")
    # Knows the right root (so it accepts the server) but holds a certificate of another authority.
    (tmp_path / "lost" / "root.pem").write_bytes(authority.root)

    async def run() -> None:
        ca = AuthorityServer(EnrolmentDesk(authority), Addresses("127.0.0.1", 0, 0))
        await ca.start()
        async with echo_server(server_folder, authority.trust_store()) as port:
            server = f"127.0.0.1:{port}"
            FederationAddresses("demo", server, "", f"127.0.0.1:{ca.certificate_port}").save(tmp_path / "patient")

            async def found(name: str, address: str | None = None) -> dict[str, tuple[Outcome, str]]:
                return {item.check: (item.outcome, item.text) for item in await diagnose(tmp_path / name, address)}

            healthy = await found("patient")
            assert {check: outcome for check, (outcome, _) in healthy.items()} == dict.fromkeys(
                (
                    "credentials",
                    "key file",
                    "certificate",
                    "revocation list",
                    "revocation",
                    "clock",
                    "DNS",
                    "TCP",
                    "TLS",
                    "health",
                ),
                Outcome.OK,
            )
            assert (await found("patient", "no-such-host.invalid:1"))["DNS"][0] is Outcome.FAILED
            assert (await found("patient", "127.0.0.1:1"))["TCP"][0] is Outcome.FAILED
            assert "not acceptable" in (await found("patient", f"localhost:{ca.enrolment_port}"))["TLS"][1]
            lost, late = await found("lost", server), await found("late", server)
            assert "not issued by this federation" in lost["certificate"][1]
            assert "expired on" in late["certificate"][1]
            for unwelcome in (lost, late):
                assert "closed the connection when it saw this certificate" in unwelcome["TLS"][1]
            (tmp_path / "patient" / "key.pem").chmod(0o644)
            assert (await found("patient"))["key file"][0] is Outcome.FAILED
            await asyncio.to_thread(authority.revoke, "patient")
            result, text = (await found("patient"))["revocation"]
            assert result is Outcome.FAILED
            assert "was revoked on" in text
        await ca.stop(0)
        credentials(authority, tmp_path, "alone")
        FederationAddresses("demo", "127.0.0.1:1", "", f"127.0.0.1:{ca.certificate_port}").save(tmp_path / "alone")
        unanswered = {item.check: item for item in await diagnose(tmp_path / "alone")}
        assert unanswered["revocation"].outcome is Outcome.WARNING
        assert "Certificates stay valid meanwhile" in unanswered["revocation"].advice

    asyncio.run(run())
    assert asyncio.run(diagnose(tmp_path / "nobody"))[0].outcome is Outcome.FAILED
