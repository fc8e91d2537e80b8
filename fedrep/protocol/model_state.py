"""The model on both sides of the wire: same float32 operations, hence the same bits, checked by a hash chain.

The server adds its rounding residual before it codes G in 16 bits; server and silos then subtract the same dequantized values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrep.downlink import apply_update, decode_update, encode_update
from fedrep.errors import DecodeError, RefusedError
from fedrep.protocol.messages import Update
from fedrep.secagg.transcript import digest
from fedrep.sparsify import gather


def model_hash(vector: NDArray[np.float32]) -> bytes:
    """SHA-256 over the little-endian float32 parameters, with a tag."""
    return digest("fedrep/model", np.ascontiguousarray(vector, dtype="<f4").tobytes())


def first_link(hash_of_initial_model: bytes) -> bytes:
    return digest("fedrep/chain", b"", 0, hash_of_initial_model)


def next_link(previous: bytes, version: int, hash_of_model: bytes) -> bytes:
    return digest("fedrep/chain", previous, version, hash_of_model)


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model version: what it is and the chain of hashes that led to it."""

    vector: NDArray[np.float32]
    version: int
    hash: bytes
    chain: bytes

    @classmethod
    def initial(cls, vector: NDArray[np.float32]) -> ModelState:
        own = np.ascontiguousarray(vector, dtype=np.float32)
        fingerprint = model_hash(own)
        return cls(own, 0, fingerprint, first_link(fingerprint))

    def succeeded_by(self, vector: NDArray[np.float32]) -> ModelState:
        """Other parameters as the next version of this model: versions and the chain only go forward."""
        fingerprint = model_hash(vector)
        return ModelState(vector, self.version + 1, fingerprint, next_link(self.chain, self.version + 1, fingerprint))

    def _advance(self, indices: NDArray[np.int64], values: NDArray[np.float32]) -> ModelState:
        return self.succeeded_by(apply_update(self.vector, indices, values))

    def follow(self, update: Update, indices: NDArray[np.int64]) -> ModelState:
        """A silo's step: apply G, then insist on the hash and chain that the server announced."""
        values = decode_levels(update.levels, update.scale, update.downlink_bits, indices.size)
        after = self._advance(indices, values)
        if (after.version, after.hash, after.chain) != (update.model_version, update.model_hash, update.chain):
            raise RefusedError(
                f"after round {update.round} this silo's model differs from the server's; fetch the model again",
                reason="MODEL_DIVERGED",
            )
        return after


@dataclass(frozen=True, slots=True)
class ServerModel:
    """The server's side: the model and the part of past updates that 16 bits could not carry."""

    state: ModelState
    residual: NDArray[np.float32]

    @classmethod
    def initial(cls, vector: NDArray[np.float32]) -> ServerModel:
        state = ModelState.initial(vector)
        return cls(state, np.zeros_like(state.vector))

    def apply(self, indices: NDArray[np.int64], aggregate: NDArray[np.float32], bits: int) -> tuple[ServerModel, bytes, float]:
        """The next model, and (levels, scale) as they go down to the silos."""
        down = encode_update(aggregate, gather(self.residual, indices), bits)
        residual = self.residual.copy()
        residual[indices] = down.residual
        after = self.state._advance(indices, down.values)
        return replace(self, state=after, residual=residual), encode_levels(down.levels), float(down.scale)


def encode_levels(levels: NDArray[np.int16] | NDArray[np.float32]) -> bytes:
    return levels.astype(levels.dtype.newbyteorder("<"), copy=False).tobytes()


def decode_levels(data: bytes, scale: float, bits: int, count: int) -> NDArray[np.float32]:
    dtype = {16: "<i2", 32: "<f4"}.get(bits)
    if dtype is None or len(data) != count * np.dtype(dtype).itemsize:
        raise DecodeError(f"an update of {count} coordinates does not fit {len(data)} bytes at {bits} bits")
    return decode_update(np.frombuffer(data, dtype=dtype), np.float32(scale))
