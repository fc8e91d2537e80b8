"""Enrolment and renewal over real TLS on loopback: who gets in, as whom, and what a stranger can do before that."""

from __future__ import annotations

import asyncio
import datetime as dt
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from fedrep.errors import ConflictError, CryptoError, DecodeError, FedrepError, InvalidInputError, RefusedError
from fedrep.secagg.keys import SecretBytes
from fedrep.wire.v1 import enrolment_pb2 as wire
from fedrep.wire.v1 import enrolment_pb2_grpc as wire_grpc
from services.identity.authority import CertificateAuthority, certificate_request, issue_credentials
from services.identity.authority_name import AUTHORITY_NAME, OWN_NAME
from services.identity.authority_server import Addresses, AuthorityServer, Limits
from services.identity.certificates import Credentials, Identity, Role
from services.identity.enrolment import EnrolmentDesk
from services.identity.enrolment_client import UnreachableError, enrol, fetch_root, renew
from services.identity.folder import FederationAddresses, renewal_time
from services.identity.invitations import Invitation, invite
from services.identity.rate_limit import RateLimit, source_of
from services.identity.upkeep import keep_renewed, tend_credentials
from services.runtime.status import reason_of
from services.runtime.tls import KeyPair, channel_options, client_channel_credentials

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
    authority: CertificateAuthority, server: AuthorityServer, name: str = "hospital-a", role: Role = Role.SILO
) -> Invitation:
    return invite(
        authority.register,
        authority.root,
        Identity(name, role, authority.federation),
        enrolment_address=f"127.0.0.1:{server.enrolment_port}",
        server_address="127.0.0.1:8550",
    )


async def raw_enrol(authority: CertificateAuthority, server: AuthorityServer, request: wire.EnrolRequest) -> str:
    """Status and reason of a hand-made call, as somebody would make it who does not use our client."""
    credentials = client_channel_credentials(authority.root)
    options = channel_options(server_name=AUTHORITY_NAME)
    async with grpc.aio.secure_channel(f"127.0.0.1:{server.enrolment_port}", credentials, options) as channel:
        try:
            await wire_grpc.EnrolmentServiceStub(channel).Enrol(request, timeout=10)  # type: ignore[no-untyped-call]
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


def test_a_token_turns_into_credentials_for_the_invited_name(authority: CertificateAuthority, tmp_path: Path) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        credentials = await enrol(invitation_for(authority, server).token(), folder)
        assert credentials.identity == Identity("hospital-a", Role.SILO, "demo")
        assert FederationAddresses.load(folder).certificates == f"127.0.0.1:{server.certificate_port}"

    with_server(authority, body)
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    assert not list(folder.glob("next-*"))
    lifetime = Credentials.load(folder).certificate
    assert dt.timedelta(days=30) <= lifetime.not_valid_after_utc - lifetime.not_valid_before_utc < dt.timedelta(days=31)


def test_enrolment_works_through_an_intermediate_authority(authority: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE)

    async def body(server: AuthorityServer) -> None:
        credentials = await enrol(invitation_for(online, server).token(), tmp_path / "silo")
        renewed = await renew(tmp_path / "silo")
        assert renewed.fingerprint == credentials.fingerprint
        assert renewed.trust_store().verify(renewed.chain).identity.name == "hospital-a"

    with_server(online, body)


def test_name_role_and_hosts_never_come_from_the_request(authority: CertificateAuthority) -> None:
    """A request that claims to be an admin, a server and a CA yields a plain silo certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    claimed = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root-admin")]))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.UniformResourceIdentifier("spiffe://demo/admin/boss"), x509.DNSName("server.demo")]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )

    async def body(server: AuthorityServer) -> None:
        invitation = invitation_for(authority, server)
        request = wire.EnrolRequest(invitation_id=invitation.id, secret=invitation.secret.reveal(), certificate_request=claimed)
        assert await raw_enrol(authority, server, request) == "OK"

    with_server(authority, body)
    (issued,) = authority.register.certificates("hospital-a")
    leaf = x509.load_pem_x509_certificate(issued.chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["spiffe://demo/silo/hospital-a"]
    assert leaf.subject.rfc4514_string() == "CN=hospital-a,O=demo"
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_token_serves_one_key_only(authority: CertificateAuthority, tmp_path: Path) -> None:
    async def body(server: AuthorityServer) -> None:
        token = invitation_for(authority, server).token()
        await enrol(token, tmp_path / "first")
        with pytest.raises(RefusedError, match="already used") as refused:
            await enrol(token, tmp_path / "second")
        assert refused.value.reason == "INVITATION_USED"

    with_server(authority, body)
    assert len(authority.register.certificates("hospital-a")) == 1
    assert not (tmp_path / "second" / "cert.pem").exists()


def test_two_keys_that_race_for_one_token_do_not_both_win(authority: CertificateAuthority, tmp_path: Path) -> None:
    async def body(server: AuthorityServer) -> None:
        token = invitation_for(authority, server).token()
        results = await asyncio.gather(*(enrol(token, tmp_path / str(number)) for number in range(6)), return_exceptions=True)
        assert sum(isinstance(result, Credentials) for result in results) == 1
        assert sum(isinstance(result, RefusedError) for result in results) == 5

    with_server(authority, body)


def test_a_lost_answer_can_be_asked_for_again_with_the_same_key(authority: CertificateAuthority) -> None:
    desk = EnrolmentDesk(authority)
    invitation = invite(
        authority.register,
        authority.root,
        Identity("hospital-a", Role.SILO, "demo"),
        enrolment_address="ca:1",
        server_address="server:1",
    )
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    first = desk.enrol(invitation.id, invitation.secret.reveal(), request)
    assert desk.enrol(invitation.id, invitation.secret.reveal(), request) == first


def test_a_used_token_is_dead_after_revocation_even_for_its_own_key(authority: CertificateAuthority) -> None:
    desk = EnrolmentDesk(authority)
    invitation = invite(
        authority.register,
        authority.root,
        Identity("hospital-a", Role.SILO, "demo"),
        enrolment_address="ca:1",
        server_address="server:1",
    )
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    desk.enrol(invitation.id, invitation.secret.reveal(), request)
    authority.revoke("hospital-a")
    with pytest.raises(CryptoError, match="not valid"):
        desk.enrol(invitation.id, invitation.secret.reveal(), request)
    assert [issued.status(dt.datetime.now(dt.UTC)) for issued in authority.register.certificates()] == ["revoked"]


def test_an_expired_token_is_refused_and_issues_nothing(authority: CertificateAuthority, tmp_path: Path) -> None:
    async def body(server: AuthorityServer) -> None:
        invitation = invite(
            authority.register,
            authority.root,
            Identity("hospital-a", Role.SILO, "demo"),
            enrolment_address=f"127.0.0.1:{server.enrolment_port}",
            server_address="127.0.0.1:8550",
            hours=1,
            now=dt.datetime.now(dt.UTC) - dt.timedelta(hours=2),
        )
        with pytest.raises(RefusedError, match="expired on") as refused:
            await enrol(invitation.token(), tmp_path / "silo")
        assert refused.value.reason == "INVITATION_EXPIRED"

    with_server(authority, body)
    assert authority.register.certificates("hospital-a") == []


def test_wrong_secrets_void_an_invitation_before_they_can_be_guessed(authority: CertificateAuthority) -> None:
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))

    async def body(server: AuthorityServer) -> None:
        invitation = invitation_for(authority, server)
        for guess in range(5):
            answer = await raw_enrol(
                authority,
                server,
                wire.EnrolRequest(invitation_id=invitation.id, secret=bytes([guess]) * 32, certificate_request=request),
            )
            assert answer == "UNAUTHENTICATED INVITATION_INVALID"
        right = wire.EnrolRequest(invitation_id=invitation.id, secret=invitation.secret.reveal(), certificate_request=request)
        assert await raw_enrol(authority, server, right) == "UNAUTHENTICATED INVITATION_INVALID"

    with_server(authority, body)
    assert authority.register.certificates("hospital-a") == []


def test_an_unknown_invitation_and_a_wrong_secret_look_the_same(authority: CertificateAuthority) -> None:
    async def body(server: AuthorityServer) -> None:
        invitation = invitation_for(authority, server)
        answers = [
            await raw_enrol(authority, server, wire.EnrolRequest(invitation_id=known, secret=b"x" * 32, certificate_request=b""))
            for known in (invitation.id, "0" * 32, "", "x" * 5000)
        ]
        assert set(answers) == {"UNAUTHENTICATED INVITATION_INVALID"}

    with_server(authority, body)


def test_a_source_that_hammers_is_slowed_down_before_anything_is_looked_up(authority: CertificateAuthority) -> None:
    clock = [0.0]
    limits = Limits(enrol_per_source=RateLimit(3, 0.1, lambda: clock[0]))
    request = wire.EnrolRequest(invitation_id="0" * 32, secret=b"x" * 32, certificate_request=b"")

    async def body(server: AuthorityServer) -> None:
        answers = [await raw_enrol(authority, server, request) for _ in range(5)]
        assert answers == ["UNAUTHENTICATED INVITATION_INVALID"] * 3 + ["RESOURCE_EXHAUSTED TOO_MANY_CALLS"] * 2
        clock[0] += 10
        assert await raw_enrol(authority, server, request) == "UNAUTHENTICATED INVITATION_INVALID"

    with_server(authority, body, limits)


def test_an_oversized_request_never_reaches_the_parser(authority: CertificateAuthority) -> None:
    async def body(server: AuthorityServer) -> None:
        invitation = invitation_for(authority, server)
        large = wire.EnrolRequest(
            invitation_id=invitation.id, secret=invitation.secret.reveal(), certificate_request=b"x" * 20_000
        )
        assert (await raw_enrol(authority, server, large)).startswith("RESOURCE_EXHAUSTED")
        medium = wire.EnrolRequest(
            invitation_id=invitation.id, secret=invitation.secret.reveal(), certificate_request=b"x" * 9_000
        )
        assert await raw_enrol(authority, server, medium) == "INVALID_ARGUMENT MALFORMED"

    with_server(authority, body)


def test_a_request_with_another_kind_of_key_or_a_borrowed_key_is_refused(authority: CertificateAuthority) -> None:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    weak = builder.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256()).public_bytes(Encoding.PEM)
    borrowed = bytearray(builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.DER))
    borrowed[-1] ^= 1
    identity = Identity("hospital-a", Role.SILO, "demo")
    with pytest.raises(InvalidInputError, match="P-256"):
        authority.sign(weak, identity)
    with pytest.raises(InvalidInputError, match="signed by its own key"):
        authority.sign(bytes(borrowed), identity)
    with pytest.raises(DecodeError, match="not a certificate request"):
        authority.sign(b"-----BEGIN nonsense", identity)
    assert authority.register.certificates() == []


def test_one_key_cannot_hold_two_names(authority: CertificateAuthority) -> None:
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    authority.sign(request, Identity("hospital-a", Role.SILO, "demo"))
    with pytest.raises(ConflictError, match="already belongs to hospital-a"):
        authority.sign(request, Identity("hospital-b", Role.SILO, "demo"))


def test_a_man_in_the_middle_with_another_root_is_caught_by_the_fingerprint(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    impostor = CertificateAuthority.create(tmp_path / "impostor", "demo", PASSPHRASE)

    async def body(server: AuthorityServer) -> None:
        genuine = invitation_for(authority, server)  # of the right authority, but the impostor answers
        with pytest.raises(CryptoError, match="fingerprint differs") as caught:
            await enrol(genuine.token(), tmp_path / "silo")
        assert caught.value.reason == "WRONG_ROOT"

    with_server(impostor, body)
    assert not (tmp_path / "silo" / "next-key.pem").exists()


def test_a_server_that_shows_the_right_root_without_belonging_to_it_gets_no_secret(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """The root is public: an impostor can append it to its own chain. The second, verified connection then fails."""
    impostor = CertificateAuthority.create(tmp_path / "impostor", "demo", PASSPHRASE)
    own = issue_credentials(impostor, tmp_path / "own", Identity(OWN_NAME, Role.SERVER, "demo"), (AUTHORITY_NAME,))
    seen: list[wire.EnrolRequest] = []

    class Thief(wire_grpc.EnrolmentServiceServicer):
        async def Enrol(self, request: wire.EnrolRequest, _context: object) -> wire.EnrolResponse:  # noqa: N802
            seen.append(request)
            return wire.EnrolResponse()

    async def run() -> None:
        server = grpc.aio.server()
        wire_grpc.add_EnrolmentServiceServicer_to_server(Thief(), server)  # type: ignore[no-untyped-call]
        pair = KeyPair(own.key_pem, own.chain + authority.root)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair.private_key, pair.chain)]))
        await server.start()
        invitation = invite(
            authority.register,
            authority.root,
            Identity("hospital-a", Role.SILO, "demo"),
            enrolment_address=f"127.0.0.1:{port}",
            server_address="127.0.0.1:8550",
        )
        try:
            with pytest.raises(FedrepError):
                await enrol(invitation.token(), tmp_path / "silo", timeout=3)
        finally:
            await server.stop(0)

    asyncio.run(run())
    assert seen == []


def test_the_federation_server_cannot_pose_as_the_authority(authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="own host name"):
        issue_credentials(authority, tmp_path / "x", Identity("main", Role.SERVER, "demo"), (AUTHORITY_NAME,))
    with pytest.raises(InvalidInputError, match="own name"):
        invite(
            authority.register,
            authority.root,
            Identity("authority", Role.SERVER, "demo"),
            enrolment_address="a:1",
            server_address="b:1",
        )


def test_an_authority_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached"):
        fetch_root("127.0.0.1:1", b"0" * 32, timeout=2)


def test_a_token_that_was_cut_or_changed_is_recognised_without_repeating_it() -> None:
    invitation = Invitation(
        "1" * 32, SecretBytes(b"s" * 32), "a", Role.SILO, "demo", "ca:1", "server:1", b"f" * 32, dt.datetime.now(dt.UTC)
    )
    token = invitation.token()
    read = Invitation.from_token(f"  {token[:80]}\n{token[80:]} ")
    assert (read.name, read.root_fingerprint, read.secret) == ("a", b"f" * 32, SecretBytes(b"s" * 32))
    for broken in (token[:-3], token[:60] + token[61:], token.replace("fedrep1", "fedrep2"), "", "x" * 10_000):
        with pytest.raises(DecodeError) as refused:
            Invitation.from_token(broken)
        assert token[20:40] not in str(refused.value)


def test_renewal_keeps_name_role_and_key_and_needs_no_token(authority: CertificateAuthority, tmp_path: Path) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        after = await renew(folder)
        assert after.identity == before.identity
        assert after.fingerprint == before.fingerprint
        assert after.certificate.serial_number != before.certificate.serial_number
        rotated = await renew(folder, new_key=True)
        assert rotated.identity == before.identity
        assert rotated.fingerprint != before.fingerprint
        assert Credentials.load(folder).fingerprint == rotated.fingerprint

    with_server(authority, body)


def test_a_revoked_silo_can_neither_renew_nor_ask_anything(authority: CertificateAuthority, tmp_path: Path) -> None:
    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), tmp_path / "silo")
        authority.revoke("hospital-a")
        with pytest.raises(CryptoError, match="was revoked on") as refused:
            await renew(tmp_path / "silo")
        assert refused.value.reason == "CERTIFICATE_REVOKED"

    with_server(authority, body)
    assert len(authority.register.certificates("hospital-a")) == 1


def test_a_crash_between_the_two_renames_of_a_new_key_loses_nothing(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), folder)
        real, calls = Path.replace, []

        def replace_once(self: Path, target: Path) -> Path:
            calls.append(target)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_once)
            with pytest.raises(KeyboardInterrupt):
                await renew(folder, new_key=True)
        survivor = Credentials.load(folder)
        assert survivor.private_key.public_key() == survivor.certificate.public_key()
        renewed = await renew(folder)
        assert renewed.fingerprint == survivor.fingerprint
        assert not list(folder.glob("next-*"))
        assert Credentials.load(folder).certificate == renewed.certificate != survivor.certificate

    with_server(authority, body)


def test_the_daemon_renews_at_two_thirds_of_life_and_not_before(authority: CertificateAuthority, tmp_path: Path) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        before = await enrol(invitation_for(authority, server).token(), folder)
        due = renewal_time(before.certificate)
        renewed: asyncio.Queue[Credentials] = asyncio.Queue()
        clock = [due - dt.timedelta(seconds=1)]
        looks = asyncio.Event()

        def now() -> dt.datetime:
            looks.set()
            return clock[0]

        task = asyncio.create_task(keep_renewed(folder, renewed.put, check_every=0.01, now=now))
        await looks.wait()
        assert renewed.empty()
        assert Credentials.load(folder).certificate == before.certificate
        clock[0] = due
        fresh = await asyncio.wait_for(renewed.get(), 20)
        task.cancel()
        assert fresh.certificate.serial_number != before.certificate.serial_number

    with_server(authority, body)


def test_a_tended_folder_learns_of_revocations_and_survives_an_authority_that_goes_away(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    folder = tmp_path / "silo"

    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), folder)
        before = (folder / "crl.pem").read_bytes()
        task = asyncio.create_task(tend_credentials(folder, list_every=0.02))
        request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
        authority.sign(request, Identity("hospital-b", Role.SILO, "demo"))
        authority.revoke("hospital-b")
        async with asyncio.timeout(20):
            while (folder / "crl.pem").read_bytes() == before:
                await asyncio.sleep(0.02)
        await server.stop(0)
        await asyncio.sleep(0.1)
        assert not task.done()
        task.cancel()

    with_server(authority, body)
    assert (folder / "crl.pem").read_bytes() == (authority.folder / "crl.pem").read_bytes()


def test_a_folder_that_knows_no_authority_is_left_alone(authority: CertificateAuthority, tmp_path: Path) -> None:
    issue_credentials(authority, tmp_path / "offline", Identity("offline", Role.SILO, "demo"))
    asyncio.run(asyncio.wait_for(tend_credentials(tmp_path / "offline"), 10))


def test_a_folder_that_is_enrolled_is_not_overwritten_by_accident(authority: CertificateAuthority, tmp_path: Path) -> None:
    async def body(server: AuthorityServer) -> None:
        await enrol(invitation_for(authority, server).token(), tmp_path / "silo")
        other = invitation_for(authority, server, "hospital-b")
        with pytest.raises(ConflictError, match="already holds the certificate of silo hospital-a"):
            await enrol(other.token(), tmp_path / "silo")
        replaced = await enrol(other.token(), tmp_path / "silo", replace=True)
        assert replaced.identity.name == "hospital-b"

    with_server(authority, body)


def test_a_name_with_a_valid_certificate_cannot_be_invited_again(authority: CertificateAuthority) -> None:
    identity = Identity("hospital-a", Role.SILO, "demo")
    authority.sign(certificate_request(ec.generate_private_key(ec.SECP256R1())), identity)
    with pytest.raises(ConflictError, match="Revoke it first"):
        invite(authority.register, authority.root, identity, enrolment_address="a:1", server_address="b:1")


def test_sources_are_networks_so_that_one_host_cannot_be_many() -> None:
    assert source_of("ipv4:192.0.2.7:41234") == "192.0.2.7"
    assert source_of("ipv6:%5B2001:db8::1%5D:1") == source_of("ipv6:%5B2001:db8::ffff%5D:2") == "2001:db8::/64"
    assert source_of("ipv6:[::ffff:192.0.2.7]:1") == "192.0.2.7"
    assert source_of("unix:") == "unix"
