"""The model on both sides of the wire: same float32 operations, hence the same bits, checked by a hash chain.

The server adds its rounding residual before it codes G in 8 or 16 bits; both then subtract the same dequantized values.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates
from fedrep.downlink import apply_in_place, apply_update, decode_update, encode_update
from fedrep.errors import DecodeError, FedrepError, RefusedError
from fedrep.protocol.messages import Descent, ModelName, Update
from fedrep.secagg.transcript import digest, digest_of_large
from fedrep.sparsify import gather

SHA256_SIZE = 32
# A hash says itself how it was made: 33 bytes, the first of them this, are BLAKE3; 32 bytes are SHA-256, as in runs of before.
BLAKE3 = b"\x1e"
_CONTEXT = "fedrep/v1 fedrep/model"
_WORTH_THREADS = 1 << 24  # bytes: below, handing the work out and waiting for it costs more than it saves
_OWN = 3  # what refers to a vector that nobody reads, as `_end_tenure` counts: its model, a name, and the question itself


def model_hash(vector: NDArray[np.float32], like: bytes = BLAKE3) -> bytes:
    """Over the little-endian float32 parameters, on all cores; of the same kind as the hash `like`."""
    parameters = np.ascontiguousarray(vector, dtype="<f4").view(np.uint8)
    if len(like) == SHA256_SIZE:
        return digest_of_large("fedrep/model", parameters.data)
    if like[:1] != BLAKE3:
        raise RefusedError(
            "the model's hash is of a kind that this release does not know: upgrade fedrep to the release that created the run",
            reason="UNKNOWN_HASH",
        )
    threads = blake3.AUTO if parameters.nbytes >= _WORTH_THREADS else 1
    return BLAKE3 + blake3(parameters.data, derive_key_context=_CONTEXT, max_threads=threads).digest()


def first_link(hash_of_initial_model: bytes) -> bytes:
    return digest("fedrep/chain", b"", 0, hash_of_initial_model)


def next_link(previous: bytes, version: int, hash_of_model: bytes) -> bytes:
    return digest("fedrep/chain", previous, version, hash_of_model)


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model version: what it is and the chain of hashes that led to it.

    `descent` is the update that led here, with its coordinates, if an update did and this side still knows it.
    """

    vector: NDArray[np.float32]
    version: int
    hash: bytes
    chain: bytes
    descent: Descent | None = None

    @classmethod
    def initial(cls, vector: NDArray[np.float32], like: bytes = BLAKE3) -> ModelState:
        """`like` is any hash of the run: all of a run's are of one kind."""
        own = np.ascontiguousarray(vector, dtype=np.float32)
        fingerprint = model_hash(own, like)
        return cls(own, 0, fingerprint, first_link(fingerprint))

    @property
    def name(self) -> ModelName:
        return ModelName(self.version, self.hash, self.chain)

    def succeeded_by(self, vector: NDArray[np.float32]) -> ModelState:
        """Other parameters as the next version of this model: versions and the chain only go forward."""
        fingerprint = model_hash(vector, self.hash)
        return ModelState(vector, self.version + 1, fingerprint, next_link(self.chain, self.version + 1, fingerprint))

    def _advance(self, indices: NDArray[np.int64], values: NDArray[np.float32]) -> ModelState:
        return self.succeeded_by(apply_update(self.vector, indices, values))

    def follow(
        self, update: Update, indices: NDArray[np.int64], coordinates: bytes = b"", *, in_place: bool = False
    ) -> ModelState:
        """A silo's step: apply G, then insist on the hash and chain that the server announced.

        `coordinates` is I, coded, where this side knows it: what the update says about it does not count then. With `in_place`
        the next model takes this one's memory, and this one is nothing any more; unless it is refused, which leaves it as it was.
        """
        if update.descent is None:
            raise DecodeError(f"the update of round {update.round} carries no values", reason="NO_VALUES")
        values = decode_descent(update.descent, indices.size)
        undo = apply_in_place(self.vector, indices, values) if in_place else None
        after = self.succeeded_by(self.vector) if in_place else self._advance(indices, values)
        if after.name != update.model:
            if undo is not None:
                undo()
            raise RefusedError(
                f"after round {update.round} this silo's own model is not the one the server names. One of the two is wrong, and "
                "this silo stops rather than guess: ask an admin of the federation; `fedrep run rollback` mends it",
                reason="MODEL_DIVERGED",
            )
        known = coordinates or update.descent.coordinates
        return replace(after, descent=replace(update.descent, coordinates=known) if known else None)


class Tenure:
    """Whether a model still has its memory, or the next one has taken it."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


@dataclass(frozen=True, slots=True)
class ServerModel:
    """The server's side: the model and the part of past updates that 8 or 16 bits could not carry.

    Whoever reads a model while the next one may be made takes hold of its vector first, and then looks at its tenure.
    """

    state: ModelState
    residual: NDArray[np.float32]
    tenure: Tenure = field(default_factory=Tenure, compare=False, repr=False)

    @classmethod
    def initial(cls, vector: NDArray[np.float32], like: bytes = BLAKE3) -> ServerModel:
        state = ModelState.initial(vector, like)
        return cls(state, np.zeros_like(state.vector))

    @classmethod
    def lost(cls, name: ModelName) -> ServerModel:
        """One of which nothing is left but its name: no round starts from it, and another model may succeed it."""
        nothing = np.zeros(0, np.float32)
        made = cls(ModelState(nothing, name.version, name.hash, name.chain), nothing)
        made.tenure.is_over = True
        return made

    @property
    def is_lost(self) -> bool:
        return self.state.vector.size == 0

    def apply(
        self,
        indices: NDArray[np.int64],
        coordinates: bytes,
        aggregate: NDArray[np.float32],
        bits: int,
        *,
        in_place: bool = False,
    ) -> tuple[ServerModel, Descent]:
        """The next model, and what goes down to the silos; `coordinates` is `indices`, coded.

        With `in_place` the next one takes this one's memory, unless somebody else holds on to it.
        """
        if self.tenure.is_over:
            raise AssertionError("the next model has taken this one's memory: what is made from it would be made of neither")
        down = encode_update(aggregate, gather(self.residual, indices), bits)
        descent = Descent(coordinates, encode_levels(down.levels), float(down.scale), bits)
        if in_place and self._end_tenure():
            try:
                apply_in_place(self.state.vector, indices, down.values)
            except FedrepError:
                self.tenure.is_over = False  # nothing was changed
                raise
            after, residual = self.state.succeeded_by(self.state.vector), self.residual
        else:
            after, residual = self.state._advance(indices, down.values), self.residual.copy()
        residual[indices] = down.residual
        return ServerModel(after, residual), descent

    def _end_tenure(self) -> bool:
        """Said before it is asked who reads: a reader takes hold before it looks, so that one of the two sees the other."""
        self.tenure.is_over = True
        vector, residual = self.state.vector, self.residual
        owned = sys.getrefcount(vector) == _OWN and sys.getrefcount(residual) == _OWN
        self.tenure.is_over = owned and vector.flags.writeable and residual.flags.writeable
        return self.tenure.is_over


def indices_of(update: Update, parameters: int) -> NDArray[np.int64]:
    """I, as the update carries it."""
    return decode_coordinates(update.descent.coordinates if update.descent is not None else b"", parameters)


def encode_levels(levels: NDArray[np.int8] | NDArray[np.int16] | NDArray[np.float32]) -> bytes:
    return levels.astype(levels.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_descent(descent: Descent, count: int) -> NDArray[np.float32]:
    dtype = {8: "i1", 16: "<i2", 32: "<f4"}.get(descent.bits)
    if dtype is None or len(descent.levels) != count * np.dtype(dtype).itemsize:
        raise DecodeError(f"an update of {count} coordinates does not fit {len(descent.levels)} bytes at {descent.bits} bits")
    return decode_update(np.frombuffer(descent.levels, dtype=dtype), np.float32(descent.scale))
