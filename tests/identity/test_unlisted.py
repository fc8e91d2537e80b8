"""An intermediate that signs where nobody makes revocation lists, under servers that require lists."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedrep.errors import CryptoError
from fedrep_cli.main import main
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import Identity, Role, TrustStore, load_chain
from fedrep_identity.minting import unlisted_life
from fedrep_identity.register import Hosts
from fedrep_identity.templates import leaf_certificate

PASSPHRASE = "a passphrase for tests"


@pytest.fixture
def root(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "root", "demo", PASSPHRASE)


def signed(authority: CertificateAuthority, days: float) -> bytes:
    """As cert-manager does: with the authority's key, and without its book."""
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    leaf = leaf_certificate(authority.certificate, authority._key, public, Identity("a", Role.SILO, "demo"), days, Hosts())
    return leaf.public_bytes(Encoding.PEM) + authority.chain


def strict(root: CertificateAuthority, life: dt.timedelta | None = None) -> TrustStore:
    trust = TrustStore(root.root, needs_lists=True)
    trust.update_revocations(root.publish_revocations(life))
    return trust


def refused(trust: TrustStore, chain: bytes, now: dt.datetime | None = None) -> str:
    with pytest.raises(CryptoError) as caught:
        trust.verify(chain, now)
    return caught.value.reason


def test_its_certificates_are_believed_without_a_list_of_its_own(root: CertificateAuthority, tmp_path: Path) -> None:
    cluster = CertificateAuthority.create_intermediate(tmp_path / "cluster", root, PASSPHRASE, unlisted_days=30)
    assert strict(root).verify(signed(cluster, 30)).identity.name == "a"


def test_one_that_should_make_lists_gets_nobody_in_without_them(root: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    with pytest.raises(CryptoError, match="--unlisted-days") as caught:
        strict(root).verify(signed(online, 30))
    assert caught.value.reason == "NO_REVOCATION_LIST"


def test_a_certificate_that_lives_longer_than_the_root_wrote_needs_a_list(root: CertificateAuthority, tmp_path: Path) -> None:
    cluster = CertificateAuthority.create_intermediate(tmp_path / "cluster", root, PASSPHRASE, unlisted_days=30)
    chain = signed(cluster, 31)
    assert refused(strict(root), chain) == "NO_REVOCATION_LIST"
    TrustStore(root.root).verify(chain)  # where no lists are required


def test_the_roots_own_list_is_needed_and_ends_the_intermediate(root: CertificateAuthority, tmp_path: Path) -> None:
    cluster = CertificateAuthority.create_intermediate(tmp_path / "cluster", root, PASSPHRASE, unlisted_days=30)
    chain = signed(cluster, 30)
    assert refused(TrustStore(root.root, needs_lists=True), chain) == "NO_REVOCATION_LIST"
    trust = strict(root, dt.timedelta(days=7))
    (known,) = trust.revoked.lists.values()
    assert refused(trust, chain, known.next_update + dt.timedelta(seconds=1)) == "NO_REVOCATION_LIST"
    (name,) = {issued.name for issued in root.register.certificates()}
    root.revoke(name)
    trust.update_revocations(root.publish_revocations())
    assert refused(trust, chain) == "CERTIFICATE_REVOKED"


def test_an_intermediate_cannot_excuse_itself(root: CertificateAuthority, tmp_path: Path) -> None:
    """What counts stands in the certificate that the root signed; what the leaf says of itself does not."""
    online = CertificateAuthority.create_intermediate(tmp_path / "online", root, PASSPHRASE)
    excused = CertificateAuthority.create_intermediate(tmp_path / "excused", root, PASSPHRASE, unlisted_days=30)
    leaf = load_chain(signed(online, 1))[0].public_bytes(Encoding.PEM)
    assert refused(strict(root), leaf + excused.chain + online.chain) == "NO_REVOCATION_LIST"


def test_the_command_writes_it_and_the_issuers_secret_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
    monkeypatch.chdir(tmp_path)
    main(["ca", "init", "demo", "--folder", "root"])
    for name, more in (("cluster", ["--unlisted-days", "30"]), ("plain", [])):
        main(["ca", "intermediate", name, "--folder", "root", "--roles", "server,silo", *more])
    capsys.readouterr()
    main(["ca", "issuer-secret", "secret", "--folder", "cluster", "--json"])
    assert json.loads(capsys.readouterr().out)["unlisted_days"] == 30
    assert unlisted_life(load_chain(Path("secret/tls.crt").read_bytes())[0]) == dt.timedelta(days=30)
    main(["ca", "issuer-secret", "other", "--folder", "plain"])
    assert "--unlisted-days" in capsys.readouterr().out
