"""The silo's memory on disk. Three files, each replaced whole, each written before the message that depends on it.

    journal.json        round number, "revealed" and "renounced" rounds, epsilon ledger, last proposal   before speaking
    memory.safetensors  residual, pending values with their proofs' keys, trainer state                  before submitting
    model.safetensors   the model this silo holds, with version, hash and chain                          after an update

A crash between two of them is harmless: the journal only forbids, the memory is consistent by itself, the model can be fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedrep.errors import InvalidInputError, SettingsError
from fedrep.privacy import Ledger
from fedrep.protocol.error_memory import Contribution, ErrorMemory, Pending, Place
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.model_state import ModelState, model_hash
from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_rules import STATEMENT_ROUNDS
from fedrep.protocol.silo_state import Journal, SiloState, TrainerState
from fedrep.secagg.keys import load_verify_key
from fedrep_runtime.files import write_atomically
from fedrep_silo.ledgers import LedgerFolder
from fedrep_trainers.trainer import Trainer


def journal_to_json(journal: Journal) -> bytes:
    document = {
        "run": journal.run,
        "last_round": journal.last_round,
        "revealed": journal.revealed[-STATEMENT_ROUNDS:],
        "renounced": journal.renounced[-STATEMENT_ROUNDS:],
        "ledger": journal.ledger.to_dict(),
        "proposal": journal.proposal,
        "origin": journal.origin,
    }
    return json.dumps(document).encode()


def journal_from_json(data: bytes) -> Journal:
    document = json.loads(data)
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


@dataclass(frozen=True, slots=True)
class Written:
    """The receipt for a state that is durable. Only `StateFolder.write` gives one, and no message leaves without it."""

    save: Save


class StateFolder:
    """Reads everything once; afterwards only writes. The caller holds the folder's lock."""

    def __init__(self, folder: Path, ledgers: LedgerFolder | None = None, *, private: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._ledgers = ledgers
        self._private = private
        self._journal = folder / "journal.json"
        self._memory = folder / "memory.safetensors"
        self._model = folder / "model.safetensors"
        self._on_disk: SiloState | None = None

    def load(self, trainer: Trainer) -> SiloState:
        """What was saved last; the trainer is put back to its state of then."""
        self.check_journal()
        memory, kept = self.memory(trainer.layout.size)
        if kept:
            self._give_back(trainer, kept)
        self._on_disk = SiloState(self.charged_journal(), memory, trainer.state(), self.model())
        return self._on_disk

    def check_journal(self) -> None:
        """A folder that lost its journal must not pass for a new one."""
        if self._memory.exists() and not self._journal.exists():
            raise SettingsError(
                f"{self.folder} has a memory and no journal, which says in which rounds this silo spoke and what it revealed: "
                "restore it from a backup, or leave the run with `fedrep client leave --purge` and join anew"
            )

    def write(self, save: Save) -> Written:
        """Durable when this returns: each part that changed, whole, in the order that makes a crash between two harmless."""
        state, before = save.state, self._on_disk
        if before is None or state.journal is not before.journal:
            if self._ledgers is not None and (before is None or state.journal.ledger is not before.journal.ledger):
                self._ledgers.write(state.journal.ledger_name, state.journal.ledger)
            self.save_journal(state.journal)
        if before is None or state.trainer is not before.trainer or state.memory is not before.memory:
            self.save_memory(state.memory, state.trainer)
        if state.model is not None and (before is None or state.model is not before.model):
            self.save_model(state.model)
        self._on_disk = state
        return Written(save)

    def charged_journal(self) -> Journal:
        """A crash may have come between the ledger and the journal: what was charged stays charged."""
        journal = self.journal()
        if self._ledgers is None or not journal.run:
            return journal
        kept = self._ledgers.of(journal.ledger_name)
        return replace(journal, ledger=kept) if kept.rounds > journal.ledger.rounds else journal

    def _give_back(self, trainer: Trainer, kept: TrainerState) -> None:
        try:
            trainer.load_state(kept)
        except Exception as error:  # user code may raise anything
            raise SettingsError(
                f"the trainer does not take back its state from {self.folder} ({type(error).__name__}: {error}). If model or "
                "optimizer were changed on purpose, start with an empty state folder: fedrep client leave --purge"
            ) from error

    def journal(self) -> Journal:
        if not self._journal.exists():
            return Journal()
        try:
            return journal_from_json(self._journal.read_bytes())
        except (ValueError, KeyError, TypeError, InvalidInputError) as error:
            raise SettingsError(
                f"{self._journal} cannot be read ({error}). It guards this silo's privacy budget: restore it from a backup, or "
                "leave the run with `fedrep client leave --purge` and join as a new silo"
            ) from error

    def save_journal(self, journal: Journal) -> None:
        write_atomically(self._journal, journal_to_json(journal))

    def memory(self, parameters: int) -> tuple[ErrorMemory, dict[str, NDArray[Any]]]:
        """The error memory and the trainer's state that belongs to it."""
        if not self._memory.exists():
            return ErrorMemory(np.zeros(parameters, np.float32)), {}
        try:
            with safe_open(self._memory, "np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
                notes = json.loads(file.metadata()["fedrep"])
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"{self._memory} cannot be read ({error}). Restore it from a backup, or remove it: the silo then goes on "
                "without the residual of past rounds"
            ) from error
        if arrays["residual"].size != parameters:
            raise SettingsError(
                f"{self._memory} belongs to a model with {arrays['residual'].size} parameters, not {parameters}; "
                "use another state folder for another run"
            )
        if self._private and not notes.get("private", False):
            raise SettingsError(
                f"{self._memory} holds a residual and a trainer's state from before [privacy]: they come from gradients without "
                "noise, and what is left of them would be sent. Start with an empty state folder: fedrep client leave --purge"
            )
        memory = _memory_from(notes, arrays)
        trainer = {name.removeprefix("trainer."): array for name, array in arrays.items() if name.startswith("trainer.")}
        return memory, trainer

    def save_memory(self, memory: ErrorMemory, trainer: TrainerState) -> None:
        arrays: dict[str, NDArray[Any]] = {"residual": memory.residual}
        document: dict[str, Any] = {
            "given_up": memory.given_up,
            "clipped_mass": memory.clipped_mass,
            "private": self._private,
            "pending": [],
        }
        if memory.pending is not None:
            pending = memory.pending
            arrays |= {"pending.indices": pending.indices, "pending.sent": pending.sent, "pending.before": pending.before}
            arrays["pending.g"] = pending.contribution.g
            document["pending"] = [_pending_notes(pending)]
        arrays |= {f"trainer.{name}": np.asarray(array, order="C") for name, array in trainer.items()}
        write_atomically(self._memory, save(arrays, {"fedrep": json.dumps(document)}))

    def model(self) -> ModelState | None:
        if not self._model.exists():
            return None
        try:
            with safe_open(self._model, "np") as file:
                vector = file.get_tensor("model")
                notes = json.loads(file.metadata()["fedrep"])
            intact = model_hash(vector).hex() == notes["hash"]
        except (SafetensorError, ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            return None  # fetched again from the server
        return ModelState(vector, notes["version"], bytes.fromhex(notes["hash"]), bytes.fromhex(notes["chain"]))

    def save_model(self, model: ModelState) -> None:
        notes = {"version": model.version, "hash": model.hash.hex(), "chain": model.chain.hex()}
        write_atomically(self._model, save({"model": model.vector}, {"fedrep": json.dumps(notes)}))

    def save_status(self, status: Mapping[str, Any]) -> None:
        """For `fedrep client status`. Nothing depends on it, so it costs no fsync: it changes several times a round."""
        path = self.folder / "status.json"
        temporary = self.folder / ".status.json.part"
        temporary.write_text(json.dumps(status))
        temporary.replace(path)

    def status(self) -> dict[str, Any]:
        """What the daemon wrote last, with what the journal knows for certain."""
        try:
            shown: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        except (OSError, ValueError):
            shown = {"phase": "never started"}
        journal = self.journal()
        return shown | {"last_spoken_round": journal.last_round, "epsilon_total": spent_epsilon(journal.ledger)}

    def run_to_leave(self) -> str:
        """Like `journal().run`, but a journal that cannot be read is no reason to keep it."""
        try:
            return self.journal().run
        except SettingsError:
            return ""

    def purge(self) -> None:
        """Everything of this run but the ledger, which belongs to the data; the journal, which forbids, goes last."""
        for name in ("status.json", "audit.jsonl", "best.safetensors"):
            (self.folder / name).unlink(missing_ok=True)
        for path in (*self.folder.glob(".*.part"), self._memory, self._model, self._journal):
            path.unlink(missing_ok=True)


def spent_epsilon(ledger: Ledger) -> float | str:
    """For people and programs alike: a number, or "none" once a proposal went out without any guarantee (alpha = 0)."""
    if not ledger.rounds:
        return 0.0
    return ledger.total if ledger.total is not None else "none"


def _memory_from(notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ErrorMemory:
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
