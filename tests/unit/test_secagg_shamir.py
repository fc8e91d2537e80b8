"""Any threshold of shares gives the secret; fewer fit every secret equally well."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.errors import CryptoError, InvalidInputError
from fedrep.secagg.shamir import ELEMENT_BYTES, MAX_HOLDERS, PRIME, combine, split, split_together

LARGEST_THRESHOLD = 2 * MAX_HOLDERS // 3 + 1
SECRET = hashlib.sha256(b"secret").digest()

VECTORS = [
    "00162f982fcdd9ed7073d82821bf3d669d715fc318958ab30e6d0c5a9b71539cd6",
    "0043e5e267e0d436a0e113b413db97892314a4adf1558a93fc9fdda505868ba0d6",
    "00b4daebfbb40c7f74d385a737ff93be17a7afab57b162a1c13ad3c8ba34cfae5b",
    "00690eb4eb4782c7ec4b2e018e2b32057b2a80bb4ba912dc5c3deec5b97c1fc43c",
]


def counted(size: int) -> bytes:
    """Entropy anyone can write down again: SHA-256 of 0, 1, 2, ..."""
    blocks = (hashlib.sha256(index.to_bytes(4, "big")).digest() for index in itertools.count())
    return b"".join(itertools.islice(blocks, size // 32 + 1))[:size]


def numbered(shares: list[bytes]) -> dict[int, bytes]:
    return dict(enumerate(shares, start=1))


def interpolate(points: dict[int, int], at: int) -> int:
    """Lagrange's formula as in a textbook, to check the fast one against."""
    total = 0
    for x, y in points.items():
        term = y
        for other in points:
            if other != x:
                term = term * (at - other) * pow(x - other, -1, PRIME) % PRIME
        total += term
    return total % PRIME


def test_the_field_is_that_of_the_smallest_prime_above_two_to_the_256() -> None:
    def is_prime(n: int) -> bool:
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
            x = pow(base, odd, n)
            if x not in (1, n - 1) and all((x := x * x % n) != n - 1 for _ in range(twos - 1)):
                return False
        return True

    assert PRIME == 2**256 + 297
    assert is_prime(PRIME)
    assert not any(is_prime(n) for n in range(2**256 + 1, PRIME, 2))
    assert (PRIME.bit_length() + 7) // 8 == ELEMENT_BYTES


def test_fixed_vectors() -> None:
    assert [share.hex() for share in split(SECRET, 3, 4, counted)] == VECTORS


def test_shares_are_values_of_the_polynomial_drawn_from_the_entropy() -> None:
    drawn = counted(48 * 170)
    differences = [int.from_bytes(drawn[start : start + 48], "big") % PRIME for start in range(0, len(drawn), 48)]
    for threshold, holders in ((3, 255), (171, 255), (9, 9), (1, 4)):
        newton = [int.from_bytes(SECRET, "big"), *differences[: threshold - 1]]
        for point, share in numbered(split(SECRET, threshold, holders, counted)).items():
            expected = sum(difference * math.comb(point, order) for order, difference in enumerate(newton))
            assert int.from_bytes(share, "big") == expected % PRIME


def test_secrets_that_are_split_together_have_a_polynomial_each() -> None:
    drawn, others = counted(4 * 48), (SECRET, bytes(32))
    together = split_together(others, 3, 7, counted)
    for number, secret in enumerate(others):
        own = drawn[48 * number :][:48] + drawn[48 * (number + 2) :][:48]
        assert together[number] == split(secret, 3, 7, lambda _, own=own: own)  # type: ignore[misc]
        assert combine(numbered(together[number]), 3) == secret


def test_every_subset_of_threshold_size_gives_the_secret() -> None:
    shares = numbered(split(SECRET, 3, 6))
    for subset in itertools.combinations(shares, 3):
        assert combine({point: shares[point] for point in subset}, 3) == SECRET


@settings(max_examples=60)
@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_secret_survives_any_threshold_and_any_choice_of_holders(secret: bytes, data: st.DataObject) -> None:
    holders = data.draw(st.integers(1, 40))
    threshold = data.draw(st.integers(1, holders))
    shares = numbered(split(secret, threshold, holders))
    chosen = data.draw(st.permutations(list(shares)))[: data.draw(st.integers(threshold, holders))]
    assert combine({point: shares[point] for point in chosen}, threshold) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, b"\x00" * 31 + b"\x01"])
def test_the_extreme_secrets_survive_the_largest_roster(secret: bytes) -> None:
    shares = numbered(split(secret, LARGEST_THRESHOLD, MAX_HOLDERS))
    assert combine(shares, LARGEST_THRESHOLD) == secret
    assert combine(dict(list(shares.items())[-LARGEST_THRESHOLD:]), LARGEST_THRESHOLD) == secret


def test_combine_agrees_with_the_textbook_formula() -> None:
    shares = {7: b"\x00" * 32 + b"\x05", 2: b"\x00" * 32 + b"\x09", 11: b"\x00" * 31 + b"\x01\x00"}
    expected = interpolate({point: int.from_bytes(share, "big") for point, share in shares.items()}, 0)
    assert int.from_bytes(combine(shares, 3), "big") == expected


def test_exactly_the_lowest_points_are_used() -> None:
    shares = numbered(split(SECRET, 3, 6))
    shuffled = {point: shares[point] for point in (5, 1, 6, 3, 2)}
    shuffled[5] = shuffled[6] = b"damaged and never looked at"
    assert combine(shuffled, 3) == SECRET


def test_a_wrong_share_does_not_give_the_secret() -> None:
    shares = numbered(split(SECRET, 3, 5))
    shares[2] = shares[2][:-1] + bytes([shares[2][-1] ^ 1])
    assert combine(shares, 3) != SECRET


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    shares = {p: int.from_bytes(share, "big") for p, share in numbered(split(SECRET, 4, 6)).items()}
    known = {point: shares[point] for point in (1, 4, 6)}
    for guess in (0, 1, 2**256 - 1, 12345):
        # One polynomial of degree 3 runs through the guess and all known shares: nothing rules the guess out.
        completed = {p: interpolate({0: guess, **known}, p).to_bytes(ELEMENT_BYTES, "big") for p in (1, 2, 4, 6)}
        assert all(int.from_bytes(completed[point], "big") == shares[point] for point in known)
        assert int.from_bytes(combine(completed, 4), "big") == guess


def test_a_share_is_uniform_whatever_the_secret() -> None:
    generator = random.Random(7)
    for secret in (bytes(32), b"\xff" * 32):
        for holder in (0, 2):
            samples = [split(secret, 2, 3, generator.randbytes)[holder][-1] % 16 for _ in range(3200)]
            counts = Counter(samples)
            chi_square = sum((counts[value] - 200) ** 2 / 200 for value in range(16))
            assert chi_square < 44.3  # 15 degrees of freedom, p = 1e-4; the seed is fixed


def test_two_sharings_of_one_secret_have_no_share_in_common() -> None:
    assert not set(split(SECRET, 3, 5)) & set(split(SECRET, 3, 5))


def test_too_few_shares_are_refused_with_both_numbers() -> None:
    shares = numbered(split(SECRET, 3, 5))
    del shares[1], shares[2], shares[3]
    with pytest.raises(CryptoError, match=r"3 shares.*only 2"):
        combine(shares, 3)


@pytest.mark.parametrize("damaged", [b"", b"\x00" * 32, b"\x00" * 34, PRIME.to_bytes(33, "big"), b"\xff" * 33], ids=len)
def test_a_share_that_is_no_field_element_is_refused_with_its_holder(damaged: bytes) -> None:
    shares = numbered(split(SECRET, 3, 5))
    shares[2] = damaged
    with pytest.raises(CryptoError, match="holder 2"):
        combine(shares, 3)


def test_a_value_above_every_secret_is_refused() -> None:
    shares = {1: (PRIME - 1).to_bytes(33, "big")}
    with pytest.raises(CryptoError, match="no 32-byte secret"):
        combine(shares, 1)
    assert combine({1: (2**256 - 1).to_bytes(33, "big")}, 1) == b"\xff" * 32


@pytest.mark.parametrize("point", [0, -1, MAX_HOLDERS + 1])
def test_a_share_at_a_point_nobody_holds_is_refused(point: int) -> None:
    with pytest.raises(CryptoError, match="points"):
        combine({point: b"\x00" * 33}, 1)


@pytest.mark.parametrize(("threshold", "holders"), [(0, 3), (-1, 3), (4, 3), (1, 0), (3, MAX_HOLDERS + 1)])
def test_an_impossible_sharing_is_refused(threshold: int, holders: int) -> None:
    with pytest.raises(InvalidInputError, match="threshold"):
        split(SECRET, threshold, holders)


def test_a_threshold_below_one_cannot_be_combined() -> None:
    with pytest.raises(InvalidInputError, match="threshold"):
        combine({}, 0)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(InvalidInputError, match="32 bytes"):
        split(bytes(size), 2, 3)


def test_entropy_that_runs_short_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="entropy"):
        split(SECRET, 3, 4, lambda size: bytes(size - 1))
