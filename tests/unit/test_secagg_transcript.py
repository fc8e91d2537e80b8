"""Two different field lists never share an encoding, and the encoding itself is pinned."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.errors import InvalidInputError
from fedrep.secagg.transcript import (
    Field,
    digest,
    digest_encoded,
    digest_of_bytes,
    encode,
    encode_bytes,
    encode_context,
    encode_text,
    encoded_list,
    encoded_tuple,
)

SCALARS = st.one_of(
    st.integers(-(2**300), 2**300),
    st.text(),
    st.binary(),
    st.booleans(),
    st.floats(allow_nan=False),
    st.none(),
)
FIELDS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)


def decode(data: bytes) -> tuple[Field, ...]:
    """Reads an encoding back: whatever can be read back unambiguously was written injectively."""
    fields, rest = [], data
    while rest:
        field, rest = _decode_one(rest)
        fields.append(field)
    return tuple(fields)


def _decode_one(data: bytes) -> tuple[Field, bytes]:
    kind, size = struct.unpack(">cQ", data[:9])
    data = data[9:]
    if kind == b"l":
        items = []
        for _ in range(size):
            item, data = _decode_one(data)
            items.append(item)
        return tuple(items), data
    body, data = data[:size], data[size:]
    readers: dict[bytes, Callable[[], Field]] = {
        b"b": lambda: body,
        b"s": lambda: body.decode(),
        b"i": lambda: int.from_bytes(body, "big", signed=True),
        b"d": lambda: float(struct.unpack(">d", body)[0]),
        b"t": lambda: True,
        b"f": lambda: False,
        b"n": lambda: None,
    }
    return readers[kind](), data


def same(left: Field, right: Field) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    return type(left) is type(right) and left == right


@given(st.lists(FIELDS, max_size=5))
def test_every_field_list_can_be_read_back_from_its_encoding(fields: list[Field]) -> None:
    assert same(decode(encode(*fields)), tuple(fields))


@given(st.lists(FIELDS, max_size=3), st.lists(FIELDS, max_size=3))
def test_encodings_are_equal_only_for_equal_fields(left: list[Field], right: list[Field]) -> None:
    assert (encode(*left) == encode(*right)) == same(tuple(left), tuple(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("ab", "c"), ("a", "bc")),
        ((b"ab", b""), (b"a", b"b")),
        (("a",), (b"a",)),
        ((1,), (True,)),
        ((0,), (False,)),
        ((1,), (1.0,)),
        ((0.0,), (-0.0,)),
        ((None,), ()),
        ((None,), ("",)),
        (((),), ()),
        ((("a", "b"),), ("a", "b")),
        ((("a",), "b"), ("a", ("b",))),
        (((1, 2), 3), ((1,), 2, 3)),
        ((255,), (-1,)),
        ((256,), (b"\x01\x00",)),
    ],
)
def test_look_alikes_have_different_encodings_and_digests(left: tuple[Field, ...], right: tuple[Field, ...]) -> None:
    assert encode(*left) != encode(*right)
    assert digest("tag", *left) != digest("tag", *right)


def test_the_encoding_is_pinned() -> None:
    assert encode("é", b"\x01", -2, True, None, (0.5, 128)).hex() == (
        "73" + "0000000000000002" + "c3a9"
        "62" + "0000000000000001" + "01"
        "69" + "0000000000000001" + "fe"
        "74" + "0000000000000000"
        "6e" + "0000000000000000"
        "6c" + "0000000000000002"
        "64" + "0000000000000008" + "3fe0000000000000"
        "69" + "0000000000000002" + "0080"
    )  # fmt: skip


def test_the_digest_is_sha256_of_protocol_tag_and_fields() -> None:
    assert digest("C1", "run", 3) == hashlib.sha256(encode("fedrep/v1", "C1", "run", 3)).digest()
    assert len(digest("C1")) == 32


def test_the_tag_separates_domains() -> None:
    assert digest("C1", "x") != digest("C2", "x")
    assert digest("a", "b", "c") != digest("b", "a", "c")


def test_nan_and_infinity_have_an_encoding_of_their_own() -> None:
    assert len({encode(math.nan), encode(math.inf), encode(-math.inf), encode(0.0)}) == 4


@pytest.mark.parametrize("alien", [np.int64(3), [1, 2], {"a": 1}, bytearray(b"x"), object()])
def test_a_field_of_another_type_is_refused_by_name(alien: object) -> None:
    with pytest.raises(InvalidInputError, match=type(alien).__name__):
        encode(cast(Field, alien))


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Unicode"):
        encode("\ud800")


@given(st.lists(st.binary(max_size=40)).map(tuple) | st.lists(st.binary(min_size=32, max_size=32)).map(tuple))
def test_a_list_that_was_put_together_in_one_go_is_encoded_as_any_other(items: tuple[bytes, ...]) -> None:
    assert encode(encoded_list(items)) == encode(items)


@given(st.lists(st.tuples(st.text(max_size=10), st.binary(max_size=200)), max_size=5))
def test_a_tuple_of_items_that_are_encoded_already_is_encoded_as_any_other(pairs: list[tuple[str, bytes]]) -> None:
    items = [encoded_tuple((encode_text(text), encode_bytes(data))) for text, data in pairs]
    assert encoded_tuple(items) == encode(tuple(pairs))


@given(st.binary(max_size=400))
def test_the_hash_of_bytes_alone_is_the_same_by_the_short_way(data: bytes) -> None:
    assert digest_of_bytes("fedrep/test", data) == digest("fedrep/test", data)


@given(st.text(max_size=20).filter(lambda text: text.isprintable()), st.binary(max_size=300))
def test_fields_that_are_encoded_already_have_the_same_digest(tag: str, data: bytes) -> None:
    assert digest_encoded(tag, encode_context(data) + encode("name", 7)) == digest(tag, data, "name", 7)
