"""A silo's state as documents: the journal as JSON, pending values and the model as notes and arrays, and changes of the model.

`state` and `memory_files` decide which of them is written where, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates
from fedrep.privacy import Ledger
from fedrep.protocol.error_memory import Contribution, ErrorMemory, Pending, Place
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Descent
from fedrep.protocol.model_state import ModelState, decode_descent, next_link
from fedrep.protocol.silo_rules import STATEMENT_ROUNDS
from fedrep.protocol.silo_state import Journal
from fedrep.secagg.keys import load_verify_key

Arrays = dict[str, NDArray[Any]]
Vector = NDArray[np.float32]


def journal_notes(journal: Journal) -> dict[str, Any]:
    return {
        "run": journal.run,
        "last_round": journal.last_round,
        "revealed": journal.revealed[-STATEMENT_ROUNDS:],
        "renounced": journal.renounced[-STATEMENT_ROUNDS:],
        "ledger": journal.ledger.to_dict(),
        "proposal": journal.proposal,
        "origin": journal.origin,
        "orders": journal.orders,
        "c1": journal.c1,
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
        tuple(document.get("orders", ())),
        document.get("c1", ""),
    )


def changed_memory(old: ErrorMemory, notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ErrorMemory:
    """By a record of an earlier release: u as changes of u, or of the g that was pending."""
    base = old.residual
    if notes["base"] == "g":
        if old.pending is None:
            raise ValueError("a change of g without values whose fate is open")
        base = old.pending.contribution.g
    residual = base.copy()
    residual[arrays["residual.indices"]] = arrays["residual.values"]
    pending = None if notes["settled"] else old.pending
    return ErrorMemory(residual, pending, notes["given_up"], notes["clipped_mass"])


def model_notes(model: ModelState) -> dict[str, Any]:
    return {"version": model.version, "hash": model.hash.hex(), "chain": model.chain.hex()}


def model_from(notes: Mapping[str, Any], vector: Vector) -> ModelState:
    return ModelState(vector, notes["version"], bytes.fromhex(notes["hash"]), bytes.fromhex(notes["chain"]))


def model_change(before: ModelState, model: ModelState) -> tuple[dict[str, Any], Arrays] | None:
    """The update that led from `before` to `model`, as it came; None if none did."""
    descent = model.descent
    if descent is None or next_link(before.chain, model.version, model.hash) != model.chain:
        return None
    notes = model_notes(model) | {"scale": descent.scale, "bits": descent.bits}
    return notes, {name: np.frombuffer(getattr(descent, name), np.uint8) for name in ("coordinates", "levels")}


def change_model(vector: Vector, notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """In place; records of earlier releases hold the changed values themselves."""
    if "model.indices" in arrays:
        vector[arrays["model.indices"]] = arrays["model.values"]
        return
    descent = Descent(arrays["coordinates"].tobytes(), arrays["levels"].tobytes(), notes["scale"], notes["bits"])
    indices = decode_coordinates(descent.coordinates, vector.size)
    vector[indices] -= decode_descent(descent, indices.size)


def pending_from(
    found: Mapping[str, Any], g: Vector, indices: NDArray[np.int64], sent: Vector, coordinates: bytes = b""
) -> Pending:
    place = Place(
        RunHash(bytes.fromhex(found["run"])),
        found["round"],
        SiloName(found["silo"]),
        found["buffer"],
        bytes.fromhex(found.get("c1", "")),
        bytes.fromhex(found["c2"]),
        found["min_survivors"],
        found["byzantine"],
        found["colluders"],
        {SiloName(name): load_verify_key(bytes.fromhex(key)) for name, key in found["holders"].items()},
    )
    contribution = Contribution(found["training"], found["version"], g)
    return Pending(place, contribution, found["clip_range"], indices, sent, coordinates)


def pending_notes(pending: Pending) -> dict[str, Any]:
    place = pending.place
    return {
        "run": place.run.hex(),
        "round": place.round,
        "silo": place.silo,
        "buffer": place.buffer,
        "c1": place.c1.hex(),
        "c2": place.c2.hex(),
        "min_survivors": place.min_survivors,
        "byzantine": place.byzantine,
        "colluders": place.colluders,
        "holders": {name: key.encoded.hex() for name, key in place.holders.items()},
        "training": pending.contribution.training,
        "version": pending.contribution.version,
        "clip_range": pending.clip_range,
    }
