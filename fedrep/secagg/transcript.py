"""One injective encoding for everything that is hashed, signed, or used as context of a key.

Every field carries its type and length, so two different field lists never share an encoding: without that, moving a
byte from one field to the next would give the same hash, and a signature on one message would pass for another.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TypeAlias

from fedrep.errors import InvalidInputError

Field: TypeAlias = "int | str | bytes | bool | float | tuple[Field, ...] | None"

_HEADER = struct.Struct(">cQ")
_DOUBLE = struct.Struct(">d")
_PROTOCOL = "fedrep/v1"


def _append(field: Field, parts: list[bytes]) -> None:
    if isinstance(field, bytes):
        parts += (_HEADER.pack(b"b", len(field)), field)
    elif isinstance(field, str):
        try:
            text = field.encode()
        except UnicodeEncodeError:
            raise InvalidInputError("a text in a transcript is not valid Unicode (lone surrogate)") from None
        parts += (_HEADER.pack(b"s", len(text)), text)
    elif isinstance(field, bool):  # before int, which it is a subclass of
        parts.append(_HEADER.pack(b"t" if field else b"f", 0))
    elif isinstance(field, int):
        number = int(field)
        body = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        parts += (_HEADER.pack(b"i", len(body)), body)
    elif isinstance(field, float):
        parts += (_HEADER.pack(b"d", 8), _DOUBLE.pack(field))
    elif field is None:
        parts.append(_HEADER.pack(b"n", 0))
    elif isinstance(field, tuple):
        parts.append(_HEADER.pack(b"l", len(field)))
        for item in field:
            _append(item, parts)
    else:
        raise InvalidInputError(
            f"a {type(field).__name__} cannot be part of a transcript; make it int, str, bytes, float, bool or a tuple"
        )


def encode(*fields: Field) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        _append(field, parts)
    return b"".join(parts)


def digest(tag: str, *fields: Field) -> bytes:
    """SHA-256 of the fields under a tag that says what kind of thing they are."""
    return hashlib.sha256(encode(_PROTOCOL, tag, *fields)).digest()
