"""Private keys on disk: a silo's own in plain PKCS #8 (mode 0600), an authority's sealed with a passphrase.

The passphrase goes through scrypt (RFC 7914) before PKCS #8 encryption, whose own key derivation is too quick to guess
against. The scrypt salt stands in front of the PEM block, where PEM readers skip it.
"""

from __future__ import annotations

import secrets

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedrep.errors import CryptoError, SettingsError

SHORTEST_PASSPHRASE = 12
_SCRYPT_COST = 2**15  # 32 MiB and some tens of milliseconds for each guess
_LABEL = b"scrypt-32768-8-1 "


def private_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def seal_key(key: ec.EllipticCurvePrivateKey, passphrase: str) -> bytes:
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise SettingsError(
            f"The passphrase of a certificate authority needs at least {SHORTEST_PASSPHRASE} characters; "
            "whoever guesses it can enter the federation as anybody. Four or five random words do well.",
            reason="WEAK_PASSPHRASE",
        )
    salt = secrets.token_bytes(16)
    encryption = BestAvailableEncryption(_stretched(passphrase, salt))
    return _LABEL + salt.hex().encode() + b"\n" + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def unseal_key(sealed: bytes, passphrase: str) -> ec.EllipticCurvePrivateKey:
    first, _, pem = sealed.partition(b"\n")
    try:
        salt = bytes.fromhex(first.removeprefix(_LABEL).decode())
        key = load_pem_private_key(pem, _stretched(passphrase, salt))
    except (ValueError, TypeError, UnicodeDecodeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CryptoError(
            "The passphrase does not open the authority's key. Check the passphrase; if it is right, the key file is "
            "damaged: restore it from a backup.",
            reason="WRONG_PASSPHRASE",
        )
    return key


def _stretched(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_SCRYPT_COST, r=8, p=1).derive(passphrase.encode()).hex().encode()
