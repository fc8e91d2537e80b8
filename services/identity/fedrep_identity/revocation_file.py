"""crl.pem, where an authority's answer is kept over a restart: the newest list of every authority, never fewer than before.

The file may hold more than the authority that is asked knows or likes to say: when the machine of an intermediate was stolen, the
root's list that revokes it was brought by hand, and an answer of the stolen one must not take its place.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from fedrep.errors import CryptoError
from fedrep_identity.certificates import LIST_NOT_YET_VALID, TrustStore, load_chain
from fedrep_runtime.files import write_atomically


def keep_revocations(path: Path, bundle: bytes, root: bytes) -> None:
    """CryptoError if the root does not vouch for the bundle; the file is then as it was."""
    before = known_revocations(path)
    merged = merged_revocations(before, bundle, root)
    if merged != before:
        write_atomically(path, merged, 0o644)


def known_revocations(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def merged_revocations(before: bytes, bundle: bytes, root: bytes) -> bytes:
    """Of both bundles the newest list of each authority, with the intermediates that signed them."""
    trust = TrustStore(root)
    try:
        trust.update_revocations(before)
    except CryptoError as error:
        if error.reason != LIST_NOT_YET_VALID:  # of another federation, or no longer whole
            before = b""
    trust.update_revocations(bundle)
    both = (load_chain(each) for each in (before, bundle) if b"BEGIN CERTIFICATE" in each)
    signers = {certificate.public_bytes(Encoding.PEM): None for chain in both for certificate in chain}
    return b"".join((*signers, *(known.pem for known in trust.revoked.lists.values())))
