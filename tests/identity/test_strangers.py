"""What somebody without an invitation can do to the authority, and a false authority to somebody who has one."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from fedrep.errors import ConflictError, CryptoError, DecodeError, FedrepError, InvalidInputError
from fedrep.secagg.keys import SecretBytes
from fedrep.wire.v1 import enrolment_pb2 as wire
from fedrep.wire.v1 import enrolment_pb2_grpc as wire_grpc
from fedrep_identity.authority import CertificateAuthority, certificate_request, issue_credentials
from fedrep_identity.authority_name import AUTHORITY_NAME, OWN_NAME
from fedrep_identity.authority_server import AuthorityServer, Limits
from fedrep_identity.certificates import Identity, Role
from fedrep_identity.enrolment_client import enrol
from fedrep_identity.invitations import Invitation, invite
from fedrep_identity.rate_limit import RateLimit, source_of
from fedrep_runtime.tls import KeyPair
from tests.harness.enrolment_desk import PASSPHRASE, invitation_for, raw_enrol, with_server


def test_wrong_secrets_void_an_invitation_before_they_can_be_guessed(authority: CertificateAuthority) -> None:
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))

    async def body(server: AuthorityServer) -> None:
        invitation = invitation_for(authority, server)
        for guess in range(5):
            answer = await raw_enrol(
                authority,
                server,
                wire.EnrolRequest(invitation_id=invitation.id, proof=bytes([guess]) * 64, certificate_request=request),
            )
            assert answer == "UNAUTHENTICATED INVITATION_INVALID"
        right = wire.EnrolRequest(invitation_id=invitation.id, proof=invitation.proof(request), certificate_request=request)
        assert await raw_enrol(authority, server, right) == "UNAUTHENTICATED INVITATION_INVALID"

    with_server(authority, body)
    assert authority.register.certificates("hospital-a") == []


def test_an_unknown_invitation_and_a_wrong_secret_look_the_same(authority: CertificateAuthority) -> None:
    async def body(server: AuthorityServer) -> None:
        invitation = invitation_for(authority, server)
        answers = [
            await raw_enrol(authority, server, wire.EnrolRequest(invitation_id=known, proof=b"x" * 64, certificate_request=b""))
            for known in (invitation.id, "0" * 32, "", "x" * 5000)
        ]
        assert set(answers) == {"UNAUTHENTICATED INVITATION_INVALID"}

    with_server(authority, body)


def test_a_source_that_hammers_is_slowed_down_before_anything_is_looked_up(authority: CertificateAuthority) -> None:
    clock = [0.0]
    limits = Limits(enrol_per_source=RateLimit(3, 0.1, lambda: clock[0]))
    request = wire.EnrolRequest(invitation_id="0" * 32, proof=b"x" * 64, certificate_request=b"")

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
            invitation_id=invitation.id, proof=invitation.proof(b"x" * 20_000), certificate_request=b"x" * 20_000
        )
        assert (await raw_enrol(authority, server, large)).startswith("RESOURCE_EXHAUSTED")
        medium = wire.EnrolRequest(
            invitation_id=invitation.id, proof=invitation.proof(b"x" * 9_000), certificate_request=b"x" * 9_000
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


@pytest.mark.parametrize("name", ["Authority.fedrep.internal", "*.fedrep.internal", "authority.fedrep.internal."])
def test_no_other_spelling_of_the_authoritys_name_is_signed(name: str, authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="own host name"):
        issue_credentials(authority, tmp_path / "server", Identity("main", Role.SERVER, "demo"), (name,))


def test_the_federation_server_cannot_pose_as_the_authority(authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="own host name"):
        issue_credentials(authority, tmp_path / "x", Identity("main", Role.SERVER, "demo"), (AUTHORITY_NAME,))
    with pytest.raises(InvalidInputError, match="own name"):
        invitation_for(authority, name="authority", role=Role.SERVER)


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


def test_sources_are_networks_so_that_one_host_cannot_be_many() -> None:
    assert source_of("ipv4:192.0.2.7:41234") == "192.0.2.7"
    assert source_of("ipv6:%5B2001:db8::1%5D:1") == source_of("ipv6:%5B2001:db8::ffff%5D:2") == "2001:db8::/64"
    assert source_of("ipv6:[::ffff:192.0.2.7]:1") == "192.0.2.7"
    assert source_of("unix:") == "unix"
