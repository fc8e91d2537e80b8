"""One injective encoding for everything that is hashed, signed, or used as context of a key.

Every field carries its type and length, so two different field lists never share an encoding: without that, moving a
byte from one field to the next would give the same hash, and a signature on one message would pass for another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from fedrep.errors import InvalidInputError

Field: TypeAlias = "int | str | bytes | bool | float | tuple[Field, ...] | Encoded | None"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A field that was encoded before: it stands in a transcript as it would by itself."""

    data: bytes


_HEADER = struct.Struct(">cQ")
_DOUBLE = struct.Struct(">d")
_PROTOCOL = "fedrep/v1"


# Names, keys and hashes are short: their headers are looked up, not packed again thousands of times per round.
_SHORT = 129
_BYTES_HEADERS = tuple(_HEADER.pack(b"b", length) for length in range(_SHORT))
_TEXT_HEADERS = tuple(_HEADER.pack(b"s", length) for length in range(_SHORT))


def _append(fields: tuple[Field, ...], parts: list[bytes]) -> None:
    for field in fields:
        if isinstance(field, bytes):
            length = len(field)
            parts += (_BYTES_HEADERS[length] if length < _SHORT else _HEADER.pack(b"b", length), field)
        elif isinstance(field, str):
            text = _text(field)
            length = len(text)
            parts += (_TEXT_HEADERS[length] if length < _SHORT else _HEADER.pack(b"s", length), text)
        elif isinstance(field, tuple):
            parts.append(_HEADER.pack(b"l", len(field)))
            _append(field, parts)
        elif isinstance(field, bool):  # before int, which it is a subclass of
            parts.append(_HEADER.pack(b"t" if field else b"f", 0))
        elif isinstance(field, int):
            number = int(field)
            body = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
            parts += (_HEADER.pack(b"i", len(body)), body)
        elif isinstance(field, float):
            parts += (_HEADER.pack(b"d", 8), _DOUBLE.pack(field))
        elif isinstance(field, Encoded):
            parts.append(field.data)
        elif field is None:
            parts.append(_HEADER.pack(b"n", 0))
        else:
            raise InvalidInputError(
                f"a {type(field).__name__} cannot be part of a transcript; make it int, str, bytes, float, bool or a tuple"
            )


def _text(field: str) -> bytes:
    try:
        return field.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("a text in a transcript is not valid Unicode (lone surrogate)") from None


def encoded_list(items: tuple[bytes, ...]) -> Encoded:
    """A tuple of byte strings as a field; those of one length, such as hashes, are put together in one go."""
    length = len(items[0]) if items else 0
    if not items or set(map(len, items)) != {length}:
        return Encoded(encode(items))
    header = _HEADER.pack(b"b", length)
    return Encoded(_HEADER.pack(b"l", len(items)) + header + header.join(items))


def encoded_tuple(items: Sequence[bytes]) -> bytes:
    """The encoding of a tuple, from those of its items."""
    return _HEADER.pack(b"l", len(items)) + b"".join(items)


def encode(*fields: Field) -> bytes:
    parts: list[bytes] = []
    _append(fields, parts)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def encode_text(text: str) -> bytes:
    """Of names, which recur in every key of a round. Fields follow each other without anything between them."""
    return encode(text)


def encode_bytes(data: bytes) -> bytes:
    length = len(data)
    return (_BYTES_HEADERS[length] if length < _SHORT else _HEADER.pack(b"b", length)) + data


@lru_cache(maxsize=64)
def encode_context(context: bytes) -> bytes:
    """Of C1 and C2, which stand in hundreds of keys and messages of a round, and are no secret."""
    return encode(context)


def digest(tag: str, *fields: Field) -> bytes:
    """SHA-256 of the fields under a tag that says what kind of thing they are."""
    parts = [_prefix(tag)]
    _append(fields, parts)
    return hashlib.sha256(b"".join(parts)).digest()


def digest_encoded(tag: str, encoded: bytes) -> bytes:
    """`digest` of fields that are encoded already."""
    return hashlib.sha256(_prefix(tag) + encoded).digest()


def digest_of_bytes(tag: str, data: bytes) -> bytes:
    """`digest(tag, data)`, for what is hashed tens of thousands of times in a round."""
    return hashlib.sha256(_bytes_prefix(tag, len(data)) + data).digest()


def digest_of_large(tag: str, data: memoryview) -> bytes:
    """`digest(tag, bytes(data))` without a copy of the data."""
    made = hashlib.sha256(_prefix(tag) + _HEADER.pack(b"b", data.nbytes))
    made.update(data)
    return made.digest()


@lru_cache(maxsize=64)
def _bytes_prefix(tag: str, length: int) -> bytes:
    return _prefix(tag) + _HEADER.pack(b"b", length)


@lru_cache(maxsize=64)
def _prefix(tag: str) -> bytes:
    return encode(_PROTOCOL, tag)
