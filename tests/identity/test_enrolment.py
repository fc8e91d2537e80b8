"""Enrolment over real TLS on loopback: who gets in, and as whom."""

from __future__ import annotations

import asyncio
import datetime as dt
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedrep.errors import ConflictError, CryptoError, RefusedError
from fedrep.wire.v1 import enrolment_pb2 as wire
from fedrep_identity.authority import CertificateAuthority, certificate_request
from fedrep_identity.authority_server import AuthorityServer
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.enrolment_client import UnreachableError, enrol, fetch_root, renew
from fedrep_identity.folder import FederationAddresses
from fedrep_identity.invitations import invite
from tests.harness.enrolment_desk import PASSPHRASE, invitation_for, raw_enrol, with_server


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
        request = wire.EnrolRequest(invitation_id=invitation.id, proof=invitation.proof(claimed), certificate_request=claimed)
        assert await raw_enrol(authority, server, request) == "OK"

    with_server(authority, body)
    (issued,) = authority.register.certificates("hospital-a")
    leaf = x509.load_pem_x509_certificate(issued.chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["spiffe://demo/silo/hospital-a"]
    assert leaf.subject.rfc4514_string() == "CN=hospital-a,O=demo"
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


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
    invitation = invitation_for(authority)
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    first = desk.enrol(invitation.id, invitation.proof(request), request)
    assert desk.enrol(invitation.id, invitation.proof(request), request) == first


def test_a_used_token_is_dead_after_revocation_even_for_its_own_key(authority: CertificateAuthority) -> None:
    desk = EnrolmentDesk(authority)
    invitation = invitation_for(authority)
    request = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    desk.enrol(invitation.id, invitation.proof(request), request)
    authority.revoke("hospital-a")
    with pytest.raises(CryptoError, match="not valid"):
        desk.enrol(invitation.id, invitation.proof(request), request)
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


def test_an_authority_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached"):
        fetch_root("127.0.0.1:1", b"0" * 32, timeout=2)


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
        invitation_for(authority)
