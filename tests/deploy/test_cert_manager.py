"""Certificates as cert-manager's CA issuer makes them from the chart's Certificate objects, judged by the federation's rules."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedrep.errors import CryptoError
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import Credentials, Role
from fedrep_identity.keyfile import unseal_key
from tests.deploy.chart import case, one

PASSPHRASE = "a passphrase for tests"
USAGES = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}


def issue(spec: dict[str, Any], authority: CertificateAuthority, folder: Path) -> Credentials:
    """Empty subject, critical names, no more extensions than cert-manager writes; files as the chart mounts them."""
    signer = unseal_key((authority.folder / "authority.key").read_bytes(), PASSPHRASE)
    issuer = x509.load_pem_x509_certificate(authority.root)
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in spec["uris"]]
    names += [x509.DNSName(name) for name in spec.get("dnsNames", [])]
    builder = (
        x509.CertificateBuilder(
            issuer.subject, x509.Name([]), key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(30)
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGES[usage] for usage in spec["usages"] if usage in USAGES]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.KeyUsage(True, False, False, False, False, False, False, False, False), critical=True)
    )
    chain = builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)
    folder.mkdir()
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "cert.pem").write_bytes(chain)
    (folder / "root.pem").write_bytes(authority.root)
    return Credentials.load(folder)


@pytest.mark.parametrize(("component", "role"), [("server", Role.SERVER), ("dashboard", Role.VIEWER)])
def test_a_certificate_of_cert_manager_is_accepted_for_its_role_and_no_other(component: str, role: Role, tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "lungs", PASSPHRASE)
    spec = one(case("cert-manager"), "Certificate", f"fed-fedrep-{component}")["spec"]
    assert (spec["privateKey"]["algorithm"], spec["privateKey"]["size"]) == ("ECDSA", 256)
    credentials = issue(spec, authority, tmp_path / component)
    assert authority.trust_store().verify(credentials.chain, roles=(role,)).identity.role is role
    with pytest.raises(CryptoError):
        authority.trust_store().verify(credentials.chain, roles=(Role.ADMIN,))
