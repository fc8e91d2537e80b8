"""Pairwise and self masks over a ring of native integers (Bonawitz et al., CCS 2017, section 4).

Two mates add the same keystream with opposite signs, so it cancels in the sum over the whole buffer and in no smaller
sum. The self mask stays until the holders reveal its seed: a silo falsely called dropped is not readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.secagg.keys import AgreementKey, SecretBytes, derive
from fedrep.secagg.keystream import BLOCK_BYTES, PIECE_BYTES, Keystream

RingVector: TypeAlias = NDArray[np.unsignedinteger[Any]]
RingDtype: TypeAlias = np.dtype[np.unsignedinteger[Any]]

# Little-endian on every machine, because mates on different machines must read the same integers from one keystream.
_RING_DTYPES: dict[int, RingDtype] = {8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
RING_BITS = tuple(_RING_DTYPES)

# Below this much of the vector, starting a thread costs more than it saves.
_BYTES_PER_THREAD = 512 * 1024


def ring_dtype(bits: int) -> RingDtype:
    """The integers modulo 2^bits, as numpy adds them."""
    try:
        return _RING_DTYPES[bits]
    except KeyError:
        raise InvalidInputError(f"A ring of {bits} bits is not supported; choose 8, 16 or 32.") from None


@dataclass(frozen=True)
class Mask:
    """A keystream and the sign with which its silo adds it."""

    key: SecretBytes
    sign: int

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise InvalidInputError(f"a mask is added (+1) or subtracted (-1), its sign cannot be {self.sign}")


def pair_mask(own: AgreementKey, own_name: str, mate_name: str, mate_public: bytes, c2: bytes, buffer: int) -> Mask:
    own_bytes, mate_bytes = own_name.encode(), mate_name.encode()
    if own_bytes == mate_bytes:
        raise InvalidInputError(f"{own_name!r} cannot be its own mate; a pair mask needs two silos")
    adds = own_bytes < mate_bytes
    smaller, larger = (own_name, mate_name) if adds else (mate_name, own_name)
    key = derive(own.exchange(mate_public), "pair", c2, buffer, smaller, larger)
    return Mask(SecretBytes(key), 1 if adds else -1)


def self_mask(seed: SecretBytes, name: str, c2: bytes, buffer: int) -> Mask:
    return Mask(SecretBytes(derive(seed, "self", c2, buffer, name)), 1)


class MaskStream:
    """Masks a vector that arrives in pieces: each `apply` continues the keystreams where the last one stopped."""

    def __init__(
        self, masks: Sequence[Mask], dtype: RingDtype, *, negate: bool = False, first_block: int = 0, expected: int = 0
    ) -> None:
        """`expected` is how many bytes the whole vector has, where that is known."""
        self._dtype = _checked_dtype(dtype)
        self._streams = [
            (Keystream(mask.key, first_block, expected), np.subtract if (mask.sign < 0) != negate else np.add) for mask in masks
        ]
        self._scratch = np.empty(0, dtype=np.uint8)

    def apply(self, chunk: RingVector, out: RingVector | None = None) -> None:
        """Adds the next part of every mask to `chunk`, in place (or into `out`) and modulo 2^bits."""
        target = chunk if out is None else out
        _check_dtype(chunk, self._dtype)
        _check_vector(target, self._dtype)
        step = PIECE_BYTES // self._dtype.itemsize
        if self._scratch.size < min(chunk.nbytes, PIECE_BYTES):
            self._scratch = np.empty(min(chunk.nbytes, PIECE_BYTES), dtype=np.uint8)
        for start in range(0, chunk.size, step):
            # A piece stays in cache while all masks pass over it: the vector is read from memory once, not per mask.
            piece, masked = chunk[start : start + step], target[start : start + step]
            scratch = self._scratch[: piece.nbytes]
            mask_piece = scratch.view(self._dtype)
            for stream, operation in self._streams:
                stream.fill(scratch)
                operation(piece, mask_piece, out=masked)
                piece = masked


class MaskedCopy:
    """Masks a vector that arrives in pieces and must itself stay as it is; `message` is what is sent of it."""

    def __init__(self, masks: Sequence[Mask], dtype: RingDtype, count: int) -> None:
        if not masks:
            raise InvalidInputError("a vector without any mask is never sent")
        self._masked = np.empty(count, dtype=_checked_dtype(dtype))
        self._stream = MaskStream(masks, dtype, expected=self._masked.nbytes)
        self._filled = 0

    def append(self, chunk: RingVector) -> None:
        target = self._masked[self._filled : self._filled + chunk.size]
        if target.shape != chunk.shape:
            raise InvalidInputError(f"{chunk.size} values more do not fit: {self._filled} of {self._masked.size} came before")
        self._stream.apply(chunk, target)
        self._filled += chunk.size

    def message(self) -> memoryview:
        """Little-endian ring integers, as `coding.encode_values` writes them, but read-only in place of a second copy."""
        if self._filled < self._masked.size:
            raise InvalidInputError(f"only {self._filled} of {self._masked.size} values were masked; the rest is not sent")
        return self._masked.view(np.uint8).data.toreadonly()


def add_masks(vector: RingVector, masks: Sequence[Mask], *, negate: bool = False, threads: int = 1) -> None:
    """Adds every mask to `vector` in place (with `negate`, takes them off again).

    Counter mode can start at any block, so each thread masks its own stretch of the vector with streams of its own; the
    result does not depend on `threads`.
    """
    dtype = _checked_dtype(vector.dtype)
    _check_vector(vector, dtype)
    if threads < 1:
        raise InvalidInputError(f"masking needs at least one thread, not {threads}")
    workers = min(threads, max(1, vector.nbytes // _BYTES_PER_THREAD))
    if workers == 1:
        MaskStream(masks, dtype, negate=negate, expected=vector.nbytes).apply(vector)
        return
    blocks = -(-vector.nbytes // (BLOCK_BYTES * workers))
    step = blocks * BLOCK_BYTES // dtype.itemsize

    def mask_stretch(index: int) -> None:
        stretch = vector[index * step : (index + 1) * step]
        MaskStream(masks, dtype, negate=negate, first_block=index * blocks).apply(stretch)

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(mask_stretch, range(workers)):
            pass


def _checked_dtype(dtype: np.dtype[Any]) -> RingDtype:
    if dtype.kind != "u" or dtype.itemsize not in (1, 2, 4) or _RING_DTYPES[8 * dtype.itemsize] != dtype:
        raise InvalidInputError(f"masks are added to little-endian unsigned integers of 8 to 32 bits, not to {dtype}")
    return _RING_DTYPES[8 * dtype.itemsize]


def _check_dtype(vector: RingVector, dtype: RingDtype) -> None:
    if vector.dtype != dtype:
        raise InvalidInputError(f"this mask stream runs over {dtype}, but the chunk holds {vector.dtype}")


def _check_vector(vector: RingVector, dtype: RingDtype) -> None:
    _check_dtype(vector, dtype)
    if vector.ndim != 1 or not vector.flags.c_contiguous or not vector.flags.writeable:
        raise InvalidInputError("masks are added in place: the vector must be flat, contiguous and writeable")
