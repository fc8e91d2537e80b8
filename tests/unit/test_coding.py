from __future__ import annotations

import math
import tracemalloc
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.coding import (
    LARGEST_DIMENSION,
    decode_coordinates,
    decode_values,
    encode_coordinates,
    encode_values,
)
from fedrep.errors import DecodeError, InvalidInputError


def uniform_set(d: int, count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).choice(d, count, replace=False))


def entropy_of_a_uniform_set(d: int, count: int) -> float:
    return (math.lgamma(d + 1) - math.lgamma(count + 1) - math.lgamma(d - count + 1)) / math.log(2)


@given(st.integers(1, LARGEST_DIMENSION), st.data())
def test_any_set_comes_back_from_its_message(d: int, data: st.DataObject) -> None:
    members = sorted(data.draw(st.sets(st.integers(0, d - 1), max_size=60)))
    message = encode_coordinates(members, d)
    decoded = decode_coordinates(message, d)
    assert decoded.dtype == np.int64
    assert decoded.tolist() == members
    assert decode_coordinates(memoryview(bytearray(message)), d, max_count=len(members)).tolist() == members


@pytest.mark.parametrize("density", [0.00001, 0.001, 0.01, 0.05, 0.3, 0.5, 0.9, 1.0])
def test_large_sets_come_back_at_every_density(density: float) -> None:
    d = 1_000_003
    members = uniform_set(d, int(d * density))
    np.testing.assert_array_equal(decode_coordinates(encode_coordinates(members, d), d), members)


@pytest.mark.parametrize("count", range(1, 26))
@pytest.mark.parametrize("spacing", [1, 2, 50, 700, 70_000, 20_000_000])
def test_every_width_of_remainders_and_padding_comes_back(count: int, spacing: int) -> None:
    d = count * spacing
    members = np.arange(count, dtype=np.int64) * spacing + spacing - 1
    np.testing.assert_array_equal(decode_coordinates(encode_coordinates(members, d), d), members)


@pytest.mark.parametrize("density", [0.01, 0.05])
def test_a_uniform_set_takes_at_most_three_percent_more_than_its_entropy(density: float) -> None:
    d = 5_000_000
    count = int(d * density)
    message = encode_coordinates(uniform_set(d, count), d)
    assert 8 * len(message) <= 1.03 * entropy_of_a_uniform_set(d, count)


@pytest.mark.parametrize("ratio", [1, 3, 10, 30, 100])
def test_no_other_parameter_would_give_a_shorter_message(ratio: int) -> None:
    gaps = np.random.default_rng(ratio).geometric(0.01, 4_000)
    gaps[::2] *= ratio
    members = np.cumsum(gaps)
    d = int(members[-1]) + 1
    message = encode_coordinates(members, d)
    below = np.diff(members, prepend=-1) - 1
    bits = [int((below >> r).sum()) + (r + 1) * below.size for r in range(20)]
    assert message[4] == int(np.argmin(bits))
    assert 0 <= 8 * (len(message) - 5) - min(bits) < 16


def test_no_set_takes_more_than_a_bitmap_and_a_header() -> None:
    for d, count in [(1, 1), (64, 64), (1_000, 500), (1_000, 999)]:
        assert len(encode_coordinates(uniform_set(d, count), d)) <= 5 + -(-d // 8) + 1


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_exactly_one_message_stands_for_each_set(d: int) -> None:
    found: dict[tuple[int, ...], list[bytes]] = {}
    payloads = [bytes(payload) for length in (0, 1) for payload in product(range(256), repeat=length)]
    payloads += [bytes(pair) for pair in product(range(16), range(256))] + [b"\x01\x00\x00", b"\x80\x01", b"\xff\xff"]
    for count, r, payload in product(range(d + 2), range(4), payloads):
        message = count.to_bytes(4, "little") + bytes([r]) + payload
        try:
            members = tuple(decode_coordinates(message, d).tolist())
        except DecodeError:
            continue
        found.setdefault(members, []).append(message)
    every_set = [members for size in range(d + 1) for members in combinations(range(d), size)]
    assert sorted(found) == sorted(every_set)
    for members, messages in found.items():
        assert messages == [encode_coordinates(np.array(members, dtype=np.int64), d)]


def decodes_to_itself_or_is_refused(message: bytes, d: int, max_count: int | None = None) -> bool:
    try:
        members = decode_coordinates(message, d, max_count)
    except DecodeError:
        return False
    assert encode_coordinates(members, d) == message
    return True


@given(st.binary(max_size=60), st.integers(1, LARGEST_DIMENSION))
def test_any_bytes_are_a_message_or_a_decode_error(message: bytes, d: int) -> None:
    decodes_to_itself_or_is_refused(message, d)


@given(st.integers(0, 40), st.integers(0, 12), st.binary(max_size=40), st.sampled_from([40, 1_000, 2**31, 2**32 - 1]))
def test_any_payload_after_a_plausible_header_is_a_message_or_a_decode_error(count: int, r: int, payload: bytes, d: int) -> None:
    decodes_to_itself_or_is_refused(count.to_bytes(4, "little") + bytes([r]) + payload, d)


@given(st.integers(0, 2**32), st.integers(50, 100_000), st.data())
def test_a_damaged_message_is_refused_or_stands_for_another_set(seed: int, d: int, data: st.DataObject) -> None:
    message = bytearray(encode_coordinates(uniform_set(d, data.draw(st.integers(1, 50)), seed), d))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    decodes_to_itself_or_is_refused(bytes(message), d)


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_a_cut_or_lengthened_message_is_refused(count: int, seed: int) -> None:
    d = 10_000
    message = encode_coordinates(uniform_set(d, count, seed), d)
    for cut in range(len(message)):
        assert not decodes_to_itself_or_is_refused(message[:cut], d)
    for extra in (b"\x00", b"\x01", b"\xff" * 9):
        assert not decodes_to_itself_or_is_refused(message + extra, d)


def test_a_header_that_promises_too_much_is_refused_before_any_memory_is_taken() -> None:
    d = 2**32 - 1
    lies = [(2**32 - 1, 0), (2**32 - 1, 255), (2**31, 31), (10**9, 8), (10**6, 3), (1, 32), (1, 255)]
    tracemalloc.start()
    try:
        for count, r in lies:
            message = count.to_bytes(4, "little") + bytes([r]) + b"\xff" * 100
            with pytest.raises(DecodeError):
                decode_coordinates(message, d)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_long_message_for_few_coordinates_is_refused_before_it_is_unpacked() -> None:
    message = (3).to_bytes(4, "little") + b"\x00" + b"\x00" * 500_000 + b"\x07"
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="cannot take"):
            decode_coordinates(message, 5_000_000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("message", "d", "text"),
    [
        (b"", 10, "header"),
        (b"\x01\x00\x00\x00", 10, "only 4"),
        (b"\x0b\x00\x00\x00\x00" + b"\xff\x07", 10, "does not fit"),
        (b"\x00\x00\x00\x00\x00\x00", 10, "more bytes follow"),
        (b"\x00\x00\x00\x00\x01", 10, "never used"),
        (b"\x01\x00\x00\x00\x04\x00\x01", 10, "never used"),
        (b"\x02\x00\x00\x00\x00\x01", 10, "but 1 are there"),
        (b"\x01\x00\x00\x00\x00\x03", 10, "but 2 are there"),
        (b"\x01\x00\x00\x00\x00\x00", 10, "superfluous"),
        (b"\x01\x00\x00\x00\x00\x04", 2, "outside"),
        (b"\x01\x00\x00\x00\x01\x01\x04", 4, "outside"),
        (b"\x01\x00\x00\x00\x01\x01\x02", 3, "outside"),
        (b"\x01\x00\x00\x00\x01\x02\x02", 10, "padding"),
        (b"\x01\x00\x00\x00\x01\x00\x01", 10, "not the cheapest"),
        (b"\x01\x00\x00\x00\x00\x08", 10, "not the cheapest"),
    ],
)
def test_each_kind_of_malformed_message_says_what_is_wrong(message: bytes, d: int, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        decode_coordinates(message, d)


def test_a_quotient_that_would_wrap_around_into_another_set_is_refused() -> None:
    d = 2**31 - 1
    message = encode_coordinates([2**30 + 2**29], d)
    assert (message[4], message[-1]) == (30, 0b10)
    with pytest.raises(DecodeError, match="outside"):
        decode_coordinates(message[:-1] + bytes([0b100000]), d)


def test_more_coordinates_than_expected_are_refused() -> None:
    message = encode_coordinates([1, 2, 3], 10)
    with pytest.raises(DecodeError, match="at most 2"):
        decode_coordinates(message, 10, max_count=2)


@pytest.mark.parametrize("indices", [[2, 1], [1, 1], [-1], [10], [0.5]])
def test_what_is_no_set_is_not_encoded(indices: list[float]) -> None:
    with pytest.raises(InvalidInputError):
        encode_coordinates(indices, 10)


@pytest.mark.parametrize("d", [0, -1, 2**32])
def test_dimensions_outside_the_format_are_refused(d: int) -> None:
    with pytest.raises(InvalidInputError, match="parameters"):
        encode_coordinates([], d)
    with pytest.raises(InvalidInputError, match="parameters"):
        decode_coordinates(b"\x00" * 5, d)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "i2", "f4"])
def test_values_travel_little_endian_from_any_byte_order(dtype: str) -> None:
    values = np.array([1, 2, 255], dtype=dtype)
    message = encode_values(values)
    assert message == values.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    assert encode_values(values.astype(np.dtype(dtype).newbyteorder(">"))) == message
    decoded = decode_values(message, dtype, 3)
    assert decoded.dtype == values.dtype
    np.testing.assert_array_equal(decoded, values)
    assert not decoded.flags.writeable
    assert not decode_values(bytearray(message), dtype, 3).flags.writeable


@given(st.binary(max_size=40), st.integers(0, 12))
def test_values_of_another_length_are_refused(data: bytes, count: int) -> None:
    if len(data) == 2 * count:
        assert decode_values(data, np.uint16, count).tobytes() == data
    else:
        with pytest.raises(DecodeError, match="bytes"):
            decode_values(data, np.uint16, count)


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        encode_values(np.zeros(3))
    with pytest.raises(InvalidInputError):
        encode_values(np.zeros((2, 2), dtype=np.uint16))
    with pytest.raises(InvalidInputError):
        decode_values(b"", np.float64, 0)
    with pytest.raises(InvalidInputError):
        decode_values(b"", np.uint16, -1)
