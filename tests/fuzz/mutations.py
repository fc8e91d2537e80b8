"""Other messages of the same kind: a field set to something odd, emptied, doubled, or with a few of its bytes changed.

Bytes that are changed blindly are seldom a message at all, and coverage cannot lead through the parser of protobuf, which is not
Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from tests.fuzz.targets import Message

# Changes bytes blindly, to at most so many.
BytesChange = Callable[[bytes, int], bytes]

BLIND = 0.2  # of the changes to a message, and of those to its payload
WIDTHS = {
    FieldDescriptor.TYPE_INT32: (32, True), FieldDescriptor.TYPE_INT64: (64, True), FieldDescriptor.TYPE_UINT32: (32, False),
    FieldDescriptor.TYPE_UINT64: (64, False), FieldDescriptor.TYPE_SINT32: (32, True), FieldDescriptor.TYPE_SINT64: (64, True),
    FieldDescriptor.TYPE_FIXED32: (32, False), FieldDescriptor.TYPE_FIXED64: (64, False),
}  # fmt: skip
ODD_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, 1e300, float("inf"), float("-inf"), float("nan"))


def changed(target: Message, data: bytes, most: int, seed: int, blindly: BytesChange) -> bytes:
    """One to four changes; what is not a message of that kind is changed blindly."""
    rng = random.Random(seed)
    header, payload = target.parts(data)
    message = target.kind()
    try:
        message.ParseFromString(header)
    except DecodeError:
        return blindly(data, most)
    for _ in range(rng.randint(1, 4)):
        if rng.random() >= BLIND:
            _change(message, rng, blindly)
        elif target.headed and rng.random() < 0.5:
            payload = blindly(payload, max(most - message.ByteSize() - 2, 1))
        else:
            return blindly(target.joined(message.SerializeToString(), payload), most)
    made = target.joined(message.SerializeToString(), payload)
    return made if len(made) <= most else blindly(data, most)


def _change(message: Any, rng: random.Random, blindly: BytesChange) -> None:
    """Some field of it, or of a message within it."""
    field = rng.choice(message.DESCRIPTOR.fields) if message.DESCRIPTOR.fields else None
    if field is None:
        return
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_many(message, field, rng, blindly)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _change(inner, rng, blindly)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), rng, blindly))


def _change_many(message: Any, field: FieldDescriptor, rng: random.Random, blindly: BytesChange) -> None:
    values = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return  # a map is reached by blind changes
    if not values or rng.random() < 0.3:
        if field.message_type is not None:
            added = values.add()
            if len(values) > 1 and rng.random() < 0.5:
                added.CopyFrom(values[rng.randrange(len(values) - 1)])
        else:
            values.append(_scalar(field, values[0] if values else field.default_value or _nothing(field), rng, blindly))
    elif rng.random() < 0.3:
        del values[rng.randrange(len(values))]
    elif field.message_type is not None:
        _change(values[rng.randrange(len(values))], rng, blindly)
    else:
        index = rng.randrange(len(values))
        values[index] = _scalar(field, values[index], rng, blindly)


def _nothing(field: FieldDescriptor) -> Any:
    return {FieldDescriptor.TYPE_BYTES: b"", FieldDescriptor.TYPE_STRING: ""}.get(field.type, 0)


def _scalar(field: FieldDescriptor, value: Any, rng: random.Random, blindly: BytesChange) -> Any:
    kind = field.type
    if kind in WIDTHS:
        bits, signed = WIDTHS[kind]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        odd = [0, 1, 2, 255, 256, 65535, low, high, value + 1, value - 1, value * 2, rng.randrange(1 << rng.randrange(1, bits))]
        return min(max(rng.choice(odd), low), high)
    if kind in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return rng.choice([*ODD_FLOATS, value / 2, value * 2, rng.uniform(-100, 100)])
    if kind == FieldDescriptor.TYPE_BOOL:
        return not value
    if kind == FieldDescriptor.TYPE_ENUM:
        return rng.randrange(8)
    if kind == FieldDescriptor.TYPE_STRING:
        return blindly(value.encode(), 64).decode("utf-8", errors="replace")
    return rng.choice([b"", bytes(32), bytes(value) * 2]) if rng.random() < 0.2 else blindly(bytes(value), len(value) + 64)
