"""Shamir's secret sharing (CACM 1979) of 32-byte secrets, with plain Python integers.

The field is that of the smallest prime above 2^256, so that every 32-byte string is a secret of its own, without any
reduction. An element takes 33 bytes, big-endian. Holders are the points 1, 2, ...; the secret is the value at 0.

Python's integers do not compute in constant time. Dealer and server each run this once per secret on a machine of their own,
out of reach of anyone who could measure it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from functools import lru_cache

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.keys import Entropy

PRIME = 2**256 + 297
SECRET_BYTES = 32
ELEMENT_BYTES = 33
MAX_HOLDERS = 1023  # the field would take any number; what a silo computes grows with its square

# 384 random bits reduced modulo a 257-bit prime are uniform up to 2^-127.
_COEFFICIENT_BYTES = 48


def split(secret: bytes, threshold: int, holders: int, entropy: Entropy = secrets.token_bytes) -> list[bytes]:
    """One share for each of the points 1..holders; any `threshold` of them give the secret, fewer say nothing."""
    if len(secret) != SECRET_BYTES:
        raise InvalidInputError(f"a shared secret has {SECRET_BYTES} bytes, this one has {len(secret)}")
    if not 1 <= threshold <= holders <= MAX_HOLDERS:
        raise InvalidInputError(
            f"cannot share with threshold {threshold} among {holders} holders; "
            f"it takes 1 <= threshold <= holders <= {MAX_HOLDERS}"
        )
    drawn = entropy(_COEFFICIENT_BYTES * (threshold - 1))
    if len(drawn) != _COEFFICIENT_BYTES * (threshold - 1):
        raise InvalidInputError("the entropy source gave too few bytes; sharing with them would leak the secret")
    coefficients = [
        int.from_bytes(drawn[start : start + _COEFFICIENT_BYTES], "big") % PRIME
        for start in range(0, len(drawn), _COEFFICIENT_BYTES)
    ]
    constant = int.from_bytes(secret, "big")
    shares = []
    for point in range(1, holders + 1):
        # Points are small, so a step of Horner's rule adds a byte or two: reducing once at the end is the cheaper way.
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * point
        shares.append(((value + constant) % PRIME).to_bytes(ELEMENT_BYTES, "big"))
    return shares


@lru_cache(maxsize=64)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's basis polynomials at 0. A server opens many secrets with the shares of the same holders."""
    product = math.prod(points)
    weights = []
    for point in points:
        denominator = point * math.prod(other - point for other in points if other != point)
        weights.append(product * pow(denominator, -1, PRIME) % PRIME)
    return tuple(weights)


def _element(point: int, share: bytes) -> int:
    value = int.from_bytes(share, "big")
    if len(share) != ELEMENT_BYTES or value >= PRIME:
        raise CryptoError(f"the share of holder {point} is not a field element of {ELEMENT_BYTES} bytes")
    return value


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the `threshold` shares with the lowest points; a wrong share among them gives a wrong secret."""
    if threshold < 1:
        raise InvalidInputError(f"a threshold is at least 1, not {threshold}")
    if len(shares) < threshold:
        raise CryptoError(f"{threshold} shares are needed to rebuild the secret, only {len(shares)} are here")
    points = tuple(sorted(shares)[:threshold])
    if points[0] < 1 or points[-1] > MAX_HOLDERS:
        raise CryptoError(f"shares belong to the points 1..{MAX_HOLDERS}, not to {points[0]}..{points[-1]}")
    total = sum(weight * _element(point, shares[point]) for point, weight in zip(points, _weights_at_zero(points), strict=True))
    value = total % PRIME
    if value >> (8 * SECRET_BYTES):
        raise CryptoError("the shares rebuild to a value that is no 32-byte secret: at least one of them is wrong")
    return value.to_bytes(SECRET_BYTES, "big")
