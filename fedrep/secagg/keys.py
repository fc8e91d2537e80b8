"""Identities that sign, session and mask keys that agree, and what is derived from them.

Primitives come from `cryptography` only: ECDSA P-256 or Ed25519 behind one interface (the certificate decides which),
X25519 (RFC 7748) for session and mask keys, HKDF-SHA256 (RFC 5869) with the full context in `info`.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn, Protocol, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.transcript import Field, digest, encode

Entropy: TypeAlias = Callable[[int], bytes]
KeyKind: TypeAlias = Literal["p256", "ed25519"]

KEY_BYTES = 32


class SecretBytes:
    """Bytes that do not show up in logs, tracebacks or pickles by accident; `reveal` is the one way to read them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = bytes(value)

    def reveal(self) -> bytes:
        return self._value

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretBytes):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    # A hash would make secrets dictionary keys, compared in variable time.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SecretBytes({len(self._value)} bytes hidden)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is never pickled or copied; keep a reference to it, or derive it again")


class VerifyKey(Protocol):
    @property
    def encoded(self) -> bytes:
        """DER SubjectPublicKeyInfo."""

    def verify(self, signature: bytes, message: bytes) -> None:
        """Raises CryptoError unless this key signed the message."""


class SigningKey(Protocol):
    @property
    def verify_key(self) -> VerifyKey: ...

    def sign(self, message: bytes) -> bytes: ...


# RFC 6979 nonces: a weak random generator on a silo cannot give its identity away, and a retry signs identical bytes.
_SHA256 = hashes.SHA256()
_ECDSA = ec.ECDSA(_SHA256, deterministic_signing=True)
_ECDSA_VERIFY = ec.ECDSA(_SHA256)


def _public_der(public: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> bytes:
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True)
class P256VerifyKey:
    encoded: bytes
    _public: ec.EllipticCurvePublicKey = field(repr=False, compare=False)

    def verify(self, signature: bytes, message: bytes) -> None:
        try:
            self._public.verify(signature, message, _ECDSA_VERIFY)
        except InvalidSignature:
            raise CryptoError("the ECDSA signature does not match this message and key") from None


@dataclass(frozen=True)
class Ed25519VerifyKey:
    encoded: bytes
    _public: ed25519.Ed25519PublicKey = field(repr=False, compare=False)

    def verify(self, signature: bytes, message: bytes) -> None:
        try:
            self._public.verify(signature, message)
        except InvalidSignature:
            raise CryptoError("the Ed25519 signature does not match this message and key") from None


@dataclass(frozen=True)
class P256SigningKey:
    verify_key: P256VerifyKey
    _private: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message, _ECDSA)


@dataclass(frozen=True)
class Ed25519SigningKey:
    verify_key: Ed25519VerifyKey
    _private: ed25519.Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def verify_key_from_public(public: object) -> VerifyKey:
    """Wraps a public key object of `cryptography`, for instance `certificate.public_key()`."""
    if isinstance(public, ed25519.Ed25519PublicKey):
        return Ed25519VerifyKey(_public_der(public), public)
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return P256VerifyKey(_public_der(public), public)
    raise CryptoError("identities are ECDSA P-256 or Ed25519 keys, this one is not; ask for a new certificate")


def signing_key_from_private(private: object) -> SigningKey:
    """Wraps a private key object of `cryptography`."""
    if isinstance(private, ed25519.Ed25519PrivateKey):
        public = private.public_key()
        return Ed25519SigningKey(Ed25519VerifyKey(_public_der(public), public), private)
    if isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        curve_public = private.public_key()
        return P256SigningKey(P256VerifyKey(_public_der(curve_public), curve_public), private)
    raise CryptoError("identities are ECDSA P-256 or Ed25519 keys, this private key is not")


def generate_signing_key(kind: KeyKind = "p256") -> SigningKey:
    if kind == "p256":
        return signing_key_from_private(ec.generate_private_key(ec.SECP256R1()))
    if kind == "ed25519":
        return signing_key_from_private(ed25519.Ed25519PrivateKey.generate())
    raise InvalidInputError(f"unknown kind of signing key {kind!r}; use 'p256' or 'ed25519'")


def load_verify_key(der: bytes) -> VerifyKey:
    try:
        public = load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CryptoError("this is not a DER SubjectPublicKeyInfo of a usable public key") from None
    return verify_key_from_public(public)


_FIELD_PRIME = 2**255 - 19
# u-coordinates of the points of order 1, 2, 4 and 8 on Curve25519 and its twist: an exchange with one gives zero.
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _FIELD_PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)


def check_agreement_public(public: bytes) -> None:
    """Raises CryptoError unless these are the canonical bytes of a usable X25519 public key.

    A point has one canonical encoding; the others (top bit set, or not reduced) are refused too, so that one key cannot
    appear under two names and a low-order point cannot hide behind another spelling.
    """
    if len(public) != KEY_BYTES:
        raise CryptoError(f"an X25519 public key has {KEY_BYTES} bytes, this one has {len(public)}")
    u = int.from_bytes(public, "little")
    if u >= _FIELD_PRIME:
        raise CryptoError("the X25519 public key is not in canonical form; its owner must announce a new one")
    if u in _LOW_ORDER:
        raise CryptoError("the X25519 public key is a point of low order: everyone knows the secret it agrees on")


class AgreementKey:
    """An X25519 key pair. Agreed secrets are remembered per peer: sealing and opening shares need the same one."""

    __slots__ = ("_agreed", "_private", "_secret", "public")

    def __init__(self, secret: SecretBytes) -> None:
        if len(secret) != KEY_BYTES:
            raise CryptoError(f"an X25519 secret has {KEY_BYTES} bytes, this one has {len(secret)}")
        self._secret = secret
        self._private = X25519PrivateKey.from_private_bytes(secret.reveal())
        self._agreed: dict[bytes, SecretBytes] = {}
        self.public: bytes = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, entropy: Entropy = secrets.token_bytes) -> AgreementKey:
        return cls(SecretBytes(entropy(KEY_BYTES)))

    @classmethod
    def from_secret(cls, secret: bytes | SecretBytes) -> AgreementKey:
        return cls(secret if isinstance(secret, SecretBytes) else SecretBytes(secret))

    def secret(self) -> SecretBytes:
        return self._secret

    def exchange(self, peer_public: bytes) -> SecretBytes:
        agreed = self._agreed.get(peer_public)
        if agreed is None:
            check_agreement_public(peer_public)
            try:
                agreed = SecretBytes(self._private.exchange(X25519PublicKey.from_public_bytes(peer_public)))
            except ValueError:  # the library's own check for an all-zero result
                raise CryptoError("the X25519 public key agrees on no secret; its owner must announce another") from None
            self._agreed[peer_public] = agreed
        return agreed

    def __repr__(self) -> str:
        return f"AgreementKey(public={self.public.hex()})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a private key is never pickled or copied; keep a reference to it")


def derive(secret: SecretBytes, label: str, *context: Field) -> bytes:
    """HKDF-SHA256 (RFC 5869, no salt): 32 bytes that depend on the secret, on what they are for, and on the whole context.

    One block is all of its output, so its two steps are one HMAC each; hundreds are derived in a round.
    """
    extracted = hmac.digest(bytes(32), secret.reveal(), "sha256")
    return hmac.digest(extracted, encode(label, *context) + b"\1", "sha256")


def expand(secret: SecretBytes, label: str, *context: Field) -> bytes:
    """HKDF-Expand alone, one block: for a secret that is a uniform key already."""
    return expand_encoded(secret, encode(label, *context))


def expand_encoded(secret: SecretBytes, info: bytes) -> bytes:
    """The same for a context that is encoded already, since most of it is the same for all holders of a round."""
    return hmac.digest(secret.reveal(), info + b"\x01", "sha256")


def commitment(secret: bytes) -> bytes:
    """Binding always; hiding because what is committed to (seeds, shares) has 256 bits of entropy."""
    return digest("commitment", secret)
