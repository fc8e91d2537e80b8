"""Coordinate sets and value vectors as bytes.

A coordinate set becomes the gaps between its members, each in a Rice code (Rice and Plaunt, 1971): the quotient by 2^r
in unary, the remainder in r bits. Quotients and remainders go into separate streams, so both are packed and unpacked by
whole-array operations. A message is

    count (uint32) | r (uint8) | floor(r/8) byte planes of the remainders | their other r mod 8 bits | unary quotients

with everything little-endian and every stream padded with zero bits to whole bytes. Hashes and signatures cover these
bytes, so exactly one message stands for each set: r is the smallest of the cheapest parameters, and the decoder refuses
any other, as it refuses padding that is not zero and bytes left over.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fedrep.errors import DecodeError, InvalidInputError
from fedrep.sparsify import ascending

LARGEST_DIMENSION: Final = 2**32 - 1
HEADER_BYTES: Final = 5

_HEADER = struct.Struct("<IB")
_VALUE_DTYPES: Final = frozenset(np.dtype(kind) for kind in ("u1", "u2", "u4", "i2", "f4"))

Buffer = bytes | bytearray | memoryview


def encode_coordinates(indices: ArrayLike, d: int) -> bytes:
    """The one message that stands for this set of coordinates in [0, d)."""
    _check_dimension(d)
    members = ascending(indices, d)
    if members.size == 0:
        return _HEADER.pack(0, 0)
    gaps = np.empty(members.size, dtype=_gap_dtype(d))
    gaps[0] = members[0]
    np.subtract(members[1:], members[:-1], out=gaps[1:], casting="same_kind")
    gaps[1:] -= 1
    scratch = np.empty_like(gaps)
    r = _cheapest_parameter(gaps, d, scratch)
    remainders = _pack_remainders(gaps, r, scratch)
    return b"".join((_HEADER.pack(members.size, r), remainders, _pack_quotients(gaps, r, scratch)))


def decode_coordinates(data: Buffer, d: int, max_count: int | None = None) -> NDArray[np.int64]:
    """The set a message stands for. Memory stays in proportion to the message, whatever its header claims."""
    _check_dimension(d)
    message = np.frombuffer(data, dtype=np.uint8)
    if message.size < HEADER_BYTES:
        raise DecodeError(f"A coordinate set has a header of {HEADER_BYTES} bytes; only {message.size} arrived.")
    count, r = _HEADER.unpack_from(data)
    _check_header(count, r, d, max_count)
    if count == 0:
        if message.size > HEADER_BYTES:
            raise DecodeError("An empty coordinate set ends after its header, but more bytes follow.")
        return np.empty(0, dtype=np.int64)
    start = HEADER_BYTES + _remainder_bytes(count, r)
    # With the cheapest parameter the quotients of n gaps add up to at most 2n, hence at most 3n unary bits.
    unary_bits = count + min(2 * count, (d - count) >> r)
    if not start + _whole_bytes(count) <= message.size <= start + _whole_bytes(unary_bits):
        raise DecodeError(f"A set of {count} coordinates with parameter {r} cannot take {message.size} bytes.")
    ends = _unpack_ends(message[start:], count, (d - count) >> r)
    gaps = np.empty(count, dtype=_gap_dtype(d))
    gaps[0] = ends[0]
    np.subtract(ends[1:], ends[:-1], out=gaps[1:], casting="same_kind")
    gaps[1:] -= 1
    gaps <<= r
    gaps |= _unpack_remainders(message[HEADER_BYTES:start], count, r)
    if int(gaps.sum(dtype=np.int64)) > d - count:
        raise DecodeError(f"The last coordinate lies outside [0, {d}).")
    if not _is_cheapest(gaps, r, np.empty_like(gaps)):
        raise DecodeError(f"The parameter {r} is not the cheapest for this set; only the shortest message is accepted.")
    members = ends
    members[...] = gaps
    members[1:] += 1
    return np.cumsum(members, out=members)


def encode_values(values: NDArray[Any]) -> bytes:
    """Ring elements, levels or float32 values, little-endian, one after the other."""
    if values.ndim != 1 or values.dtype.newbyteorder("=") not in _VALUE_DTYPES:
        raise InvalidInputError(f"Values travel as one vector of 8, 16 or 32 bits each, not as {values.dtype}.")
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_values(data: Buffer, dtype: DTypeLike, count: int) -> NDArray[Any]:
    """Exactly `count` values. The result is read-only: on little-endian machines it shares the message's memory."""
    wanted = np.dtype(dtype)
    if wanted not in _VALUE_DTYPES or count < 0:
        raise InvalidInputError(f"Cannot read {count} values of {wanted}; they have 8, 16 or 32 bits each.")
    size = memoryview(data).nbytes
    if size != count * wanted.itemsize:
        raise DecodeError(f"{count} values of {wanted} take {count * wanted.itemsize} bytes, but {size} arrived.")
    values = np.frombuffer(data, dtype=wanted.newbyteorder("<")).astype(wanted, copy=False)
    values.flags.writeable = False
    return values


def _check_dimension(d: int) -> None:
    if not 1 <= d <= LARGEST_DIMENSION:
        raise InvalidInputError(f"Coordinates are coded for 1 to {LARGEST_DIMENSION} parameters, not {d}.")


def _check_header(count: int, r: int, d: int, max_count: int | None) -> None:
    if count > d:
        raise DecodeError(f"A set of {count} distinct coordinates does not fit into [0, {d}).")
    if max_count is not None and count > max_count:
        raise DecodeError(f"The set claims {count} coordinates; at most {max_count} are expected here.")
    if r and (count == 0 or (1 << r) >= d):
        raise DecodeError(f"The parameter {r} is never used for {count} coordinates in [0, {d}).")


def _gap_dtype(d: int) -> np.dtype[Any]:
    return np.dtype(np.int32 if d < 2**31 else np.int64)


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8)


def _saved_by_one_more(gaps: NDArray[Any], r: int, scratch: NDArray[Any]) -> int:
    """How many bits shorter the code with r + 1 is than the one with r. Falls as r grows, so one minimum exists."""
    np.right_shift(gaps, r, out=scratch)
    scratch += 1
    scratch >>= 1
    # The gaps of a set in [0, d) add up to less than d, so their own type holds this sum.
    return int(scratch.sum(dtype=scratch.dtype)) - gaps.size


def _is_cheapest(gaps: NDArray[Any], r: int, scratch: NDArray[Any]) -> bool:
    return _saved_by_one_more(gaps, r, scratch) <= 0 and (r == 0 or _saved_by_one_more(gaps, r - 1, scratch) > 0)


def _cheapest_parameter(gaps: NDArray[Any], d: int, scratch: NDArray[Any]) -> int:
    # The start is right for most uniform sets; from any start the walk ends at the same place.
    r = max(0, int(0.69 * (d - gaps.size) / gaps.size).bit_length() - 1)
    while _saved_by_one_more(gaps, r, scratch) > 0:
        r += 1
    while r > 0 and _saved_by_one_more(gaps, r - 1, scratch) <= 0:
        r -= 1
    return r


def _pack_quotients(gaps: NDArray[Any], r: int, scratch: NDArray[Any]) -> bytes:
    np.right_shift(gaps, r, out=scratch)
    scratch += 1
    np.cumsum(scratch, out=scratch)
    bits = np.zeros(int(scratch[-1]) + 1, dtype=np.bool_)
    bits[scratch.astype(np.intp, copy=False)] = True
    return np.packbits(bits[1:], bitorder="little").tobytes()


def _unpack_ends(stream: NDArray[np.uint8], count: int, largest_total: int) -> NDArray[np.int64]:
    """Where each unary quotient ends."""
    if stream[-1] == 0:
        raise DecodeError("The coordinate set ends in superfluous bytes.")
    ends = np.flatnonzero(np.unpackbits(stream, bitorder="little").view(np.bool_))
    if ends.size != count:
        raise DecodeError(f"The header claims {count} coordinates, but {ends.size} are there.")
    # Checked before any shift, so that no quotient of a lying message can overflow.
    if int(ends[-1]) + 1 - count > largest_total:
        raise DecodeError("The last coordinate lies outside the model.")
    return ends


def _remainder_bytes(count: int, r: int) -> int:
    return count * (r // 8) + _whole_bytes(count * (r % 8))


def _pack_remainders(gaps: NDArray[Any], r: int, scratch: NDArray[Any]) -> bytes:
    planes = [(gaps >> (8 * plane)).astype(np.uint8).tobytes() for plane in range(r // 8)]
    width = r % 8
    if width:
        np.right_shift(gaps, r - width, out=scratch)
        scratch &= (1 << width) - 1
        planes.append(_pack_groups(scratch, width))
    return b"".join(planes)


def _pack_groups(small: NDArray[Any], width: int) -> bytes:
    """Eight values of `width` bits fill `width` bytes: the low bytes of one 64-bit word."""
    groups = _whole_bytes(small.size)
    columns = np.zeros((groups, 8), dtype=np.uint8)
    columns.reshape(-1)[: small.size] = small
    words = columns[:, 0].astype(np.uint64)
    shifted = np.empty_like(words)
    for place in range(1, 8):
        shifted[...] = columns[:, place]
        shifted <<= np.uint64(width * place)
        words |= shifted
    packed = words.astype("<u8", copy=False).view(np.uint8).reshape(groups, 8)[:, :width]
    return packed.tobytes()[: _whole_bytes(small.size * width)]


def _unpack_groups(stream: NDArray[np.uint8], count: int, width: int) -> NDArray[np.uint8]:
    groups = _whole_bytes(count)
    packed = np.zeros(groups * width, dtype=np.uint8)
    packed[: stream.size] = stream
    spread = np.zeros((groups, 8), dtype=np.uint8)
    spread[:, :width] = packed.reshape(groups, width)
    words = spread.view("<u8").reshape(groups).astype(np.uint64, copy=False)
    columns = np.empty((groups, 8), dtype=np.uint8)
    for place in range(8):
        columns[:, place] = words
        words >>= np.uint64(width)
    columns &= np.uint8((1 << width) - 1)
    small = columns.reshape(-1)
    if small[count:].any():
        raise DecodeError("The padding after the remainders of a coordinate set must be zero.")
    return small[:count]


def _unpack_remainders(stream: NDArray[np.uint8], count: int, r: int) -> NDArray[Any]:
    whole, width = divmod(r, 8)
    top = _unpack_groups(stream[count * whole :], count, width) if width else np.zeros(count, dtype=np.uint8)
    if whole == 0:
        return top
    remainders = top.astype(np.int64)
    for plane in reversed(range(whole)):
        remainders <<= 8
        remainders |= stream[plane * count : (plane + 1) * count]
    return remainders
