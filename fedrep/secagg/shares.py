"""Shares on their way from dealer to holder, sealed so that the relaying server can neither read nor redirect them.

AES-256-GCM under a key that belongs to one (context, dealer, holder) only. A silo seals one plaintext under it per
round, so the nonce can be zero. Dealer and holder are ordered in key and AAD: a ciphertext sent back to its dealer does
not open.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.keys import SecretBytes, expand_encoded
from fedrep.secagg.shamir import ELEMENT_BYTES
from fedrep.secagg.transcript import encode_context, encode_text

SEALED_BYTES = 2 * ELEMENT_BYTES + 16  # two shares and the tag

_NONCE = bytes(12)


def _cipher(shared: SecretBytes, context: bytes) -> AESGCM:
    return AESGCM(expand_encoded(shared, encode_text("share") + context))


def _context(c1: bytes, dealer: str, holder: str) -> bytes:
    return encode_context(c1) + encode_text(dealer) + encode_text(holder)


def seal_share(shared: SecretBytes, c1: bytes, dealer: str, holder: str, seed_share: bytes, key_share: bytes) -> bytes:
    """Encrypts, as the dealer, one share of the self seed and one of the mask key for the holder.

    `shared` is what the two share in this round.
    """
    if len(seed_share) != ELEMENT_BYTES or len(key_share) != ELEMENT_BYTES:
        raise InvalidInputError(f"a share has {ELEMENT_BYTES} bytes, these have {len(seed_share)} and {len(key_share)}")
    context = _context(c1, dealer, holder)
    return _cipher(shared, context).encrypt(_NONCE, seed_share + key_share, context)


def open_share(shared: SecretBytes, c1: bytes, dealer: str, holder: str, ciphertext: bytes) -> tuple[bytes, bytes]:
    """Decrypts, as the holder, what the dealer sealed: (share of the self seed, share of the mask key)."""
    if len(ciphertext) != SEALED_BYTES:
        raise CryptoError(f"a sealed share has {SEALED_BYTES} bytes, the one of {dealer!r} has {len(ciphertext)}")
    try:
        context = _context(c1, dealer, holder)
        plaintext = _cipher(shared, context).decrypt(_NONCE, ciphertext, context)
    except InvalidTag:
        raise CryptoError(f"the share {dealer!r} dealt to {holder!r} does not open: wrong key, round or name") from None
    return plaintext[:ELEMENT_BYTES], plaintext[ELEMENT_BYTES:]
