"""A silo's credentials folder: what lies in it, and how it changes without ever holding half a change.

key.pem    private key (0600), made here, never leaves        root.pem         the federation's root, pinned
cert.pem   certificate chain, leaf first                      crl.pem          newest revocation lists seen
next-*.pem a key being replaced (see Credentials.load)        federation.json  addresses learned at enrolment
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedrep.errors import ConflictError, CryptoError, SettingsError
from fedrep_identity.authority import certificate_request
from fedrep_identity.certificates import (
    CERTIFICATE_FILE,
    KEY_FILE,
    NEXT_CERTIFICATE_FILE,
    NEXT_KEY_FILE,
    REVOCATIONS_FILE,
    ROOT_FILE,
    Credentials,
    TrustStore,
    load_chain,
    not_enrolled,
    to_der,
    to_pem,
)
from fedrep_identity.keyfile import private_key_pem
from fedrep_identity.names import Identity
from fedrep_identity.revocation import pem_blocks
from fedrep_identity.revocation_file import known_revocations, merged_revocations
from fedrep_runtime.files import sync_folder, write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_runtime.tls import KeyPair

FEDERATION_FILE = "federation.json"
LOCAL_SERVER = "localhost:8550"


@dataclass(frozen=True)
class FederationAddresses:
    federation: str
    server: str
    enrolment: str
    certificates: str

    @classmethod
    def load(cls, folder: Path) -> FederationAddresses:
        path = folder / FEDERATION_FILE
        try:
            return cls(**parsed(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise not_enrolled(path) from None
        except (ValueError, TypeError):
            raise SettingsError(f"{path} cannot be read. Restore it from a backup or enrol again.") from None

    def save(self, folder: Path) -> None:
        write_atomically(folder / FEDERATION_FILE, (json.dumps(asdict(self), indent=2) + "\n").encode(), 0o644)


def learned_server(folder: Path) -> str:
    """Where the server was said to be at enrolment; an identity that came by file may not know."""
    try:
        return FederationAddresses.load(folder).server or LOCAL_SERVER
    except SettingsError:
        return LOCAL_SERVER


def key_pair_loader(folder: Path) -> Callable[[], KeyPair]:
    """For `server_credentials`: reads the folder at every handshake, so a renewed certificate needs no restart."""
    return lambda: Credentials.load(folder).key_pair


def refuse_if_enrolled(folder: Path, replace: bool) -> None:
    if (folder / CERTIFICATE_FILE).exists() and not replace:
        identity = Credentials.load(folder).identity
        raise ConflictError(
            f"{folder} already holds the certificate of {identity}. Use another --folder, or --replace to give this one "
            "a new key and certificate.",
            reason="ALREADY_ENROLLED",
        )


def prepare_request(folder: Path) -> bytes:
    """A certificate request for a new key. A key left by an interrupted attempt is used again: the authority may have
    answered it already, and an invitation serves one key only."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    path = folder / NEXT_KEY_FILE
    if not path.exists():
        write_atomically(path, private_key_pem(ec.generate_private_key(ec.SECP256R1())))
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{path} is not an ECDSA key. Remove it and try again.", reason="BAD_KEY_FILE")
    return certificate_request(key)


def install(
    folder: Path,
    chain: bytes,
    root: bytes,
    revocations: bytes,
    *,
    addresses: FederationAddresses | None = None,
    expected: Identity | None = None,
) -> Credentials:
    """Check a certificate that came back, then put it in place. Whatever fails leaves the folder as it was."""
    merged = merged_revocations(known_revocations(folder / REVOCATIONS_FILE), revocations, root)
    trust = TrustStore(root)
    trust.update_revocations(merged)
    peer = trust.verify(chain)
    if expected is not None and peer.identity != expected:
        raise CryptoError(
            f"The certificate that came back is for {peer.identity}, expected was {expected}. "
            "Do not use it, and tell the federation's administrators.",
            reason="WRONG_IDENTITY",
        )
    public = load_chain(chain)[0].public_key()
    next_key = folder / NEXT_KEY_FILE
    for path in (next_key, folder / KEY_FILE):
        if _holds(path, public):
            break
    else:
        raise CryptoError(
            f"The certificate that came back is not for the key in {folder}. Install it where its request was made.",
            reason="KEY_MISMATCH",
        )
    write_atomically(folder / ROOT_FILE, root, 0o644)
    write_atomically(folder / REVOCATIONS_FILE, merged, 0o644)
    if addresses is not None:
        addresses.save(folder)
    if path == next_key:
        write_atomically(folder / NEXT_CERTIFICATE_FILE, chain, 0o644)
        promote(folder)
    else:
        write_atomically(folder / CERTIFICATE_FILE, chain, 0o644)
        (folder / NEXT_CERTIFICATE_FILE).unlink(missing_ok=True)  # left by a replacement that was interrupted
    return Credentials.load(folder)


def promote(folder: Path) -> None:
    """Key first: between the two renames the new key matches `next-cert.pem`, which `Credentials.load` tries first."""
    (folder / NEXT_KEY_FILE).replace(folder / KEY_FILE)
    sync_folder(folder)
    (folder / NEXT_CERTIFICATE_FILE).replace(folder / CERTIFICATE_FILE)
    sync_folder(folder)


def finish_installation(folder: Path) -> None:
    """One that was killed at its last step: key and certificate had both come, and were not yet both in place."""
    waiting, next_key = folder / NEXT_CERTIFICATE_FILE, folder / NEXT_KEY_FILE
    if not waiting.exists():
        return
    public = load_chain(waiting.read_bytes())[0].public_key()
    if _holds(next_key, public):
        promote(folder)
    elif not next_key.exists() and _holds(folder / KEY_FILE, public):
        waiting.replace(folder / CERTIFICATE_FILE)
        sync_folder(folder)


def _holds(path: Path, public: object) -> bool:
    return path.exists() and load_pem_private_key(path.read_bytes(), password=None).public_key() == public


def pack_bundle(chain: bytes, root: bytes, revocations: bytes) -> bytes:
    """Everything an air-gapped silo needs, in one PEM file; nothing in it is secret."""
    return chain + root + b"".join(pem_blocks(revocations))


def install_bundle(
    folder: Path, bundle: bytes, root_fingerprint: bytes, addresses: FederationAddresses | None = None
) -> Credentials:
    """`root_fingerprint` comes to the silo by another way than the bundle, for instance by telephone."""
    certificates = load_chain(bundle)
    roots = [certificate for certificate in certificates if certificate.subject == certificate.issuer]
    if len(roots) != 1:
        raise CryptoError(
            f"The file holds {len(roots)} root certificates where one is needed. "
            "Use the file that `fedrep ca sign` wrote, unchanged.",
            reason="BAD_BUNDLE",
        )
    check_root(to_der(roots[0]), root_fingerprint)
    chain = to_pem(certificate for certificate in certificates if certificate is not roots[0])
    intermediates = to_pem(load_chain(chain)[1:]) if chain.count(b"BEGIN CERTIFICATE") > 1 else b""
    revocations = intermediates + b"".join(pem_blocks(bundle))
    return install(folder, chain, to_pem(roots), revocations, addresses=addresses)


def check_root(root_der: bytes, expected_fingerprint: bytes) -> None:
    if not hmac.compare_digest(hashlib.sha256(root_der).digest(), expected_fingerprint):
        raise CryptoError(
            "The certificate authority that answered is not the one this invitation is for: the root's fingerprint "
            "differs. Somebody may be in between; do not go on, and tell the federation's administrators.",
            reason="WRONG_ROOT",
        )


def renewal_time(certificate: x509.Certificate) -> dt.datetime:
    """Two thirds into its life: ten days remain to notice and mend a renewal that fails."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return start + (end - start) * 2 / 3
