"""What a trust store accepts, and the sentence for each way to fail."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrep.errors import ConflictError, CryptoError, FedrepError, InvalidInputError, NotFoundError, SettingsError
from fedrep_identity.authority import CertificateAuthority, certificate_request, issue_credentials, public_key_of
from fedrep_identity.certificates import Credentials, Identity, Role, TrustStore, WrongRoleError, load_chain
from fedrep_identity.folder import install_bundle, pack_bundle, prepare_request
from fedrep_identity.invitations import Invitation
from fedrep_identity.keyfile import seal_key, unseal_key
from fedrep_identity.revocation import parse_revocations
from fedrep_identity.roster import load_pinned_roster, roster_lines
from fedrep_server.calls.interceptor import Presented

PASSPHRASE = "correct horse battery staple"
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca") / "root", "demo", PASSPHRASE)


def silo(authority: CertificateAuthority, folder: Path, name: str, role: Role = Role.SILO) -> Credentials:
    return issue_credentials(authority, folder, Identity(name, role, authority.federation))


def reason(trust: TrustStore, certificate: bytes, now: dt.datetime | None = None) -> str:
    with pytest.raises(CryptoError) as refused:
        trust.verify(certificate, now)
    return f"{refused.value.reason}: {refused.value}"


def test_a_good_certificate_says_who_it_is_and_verifies_signatures(root: CertificateAuthority, tmp_path: Path) -> None:
    own = silo(root, tmp_path, "good")
    for form in (own.chain, own.certificate.public_bytes(Encoding.DER)):
        peer = TrustStore(root.root).verify(form)
        assert peer.identity == Identity("good", Role.SILO, "demo")
        assert peer.fingerprint == own.fingerprint
        peer.verify_key.verify(own.signing_key.sign(b"message"), b"message")
        with pytest.raises(CryptoError):
            peer.verify_key.verify(own.signing_key.sign(b"message"), b"another")


def test_expired_and_not_yet_valid_name_both_clocks(root: CertificateAuthority, tmp_path: Path) -> None:
    own = silo(root, tmp_path, "dated")
    trust = TrustStore(root.root)
    end = own.certificate.not_valid_after_utc
    assert trust.verify(own.chain, end + dt.timedelta(minutes=4)).identity.name == "dated"  # within the tolerated skew
    late = reason(trust, own.chain, end + dt.timedelta(minutes=6))
    assert late.startswith("CERTIFICATE_EXPIRED: The certificate of silo dated expired on")
    assert "the clock here says" in late
    early = reason(trust, own.chain, own.certificate.not_valid_before_utc - dt.timedelta(minutes=6))
    assert early.startswith("CERTIFICATE_NOT_YET_VALID")
    assert "clocks is wrong" in early


def test_a_certificate_that_has_ended_still_says_whose_signature_it_was_and_a_revoked_one_does_not(
    root: CertificateAuthority, tmp_path: Path
) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE, years=1)
    late = NOW + dt.timedelta(days=800)
    for number, authority in enumerate((root, online)):
        own = silo(authority, tmp_path / f"silo-{number}", f"dated-{number}")
        for remembered in (False, True):
            trust = TrustStore(root.root)
            if remembered:
                trust.verify(own.chain)
            assert trust.verify(own.chain, late, ended=True).identity.name == f"dated-{number}"
            with pytest.raises(CryptoError):
                trust.verify(own.chain, late)
        authority.revoke(f"dated-{number}")
        trust.update_revocations((authority.folder / "crl.pem").read_bytes())
        with pytest.raises(CryptoError, match="was revoked"):
            trust.verify(own.chain, late, ended=True)


def test_what_is_remembered_of_a_certificate_does_not_grow_with_what_is_shown_behind_it(
    root: CertificateAuthority, tmp_path: Path
) -> None:
    """A client may show a hundred kilobytes of others' certificates, and others on every connection."""
    own, trust = silo(root, tmp_path / "own", "own"), TrustStore(root.root)
    shown = [own.chain + silo(root, tmp_path / str(n), f"other-{n}").chain * 20 for n in range(3)]
    assert {trust.verify(chain).identity.name for chain in shown} == {"own"}
    assert {len(key) for key in trust._proven} == {32}
    assert max(len(known.peer.chain) for known in trust._proven.values()) == len(own.chain)
    properties = [{"x509_pem_cert": [own.chain], "x509_pem_cert_chain": [chain]} for chain in shown]
    assert {len(Presented(one).shown) for one in properties} == {32}
    assert len({Presented(one).shown for one in properties}) == 3


def test_an_expired_intermediate_no_longer_vouches_even_for_a_remembered_chain(
    root: CertificateAuthority, tmp_path: Path
) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE, years=1)
    own = silo(online, tmp_path / "silo", "under-intermediate")
    trust = TrustStore(root.root)
    trust.verify(own.chain)
    # Pretend the leaf outlives its authority; `sign` never issues such a one.
    trust._check_dates = lambda *_: None  # type: ignore[method-assign]
    assert "itself expired" in reason(trust, own.chain, NOW + dt.timedelta(days=400))


def test_the_same_names_under_another_root_are_refused(root: CertificateAuthority, tmp_path: Path) -> None:
    other = CertificateAuthority.create(tmp_path / "other", "demo", PASSPHRASE)
    stranger = silo(other, tmp_path / "silo", "good")
    assert reason(TrustStore(root.root), stranger.chain).startswith("WRONG_AUTHORITY")
    assert reason(TrustStore(root.root), stranger.chain + root.root).startswith("WRONG_AUTHORITY")


def test_a_self_signed_certificate_is_refused(root: CertificateAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "good")])
    alternative = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://demo/admin/good")])
    forged = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    assert reason(TrustStore(root.root), forged.public_bytes(Encoding.PEM)).startswith("WRONG_AUTHORITY")


def test_a_silo_cannot_act_as_an_authority(root: CertificateAuthority, tmp_path: Path) -> None:
    """A leaf that signs another leaf yields nothing: it is no authority, whatever it signs."""
    mole = silo(root, tmp_path / "mole", "mole")
    key = ec.generate_private_key(ec.SECP256R1())
    alternative = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://demo/admin/boss")])
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "boss")]))
        .issuer_name(mole.certificate.subject)
        .public_key(key.public_key())
        .serial_number(9)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(mole.private_key.public_key()), critical=False)
        .sign(mole.private_key, hashes.SHA256())
    )
    presented = forged.public_bytes(Encoding.PEM) + mole.chain
    assert reason(TrustStore(root.root), presented).startswith("WRONG_AUTHORITY")


def test_the_wrong_role_is_said_with_the_right_ones(root: CertificateAuthority, tmp_path: Path) -> None:
    viewer = silo(root, tmp_path, "watcher", Role.VIEWER)
    with pytest.raises(WrongRoleError, match="watcher holds a certificate of role viewer, but this call is for: silo"):
        TrustStore(root.root).verify(viewer.chain, roles=[Role.SILO])


def test_revocation_is_seen_through_a_file_and_cannot_be_rolled_back(root: CertificateAuthority, tmp_path: Path) -> None:
    own, other = silo(root, tmp_path / "a", "revoked-a"), silo(root, tmp_path / "b", "kept-b")
    before = (root.folder / "crl.pem").read_bytes()
    trust = own.trust_store(before)
    trust.verify(own.chain)
    assert root.revoke("revoked-a") == 1
    trust.update_revocations((root.folder / "crl.pem").read_bytes())
    assert "was revoked on" in reason(trust, own.chain)
    assert trust.verify(other.chain).identity.name == "kept-b"
    trust.update_revocations(before)  # whoever carries the list cannot bring the old one back
    assert reason(trust, own.chain).startswith("CERTIFICATE_REVOKED")
    with pytest.raises(NotFoundError, match="nobody-here"):
        root.revoke("nobody-here")


def test_a_revocation_list_of_another_authority_or_with_a_changed_byte_is_refused(
    root: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "other", "demo", PASSPHRASE)
    trust = TrustStore(root.root)
    with pytest.raises(CryptoError, match="not signed by this federation"):
        trust.update_revocations((other.folder / "crl.pem").read_bytes())
    own = silo(root, tmp_path / "silo", "crl-signer")
    forged = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(own.certificate.subject)
        .last_update(NOW)
        .next_update(NOW + dt.timedelta(days=1))
        .add_extension(x509.CRLNumber(10_000), critical=False)
        .sign(own.private_key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    with pytest.raises(CryptoError, match="did not make an authority"):
        trust.update_revocations(own.chain + forged)
    assert len(trust.revoked.lists) == 0


def test_the_root_can_revoke_an_intermediate_and_all_under_it(root: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    own = silo(online, tmp_path / "silo", "below")
    trust = own.trust_store((online.folder / "crl.pem").read_bytes())
    trust.verify(own.chain)
    name = str(online.certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    root.revoke(name)
    online.take_upper_revocations((root.folder / "crl.pem").read_bytes())
    trust.update_revocations((online.folder / "crl.pem").read_bytes())
    assert reason(trust, own.chain).startswith("CERTIFICATE_REVOKED")


def test_an_intermediate_cannot_make_further_authorities(root: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    with pytest.raises(InvalidInputError, match="itself an intermediate"):
        CertificateAuthority.create_intermediate(tmp_path / "deeper", online, PASSPHRASE)


def test_only_servers_get_host_names_and_server_authentication(root: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="Only a server has host names"):
        issue_credentials(root, tmp_path / "x", Identity("sly", Role.SILO, "demo"), ("server.demo",))
    server = issue_credentials(root, tmp_path / "s", Identity("main", Role.SERVER, "demo"), ("server.demo",), ("192.0.2.1",))
    usage = server.certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.SERVER_AUTH in usage


def test_a_name_cannot_hold_two_roles_at_once(root: CertificateAuthority, tmp_path: Path) -> None:
    silo(root, tmp_path / "a", "two-faced")
    with pytest.raises(ConflictError, match="already holds a valid certificate of role silo"):
        silo(root, tmp_path / "b", "two-faced", Role.ADMIN)
    root.revoke("two-faced")
    assert silo(root, tmp_path / "b", "two-faced", Role.ADMIN).identity.role is Role.ADMIN


def test_the_authority_key_is_sealed_and_a_wrong_passphrase_is_one_sentence(root: CertificateAuthority, tmp_path: Path) -> None:
    sealed = (root.folder / "authority.key").read_bytes()
    assert b"ENCRYPTED PRIVATE KEY" in sealed
    with pytest.raises(CryptoError, match="does not open"):
        CertificateAuthority.open(root.folder, "wrong passphrase here")
    assert CertificateAuthority.open(root.folder, PASSPHRASE).federation == "demo"
    with pytest.raises(SettingsError, match="at least 12 characters"):
        CertificateAuthority.create(tmp_path / "short", "demo", "short")
    assert not (tmp_path / "short").exists()
    with pytest.raises(FedrepError, match="already holds a certificate authority"):
        CertificateAuthority.create(root.folder, "demo", PASSPHRASE)
    key = ec.generate_private_key(ec.SECP256R1())
    assert unseal_key(seal_key(key, PASSPHRASE), PASSPHRASE).private_numbers() == key.private_numbers()


def test_the_air_gapped_way_needs_files_and_a_spoken_fingerprint(root: CertificateAuthority, tmp_path: Path) -> None:
    folder = tmp_path / "silo"
    chain = root.sign(prepare_request(folder), Identity("far-away", Role.SILO, "demo"))
    bundle = pack_bundle(chain, root.root, (root.folder / "crl.pem").read_bytes())
    with pytest.raises(CryptoError, match="fingerprint differs"):
        install_bundle(folder, bundle, b"\0" * 32)
    assert not (folder / "cert.pem").exists()
    own = install_bundle(folder, bundle, TrustStore(root.root).root_fingerprint)
    assert own.identity.name == "far-away"
    with pytest.raises(CryptoError, match="not for the key"):
        install_bundle(tmp_path / "elsewhere", bundle, TrustStore(root.root).root_fingerprint)


def test_the_air_gapped_way_works_under_an_intermediate(root: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    folder = tmp_path / "silo"
    chain = online.sign(prepare_request(folder), Identity("far-below", Role.SILO, "demo"))
    bundle = pack_bundle(chain, online.root, (online.folder / "crl.pem").read_bytes())
    assert install_bundle(folder, bundle, TrustStore(root.root).root_fingerprint).identity.name == "far-below"


def test_a_pinned_roster_round_trips_and_says_what_is_wrong_with_it(root: CertificateAuthority, tmp_path: Path) -> None:
    own = silo(root, tmp_path / "silo", "pinned")
    admin = silo(root, tmp_path / "admin", "not-a-silo", Role.ADMIN)
    path = tmp_path / "roster.txt"
    path.write_text(roster_lines(root.register.certificates(), NOW))
    pins = load_pinned_roster(path)
    assert own.fingerprint in pins
    assert admin.fingerprint not in pins
    for text, complaint in (("\nabc # pinned\n", "Line 2 .* 64 hex digits"), ("# nobody\n", "is empty")):
        path.write_text(text)
        with pytest.raises(SettingsError, match=complaint):
            load_pinned_roster(path)


@pytest.mark.parametrize("name", ["", "Hospital", "a/b", "a b", "-a", "a-", "x" * 64, "ä", "a\n", "..", "a\x00b"])
def test_names_that_could_confuse_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="lower-case"):
        Identity(name, Role.SILO, "demo")


@pytest.mark.parametrize(
    "uri",
    ["spiffe://demo/silo", "spiffe://demo/silo/a/b", "http://demo/silo/a", "spiffe://demo/root/a", "spiffe:///silo/a", ""],
)
def test_identities_that_are_not_of_our_form_are_refused(uri: str) -> None:
    with pytest.raises(CryptoError, match="not spiffe://federation/role/name"):
        Identity.from_uri(uri)


@given(st.binary(max_size=400))
@settings(
    max_examples=int(os.environ.get("FEDREP_FUZZ_EXAMPLES", "150")),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_bytes_from_a_stranger_raise_anything_but_our_errors(root: CertificateAuthority, data: bytes) -> None:
    """Every decoder that a peer can reach: certificates, requests, revocation lists, tokens."""
    trust = TrustStore(root.root)
    pem = b"-----BEGIN CERTIFICATE-----\n" + data + b"\n-----END CERTIFICATE-----\n"
    crl = b"-----BEGIN X509 CRL-----\n" + data + b"\n-----END X509 CRL-----\n"
    for attempt in (
        lambda: load_chain(data),
        lambda: trust.verify(pem),
        lambda: public_key_of(data),
        lambda: parse_revocations(crl, [trust.root]),
        lambda: trust.update_revocations(pem + crl),
        lambda: Invitation.from_token(data.decode("latin-1")),
    ):
        with contextlib.suppress(FedrepError):
            attempt()


def test_no_changed_byte_makes_another_certificate_or_request(root: CertificateAuthority) -> None:
    """Every byte of both, changed in several ways: refused with an error of ours, whatever the parser made of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.load_pem_x509_csr(certificate_request(key)).public_bytes(Encoding.DER)
    leaf = load_chain(root.sign(request, Identity("fuzzed", Role.SILO, "demo")))[0].public_bytes(Encoding.DER)
    trust = TrustStore(root.root)
    genuine, accepted = trust.verify(leaf), 0
    for position, change in itertools.product(range(len(leaf)), (0x01, 0x03, 0x23, 0x80, 0xFF)):
        # DER leaves a little freedom in how a signature is written (the count of unused bits); what it says stays.
        with contextlib.suppress(FedrepError):
            peer = trust.verify(_changed(leaf, position, change))
            accepted += 1
            assert (peer.identity, peer.fingerprint) == (genuine.identity, genuine.fingerprint)
            assert (peer.not_before, peer.not_after) == (genuine.not_before, genuine.not_after)
            assert load_chain(peer.chain)[0].serial_number == load_chain(leaf)[0].serial_number
    assert accepted <= 2
    for position, change in itertools.product(range(len(request)), (0x01, 0x03, 0x23, 0x80, 0xFF)):
        with contextlib.suppress(FedrepError):
            assert public_key_of(_changed(request, position, change)) == key.public_key()


def _changed(data: bytes, position: int, change: int) -> bytes:
    copy = bytearray(data)
    copy[position] ^= change
    return bytes(copy)
