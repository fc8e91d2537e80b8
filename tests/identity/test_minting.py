"""An intermediate certifies the roles that the root wrote into its certificate, even when a thief holds its key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.wire.v1 import observer_pb2
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_cli.main import main
from fedrep_identity.authority import CertificateAuthority, certificate_request
from fedrep_identity.authority_name import AUTHORITY_NAME
from fedrep_identity.certificates import Identity, Role, TrustStore, load_chain
from fedrep_identity.keyfile import private_key_pem
from fedrep_identity.minting import parse_roles, roles_of
from fedrep_identity.peer import peer_certificate
from fedrep_identity.register import Hosts
from fedrep_identity.templates import authority_certificate, leaf_certificate, subject_of
from fedrep_runtime.tls import KeyPair, client_channel_credentials, server_credentials
from fedrep_server.calls.interceptor import Presented
from fedrep_silo.trust import FederationTrust

PASSPHRASE = "a passphrase for tests"


@pytest.fixture
def root(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "root", "demo", PASSPHRASE)


def minted(authority: CertificateAuthority, role: Role, *dns: str) -> bytes:
    return minted_pair(authority, role, *dns).chain


def minted_pair(authority: CertificateAuthority, role: Role, *dns: str) -> KeyPair:
    """By whoever holds the key, past all that `sign` would refuse."""
    key = ec.generate_private_key(ec.SECP256R1())
    identity = Identity("thief", role, "demo")
    leaf = leaf_certificate(authority.certificate, authority._key, key.public_key(), identity, 1, Hosts(dns, ()))
    return KeyPair(private_key_pem(key), leaf.public_bytes(Encoding.PEM) + authority.chain)


def refused(trust: TrustStore, chain: bytes) -> str:
    with pytest.raises(CryptoError) as caught:
        trust.verify(chain)
    return caught.value.reason


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.SILO])
def test_an_intermediate_makes_silos_and_nobody_else_by_default(root: CertificateAuthority, tmp_path: Path, role: Role) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    trust = TrustStore(root.root)
    assert trust.verify(minted(online, Role.SILO)).identity.role is Role.SILO
    assert refused(trust, minted(online, role)) == "ROLE_NOT_ALLOWED"
    with pytest.raises(InvalidInputError, match="may certify silo and not"):
        online.sign(certificate_request(ec.generate_private_key(ec.SECP256R1())), Identity("x", role, "demo"))


def test_the_root_may_allow_more_and_nothing_else_is_allowed_then(root: CertificateAuthority, tmp_path: Path) -> None:
    roles = (Role.SERVER, Role.VIEWER)
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE, roles=roles)
    trust = TrustStore(root.root)
    for role in Role:
        if role in roles:
            trust.verify(minted(online, role))
        else:
            assert refused(trust, minted(online, role)) == "ROLE_NOT_ALLOWED"


def test_what_the_root_signs_itself_needs_no_word(root: CertificateAuthority) -> None:
    for role in Role:
        assert TrustStore(root.root).verify(minted(root, role)).identity.role is role


def test_an_intermediate_whose_certificate_says_nothing_is_one_for_silos(root: CertificateAuthority, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = subject_of("demo", "older")
    older = authority_certificate(subject, key, root.certificate.subject, root._key, path_length=0, days=10)
    authority = CertificateAuthority._store(tmp_path / "older", key, PASSPHRASE, older.public_bytes(Encoding.PEM), root.root)
    TrustStore(root.root).verify(minted(authority, Role.SILO))
    assert refused(TrustStore(root.root), minted(authority, Role.ADMIN)) == "ROLE_NOT_ALLOWED"


@pytest.mark.parametrize(("roles", "code"), [((Role.SILO,), "UNAVAILABLE"), ((Role.SERVER,), "UNIMPLEMENTED")])
def test_nobody_connects_to_a_server_that_such_an_intermediate_made_up(
    root: CertificateAuthority, tmp_path: Path, roles: tuple[Role, ...], code: str
) -> None:
    """gRPC's own TLS, as the dashboard and every command use it; a server that gets as far as an answer says UNIMPLEMENTED."""
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE, roles=roles)
    pair = minted_pair(online, Role.SERVER, "localhost")
    fake = grpc.server(ThreadPoolExecutor(1))
    port = fake.add_secure_port("localhost:0", server_credentials(lambda: pair, root.root, require_client=False))
    fake.start()
    try:
        with grpc.secure_channel(f"localhost:{port}", client_channel_credentials(root.root)) as channel:
            stub: Any = ObserverServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListRuns(observer_pb2.ListRunsRequest(), timeout=60)
            assert caught.value.code().name == code
    finally:
        fake.stop(None).wait()


def test_tls_itself_takes_no_certificate_of_such_an_intermediate_for_a_servers(
    root: CertificateAuthority, tmp_path: Path
) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)

    def as_server(name: str) -> None:
        leaf, *above = load_chain(minted(online, Role.SERVER, name))
        store = verification.Store(load_chain(root.root))
        verification.PolicyBuilder().store(store).build_server_verifier(x509.DNSName(name)).verify(leaf, above)

    with pytest.raises(verification.VerificationError):
        as_server("federation.example.org")
    as_server(AUTHORITY_NAME)


def test_server_and_silo_refuse_an_admin_of_such_an_intermediate(root: CertificateAuthority, tmp_path: Path) -> None:
    """A silo believes a run manifest for its admin's sake; the server lets admins steer."""
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    chain = minted(online, Role.ADMIN)
    leaf, above = (c.public_bytes(Encoding.PEM) for c in load_chain(chain))
    shown = {"ssl_tls_version": [b"TLSv1.3"], "x509_pem_cert": [leaf], "x509_pem_cert_chain": [leaf + above]}
    with pytest.raises(CryptoError, match="lets certify silo"):
        peer_certificate(Presented(shown), TrustStore(root.root), [Role.ADMIN])
    with pytest.raises(CryptoError, match="lets certify silo"):
        FederationTrust(TrustStore(root.root)).member(chain, "admin")


def test_the_command_takes_roles_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
    folder, online = str(tmp_path / "root"), str(tmp_path / "online")
    assert main(["ca", "init", "lungs", "--folder", folder]) == 0
    assert main(["ca", "intermediate", online, "--folder", folder, "--roles", "silo,boss"]) == 1
    assert "silo, evaluator, admin, viewer, server" in capsys.readouterr().err
    assert main(["ca", "intermediate", online, "--folder", folder, "--roles", "viewer, server"]) == 0
    assert main(["ca", "issuer-secret", str(tmp_path / "out"), "--folder", online]) == 0
    assert "as any server or viewer" in capsys.readouterr().out
    assert roles_of(load_chain((tmp_path / "out" / "tls.crt").read_bytes())[0]) == set(parse_roles("server,viewer"))
