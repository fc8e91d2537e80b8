"""A silo's state as documents: the journal as JSON, the error memory and the model as arrays with notes, and changes of vectors.

`state` decides which of them is written where, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.privacy import Ledger
from fedrep.protocol.error_memory import Contribution, ErrorMemory, Pending, Place
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_rules import STATEMENT_ROUNDS
from fedrep.protocol.silo_state import Journal, TrainerState
from fedrep.secagg.keys import load_verify_key

Arrays = dict[str, NDArray[Any]]
Vector = NDArray[np.float32]
SPARSE = 8  # a change is worth writing alone while it is at most one value in so many


@dataclass(frozen=True, slots=True)
class Patch:
    """Where a vector changed, and to what."""

    indices: NDArray[Any] = field(repr=False)
    values: Vector = field(repr=False)

    @classmethod
    def between(cls, old: Vector, new: Vector) -> Patch | None:
        """None if so much changed that the whole is as cheap. Compared by bits, so that -0.0 and NaN come back too."""
        if old.shape != new.shape:
            return None
        changed = np.flatnonzero(old.view(np.uint32) != new.view(np.uint32))
        if changed.size * SPARSE > new.size:
            return None
        return cls(changed.astype(np.uint32 if new.size <= 2**32 else np.uint64), new[changed])

    def applied(self, old: Vector) -> Vector:
        new = old.copy()
        new[self.indices] = self.values
        return new

    def arrays(self, name: str) -> Arrays:
        return {f"{name}.indices": self.indices, f"{name}.values": self.values}

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, NDArray[Any]]) -> Patch:
        return cls(arrays[f"{name}.indices"], arrays[f"{name}.values"])


def journal_notes(journal: Journal) -> dict[str, Any]:
    return {
        "run": journal.run,
        "last_round": journal.last_round,
        "revealed": journal.revealed[-STATEMENT_ROUNDS:],
        "renounced": journal.renounced[-STATEMENT_ROUNDS:],
        "ledger": journal.ledger.to_dict(),
        "proposal": journal.proposal,
        "origin": journal.origin,
    }


def journal_from(document: Mapping[str, Any]) -> Journal:
    proposal = document["proposal"]
    return Journal(
        document["run"],
        document["last_round"],
        tuple(document["revealed"]),
        tuple(document["renounced"]),
        Ledger.from_dict(document["ledger"]),
        tuple(proposal) if proposal is not None else None,
        document.get("origin", ""),
    )


def memory_document(memory: ErrorMemory, trainer: TrainerState) -> tuple[dict[str, Any], Arrays]:
    """Notes and arrays of the whole memory, with the trainer's state that belongs to it."""
    arrays: Arrays = {"residual": memory.residual}
    notes: dict[str, Any] = {"given_up": memory.given_up, "clipped_mass": memory.clipped_mass, "pending": []}
    if memory.pending is not None:
        pending = memory.pending
        arrays |= {"pending.indices": pending.indices, "pending.sent": pending.sent, "pending.before": pending.before}
        arrays["pending.g"] = pending.contribution.g
        notes["pending"] = [_pending_notes(pending)]
    arrays |= {f"trainer.{name}": np.asarray(array, order="C") for name, array in trainer.items()}
    return notes, arrays


def memory_change(old: ErrorMemory, new: ErrorMemory) -> tuple[dict[str, Any], Arrays] | None:
    """How `new` follows from `old`, where little changed: what was pending stays or is settled, and u is a patch of u or of g."""
    if new.pending is not None and new.pending is not old.pending:
        return None
    bases = {"residual": old.residual} | ({"g": old.pending.contribution.g} if old.pending is not None else {})
    for name, base in bases.items():
        patch = Patch.between(base, new.residual)
        if patch is not None:
            settled = new.pending is None
            notes = {"base": name, "settled": settled, "given_up": new.given_up, "clipped_mass": new.clipped_mass}
            return notes, patch.arrays("residual")
    return None


def changed_memory(old: ErrorMemory, notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ErrorMemory:
    base = old.residual
    if notes["base"] == "g":
        if old.pending is None:
            raise ValueError("a change of g without values whose fate is open")
        base = old.pending.contribution.g
    residual = Patch.of("residual", arrays).applied(base)
    pending = None if notes["settled"] else old.pending
    return ErrorMemory(residual, pending, notes["given_up"], notes["clipped_mass"])


def model_notes(model: ModelState) -> dict[str, Any]:
    return {"version": model.version, "hash": model.hash.hex(), "chain": model.chain.hex()}


def model_from(notes: Mapping[str, Any], vector: Vector) -> ModelState:
    return ModelState(vector, notes["version"], bytes.fromhex(notes["hash"]), bytes.fromhex(notes["chain"]))


def memory_from(notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ErrorMemory:
    """A file of version 1 kept no g: its pending values had left the residual already, and are given up."""
    memory = ErrorMemory(arrays["residual"], None, notes["given_up"], notes.get("clipped_mass", 0.0))
    if not notes["pending"]:
        return memory
    if "pending.g" not in arrays:
        return replace(memory, given_up=memory.given_up + len(notes["pending"]))
    (found,) = notes["pending"]
    place = Place(
        RunHash(bytes.fromhex(found["run"])),
        found["round"],
        SiloName(found["silo"]),
        found["buffer"],
        bytes.fromhex(found["c2"]),
        found["min_survivors"],
        found["byzantine"],
        found["colluders"],
        {SiloName(name): load_verify_key(bytes.fromhex(key)) for name, key in found["holders"].items()},
    )
    contribution = Contribution(found["training"], found["version"], arrays["pending.g"])
    values = (arrays["pending.indices"], arrays["pending.sent"], arrays["pending.before"])
    return replace(memory, pending=Pending(place, contribution, found["clip_range"], *values))


def _pending_notes(pending: Pending) -> dict[str, Any]:
    place = pending.place
    return {
        "run": place.run.hex(),
        "round": place.round,
        "silo": place.silo,
        "buffer": place.buffer,
        "c2": place.c2.hex(),
        "min_survivors": place.min_survivors,
        "byzantine": place.byzantine,
        "colluders": place.colluders,
        "holders": {name: key.encoded.hex() for name, key in place.holders.items()},
        "training": pending.contribution.training,
        "version": pending.contribution.version,
        "clip_range": pending.clip_range,
    }
