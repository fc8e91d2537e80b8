"""What one round does to the model, kept instead of the whole of it: a version is the last checkpoint and the steps since.

A step is the update as silos got it, and what the downlink residual became on I. It also answers silos that ask for the update of
a past round.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates
from fedrep.protocol.messages import Descent
from fedrep.protocol.model_state import decode_descent

CHECKPOINT_EVERY = 16  # steps after which the whole model is written again
TENSORS = ("coordinates", "levels", "residual")

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StoredStep:
    """From the version before to `version`. `residual` is the downlink residual on I after it."""

    version: int
    descent: Descent = field(repr=False)
    residual: Vector = field(repr=False)
    hash: bytes
    chain: bytes

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {
            "coordinates": np.frombuffer(self.descent.coordinates, np.uint8),
            "levels": np.frombuffer(self.descent.levels, np.uint8),
            "residual": np.ascontiguousarray(self.residual, "<f4"),
        }

    def notes(self) -> dict[str, Any]:
        notes = {
            "version": self.version,
            "hash": self.hash.hex(),
            "chain": self.chain.hex(),
            "scale": self.descent.scale,
            "bits": self.descent.bits,
        }
        return notes | {"checksum": _checksum(notes, self.tensors())}

    def apply_to(self, vector: Vector, residual: Vector) -> None:
        """In place, by the same float32 operations as when it was first applied."""
        indices = decode_coordinates(self.descent.coordinates, vector.size)
        vector[indices] -= decode_descent(self.descent, indices.size)
        residual[indices] = self.residual


def step_from(notes: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> StoredStep:
    """ValueError, KeyError or TypeError for what is damaged."""
    plain = {name: value for name, value in notes.items() if name != "checksum"}
    if notes["checksum"] != _checksum(plain, {name: tensors[name] for name in TENSORS}):
        raise ValueError("its bytes do not have its checksum")
    descent = Descent(tensors["coordinates"].tobytes(), tensors["levels"].tobytes(), notes["scale"], notes["bits"])
    residual = tensors["residual"].view("<f4").astype(np.float32, copy=False)
    version = version_number(notes["version"])
    return StoredStep(version, descent, residual, bytes.fromhex(notes["hash"]), bytes.fromhex(notes["chain"]))


def version_number(value: Any) -> int:
    """Versions are in the names of files, and may come out of a backup that somebody else has written."""
    number = int(operator.index(value))
    if number < 0:
        raise ValueError(f"{number} is no version of a model: versions are whole numbers from 0 on")
    return number


def way_to(version: int, checkpoints: Iterable[int], steps: AbstractSet[int]) -> tuple[int, range] | None:
    """The checkpoint to start from and the steps to take; None if that version cannot be reached."""
    start = max((each for each in checkpoints if each <= version), default=None)
    if start is None or any(each not in steps for each in range(start + 1, version + 1)):
        return None
    return start, range(start + 1, version + 1)


def needed_for(keep: AbstractSet[int], checkpoints: AbstractSet[int], steps: AbstractSet[int]) -> tuple[set[int], set[int]]:
    """The checkpoints and steps without which some version of `keep` could not be reached."""
    ways = [way for version in keep if (way := way_to(version, checkpoints, steps)) is not None]
    return {start for start, _ in ways}, {step for _, taken in ways for step in taken}


def _checksum(notes: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    made = blake3(json.dumps(notes, sort_keys=True).encode())
    for name in TENSORS:
        made.update(f"/{name}/{tensors[name].nbytes}/".encode())
        made.update(np.ascontiguousarray(tensors[name]).view(np.uint8).data)
    return made.hexdigest()
