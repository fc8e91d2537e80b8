"""Shamir's secret sharing (CACM 1979) of 32-byte secrets, with plain Python integers.

The field is that of the smallest prime above 2^256, so that every 32-byte string is a secret of its own, without any
reduction. An element takes 33 bytes, big-endian. Holders are the points 1, 2, ...; the secret is the value at 0.

Python's integers do not compute in constant time. Dealer and server each run this once per secret on a machine of their own,
out of reach of anyone who could measure it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.keys import Entropy

PRIME = 2**256 + 297
SECRET_BYTES = 32
ELEMENT_BYTES = 33
MAX_HOLDERS = 1023  # the field would take any number; what a silo computes grows with its square

# 384 random bits reduced modulo a 257-bit prime are uniform up to 2^-127.
_COEFFICIENT_BYTES = 48
_SHORTENED = 8  # steps: shortening the differences costs about as much as a step


def split(secret: bytes, threshold: int, holders: int, entropy: Entropy = secrets.token_bytes) -> list[bytes]:
    """One share for each of the points 1..holders; any `threshold` of them give the secret, fewer say nothing."""
    return split_together((secret,), threshold, holders, entropy)[0]


def split_together(
    shared: Sequence[bytes], threshold: int, holders: int, entropy: Entropy = secrets.token_bytes
) -> list[list[bytes]]:
    """`split` of several secrets for the same holders, each with a polynomial of its own.

    Drawn are the polynomial's differences at 0, of first order and up: its coefficients in Newton's form, uniform exactly when
    those of the powers are. From there additions alone lead from point to point: P(x + 1) = P(x) + P'(x) in each order. One
    integer holds them all, in slots wide enough to be reduced only at the end, so that a step is a shift and an addition.
    """
    _check_sharing(shared, threshold, holders)
    drawn = entropy(_COEFFICIENT_BYTES * (threshold - 1) * len(shared))
    if len(drawn) != _COEFFICIENT_BYTES * (threshold - 1) * len(shared):
        raise InvalidInputError("the entropy source gave too few bytes; sharing with them would leak the secret")
    slot = (PRIME.bit_length() + holders) // 8 + 1  # a step at most doubles
    orders = [secret[::-1].ljust(slot, b"\0") for secret in shared]
    for start in range(0, len(drawn), _COEFFICIENT_BYTES):
        coefficient = int.from_bytes(drawn[start : start + _COEFFICIENT_BYTES], "big") % PRIME
        orders.append(coefficient.to_bytes(slot, "little"))
    differences, width = int.from_bytes(b"".join(orders), "little"), len(shared) * slot
    lowest = (1 << 8 * width) - 1
    values = []
    for left in reversed(range(holders)):
        differences += differences >> 8 * width
        values.append((differences & lowest).to_bytes(width, "little"))
        if left < threshold and left % _SHORTENED == 0:
            differences &= (1 << 8 * width * (left + 1)) - 1  # what is of a higher order than points are left reaches none
    return [[_share(value[start : start + slot]) for value in values] for start in range(0, width, slot)]


def _check_sharing(shared: Sequence[bytes], threshold: int, holders: int) -> None:
    for secret in shared:
        if len(secret) != SECRET_BYTES:
            raise InvalidInputError(f"a shared secret has {SECRET_BYTES} bytes, this one has {len(secret)}")
    if not 1 <= threshold <= holders <= MAX_HOLDERS:
        raise InvalidInputError(
            f"cannot share with threshold {threshold} among {holders} holders; "
            f"it takes 1 <= threshold <= holders <= {MAX_HOLDERS}"
        )


def _share(value: bytes) -> bytes:
    return (int.from_bytes(value, "little") % PRIME).to_bytes(ELEMENT_BYTES, "big")


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
