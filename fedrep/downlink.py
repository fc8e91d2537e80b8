"""The update G on its way down: 8- or 16-bit linear values with one scale, and a model that stays bit-identical everywhere.

Server and silos apply the same dequantized float32 values with one multiplication and one subtraction each, which IEEE
arithmetic rounds alike on every machine. What rounding leaves over stays with the server, who adds it next time (the
error memory of section 3.2, in the other direction).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.errors import InvalidInputError, NonFiniteError
from fedrep.sparsify import ascending

DOWNLINK_BITS = (8, 16, 32)
_LEVELS: dict[int, type[np.signedinteger[Any]]] = {8: np.int8, 16: np.int16}
_FLOAT32 = np.finfo(np.float32)
_SIGN = np.uint32(1 << 31)
_TINY = np.float32(2.0**-100).view(np.uint32)
# Every product of a level with this scale is still a finite float32.
_LARGEST_SCALE = np.nextafter(np.float32(_FLOAT32.max / 32768), np.float32(0))


@dataclass(frozen=True)
class Downlink:
    """`levels` and `scale` travel; `values` is what every receiver makes of them; `residual` stays with the server."""

    levels: NDArray[Any]
    scale: np.float32
    values: NDArray[np.float32]
    residual: NDArray[np.float32]


def encode_update(values: ArrayLike, residual_on_I: ArrayLike, bits: int = 16) -> Downlink:
    """Code the update plus the residual of earlier rounds; bits is 8 or 16 (linear) or 32 (plain float32)."""
    if bits not in DOWNLINK_BITS:
        raise InvalidInputError(f"The update travels with 8, 16 or 32 bits per value, not {bits}.")
    fresh, carried = np.asarray(values), np.asarray(residual_on_I)
    if fresh.ndim != 1 or fresh.shape != carried.shape:
        raise InvalidInputError(f"The update has shape {fresh.shape} and its residual {carried.shape}; both are one vector.")
    _require_finite(fresh, "The update")
    _require_finite(carried, "The downlink residual")
    wanted = np.add(fresh, carried, dtype=np.float64)  # the one vector of eight bytes a value that is kept here
    np.clip(wanted, -float(_FLOAT32.max), float(_FLOAT32.max), out=wanted)
    levels, scale = _linear(wanted, _LEVELS[bits]) if bits in _LEVELS else _plain(wanted)
    received = decode_update(levels, scale)
    left = np.subtract(wanted, received, out=wanted)
    return Downlink(levels, scale, received, left.astype(np.float32))


def decode_update(levels: NDArray[Any], scale: float | np.float32) -> NDArray[np.float32]:
    """The values that the levels stand for: one float32 multiplication each."""
    given = np.asarray(levels)
    factor = np.float32(scale)
    if given.ndim != 1 or given.dtype not in (np.int8, np.int16, np.float32):
        raise InvalidInputError(f"An update holds one vector of int8, int16 or float32 levels, not {given.dtype}.")
    if given.dtype == np.float32:
        if factor != np.float32(1):
            raise InvalidInputError(f"An update of 32-bit values has the scale 1, not {factor}.")
        _require_finite(given, "The update")
        return given.astype(np.float32)
    if not 0.0 <= factor <= _LARGEST_SCALE:
        raise InvalidInputError(f"The scale of an update lies between 0 and {_LARGEST_SCALE}, but this one is {factor}.")
    return np.multiply(given.astype(np.float32), factor)


def apply_update(model: NDArray[np.float32], indices: ArrayLike, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The next model, w - G; the given one is left as it is."""
    where, _, changed = _changed(model, indices, values)
    following = model.copy()
    following[where] = changed
    return following


def apply_in_place(model: NDArray[np.float32], indices: ArrayLike, values: NDArray[np.float32]) -> Callable[[], None]:
    """w becomes w - G, or stays as it is if that cannot be; what is returned takes it back."""
    where, before, changed = _changed(model, indices, values)
    model[where] = changed

    def undo() -> None:
        model[where] = before

    return undo


def _changed(
    model: NDArray[np.float32], indices: ArrayLike, values: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Where, what is there, and what comes there."""
    if model.dtype != np.float32 or values.dtype != np.float32:
        raise InvalidInputError(f"Model and update are float32 vectors, not {model.dtype} and {values.dtype}.")
    where = ascending(indices, model.size)
    if values.shape != where.shape:
        raise InvalidInputError(f"{where.size} coordinates need as many values, but the update has {values.size}.")
    before = model[where]
    changed = _difference(before, values)
    if not np.isfinite(changed).all():
        first = int(where[np.argmin(np.isfinite(changed))])
        raise NonFiniteError(f"Applying the update makes parameter {first} of the model infinite or NaN; it is not applied.")
    return where, before, changed


def _difference(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """left - right as IEEE arithmetic rounds it, also in a process in which a library takes subnormal numbers for zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = left - right
    tiny = (_magnitude(left) < _TINY) & (_magnitude(right) < _TINY)  # elsewhere no subnormal number has a part in it
    if tiny.any():
        result[tiny] = _tiny_difference(left[tiny], right[tiny])
    return result


def _tiny_difference(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """In whole multiples of the least float32, which int64 and float64 hold exactly for numbers below `_TINY`."""
    steps = _in_steps(left) - _in_steps(right)
    subnormal = np.abs(steps) < 1 << 23
    rounded = (np.where(subnormal, 0, steps) * 2.0**-149).astype(np.float32)
    bits = np.where(subnormal, np.abs(steps).astype(np.uint32), rounded.view(np.uint32))
    negative = (steps < 0) | ((left.view(np.uint32) == _SIGN) & (right.view(np.uint32) == 0))  # -0 - 0 is -0
    return np.where(negative, bits | _SIGN, bits).view(np.float32)


def _in_steps(values: NDArray[np.float32]) -> NDArray[np.int64]:
    magnitude = _magnitude(values)
    exponent = np.maximum(magnitude >> 23, 1).astype(np.int64)
    fraction = (magnitude & 0x7FFFFF).astype(np.int64) | np.where(magnitude >> 23, 1 << 23, 0)
    steps: NDArray[np.int64] = fraction << (exponent - 1)
    steps[np.signbit(values)] *= -1
    return steps


def _magnitude(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bits without the sign, in the order of the absolute values."""
    return values.view(np.uint32) & ~_SIGN


def _linear(wanted: NDArray[np.float64], kind: type[np.signedinteger[Any]]) -> tuple[NDArray[Any], np.float32]:
    largest = int(np.iinfo(kind).max)
    peak = max(float(wanted.max()), -float(wanted.min())) if wanted.size else 0.0
    scale = min(np.float32(peak / largest), _LARGEST_SCALE)
    # A subnormal scale may be flushed to zero on some machines and not on others: send zeros, keep all in the residual.
    if scale < _FLOAT32.smallest_normal:
        return np.zeros(wanted.size, dtype=kind), np.float32(0)
    levels = wanted / float(scale)
    np.rint(levels, out=levels)
    return np.clip(levels, -largest, largest, out=levels).astype(kind), scale


def _plain(wanted: NDArray[np.float64]) -> tuple[NDArray[np.float32], np.float32]:
    levels = wanted.astype(np.float32)
    levels[np.abs(wanted) < _FLOAT32.smallest_normal] = 0.0
    return levels, np.float32(1)


def _require_finite(vector: NDArray[Any], what: str) -> None:
    finite = np.isfinite(vector)
    if not finite.all():
        first = int(np.argmin(finite))
        raise NonFiniteError(f"{what} holds {vector[first]} at position {first}; every entry must be finite.")
