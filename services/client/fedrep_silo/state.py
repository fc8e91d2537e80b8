"""The silo's memory on disk: three whole files, and a log of the small changes since, before the message that depends on it.

    journal.json        round number, "revealed" and "renounced" rounds, epsilon ledger, last proposal   before speaking
    memory.safetensors  residual, pending values with their proofs' keys, trainer state                  before submitting
    model.safetensors   the model this silo holds, with version, hash and chain                          after an update
    changes-N.log       what changed since, where little did: one record, one sync                       the same

A crash between two writes is harmless: the journal only forbids, the memory is consistent by itself, the model can be fetched.
journal.json names the log that goes with it; each of the two others says from which record on the log concerns it. A log that has
grown as long as the vectors is folded into the files, and the new journal.json, which names the next log, makes that true.
"""

from __future__ import annotations

import json
import operator
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
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.model_state import ModelState, model_hash
from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_state import Journal, SiloState, TrainerState
from fedrep_runtime.files import sync_folder, write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_silo.change_log import ChangeLog, Record, read_log
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.state_files import (
    Arrays,
    Patch,
    changed_memory,
    journal_from,
    journal_notes,
    memory_change,
    memory_document,
    memory_from,
    model_from,
    model_notes,
)
from fedrep_trainers.trainer import Trainer

SMALLEST_FOLD = 2**20
Position = tuple[int, int]  # number of a log, and of a record in it
# Whatever the bytes of a file can be that is not what was written: each reader says what to do about it.
DAMAGED = (SafetensorError, ValueError, KeyError, IndexError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Written:
    """The receipt for a state that is durable. Only `StateFolder.write` gives one, and no message leaves without it."""

    save: Save


class StateFolder:
    """Reads everything once; afterwards only writes. The caller holds the folder's lock."""

    def __init__(
        self, folder: Path, ledgers: LedgerFolder | None = None, *, private: bool = False, fold_at: int | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._ledgers = ledgers
        self._private = private
        self._fold_at = fold_at
        self._journal = folder / "journal.json"
        self._memory = folder / "memory.safetensors"
        self._model = folder / "model.safetensors"
        self._on_disk: SiloState | None = None
        self._log: ChangeLog | None = None
        self._log_number = 0
        self._in_log: set[str] = set()

    def load(self, trainer: Trainer) -> SiloState:
        """What was saved last; the trainer is put back to its state of then."""
        self.check_journal()
        memory, kept = self.memory(trainer.layout.size)
        if kept:
            self._give_back(trainer, kept)
        state = SiloState(self.charged_journal(), memory, trainer.state(), self.model())
        self._go_on_with_log(state)
        self._on_disk = state
        return state

    def check_journal(self) -> None:
        """A folder that lost its journal must not pass for a new one."""
        if self._memory.exists() and not self._journal.exists():
            raise SettingsError(
                f"{self.folder} has a memory and no journal, which says in which rounds this silo spoke and what it revealed: "
                "restore it from a backup, or leave the run with `fedrep client leave --purge` and join anew"
            )

    def write(self, save: Save) -> Written:
        """Durable when this returns: each part that changed, in the order that makes a crash between two harmless."""
        state, before = save.state, self._on_disk
        if before is None:
            raise AssertionError("this folder was not loaded, or a write to it failed: load it anew")
        self._on_disk = None  # unless everything below succeeds, what is on the disk must be read again
        if state.journal is not before.journal:
            if self._ledgers is not None and state.journal.ledger is not before.journal.ledger:
                self._ledgers.write(state.journal.ledger_name, state.journal.ledger)
            self.save_journal(state.journal)
        if state.trainer is not before.trainer or state.memory is not before.memory:
            self.save_memory(state.memory, state.trainer, before)
        if state.model is not None and state.model is not before.model:
            self.save_model(state.model, before)
        self._fold_if_long(state)
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
        """The last one in the log, else that of the file."""
        document, records = self._changes()
        if document is None:
            return Journal()
        changes = [record.notes["journal"] for record in records if "journal" in record.notes]
        try:
            return journal_from(changes[-1] if changes else document)
        except (*DAMAGED, InvalidInputError) as error:
            raise self._unreadable(error) from error

    def save_journal(self, journal: Journal) -> None:
        if self._log is None:
            self._write_journal(journal, 0)
        else:
            self._append("journal", journal_notes(journal), {})

    def memory(self, parameters: int) -> tuple[ErrorMemory, dict[str, NDArray[Any]]]:
        """The error memory and the trainer's state that belongs to it."""
        if not self._memory.exists():
            memory, trainer, start = ErrorMemory(np.zeros(parameters, np.float32)), Arrays(), (0, 0)
        else:
            memory, trainer, start = self._memory_file(parameters)
        try:
            for notes, arrays in self._changes_of("memory", start):
                memory = changed_memory(memory, notes, arrays)
        except DAMAGED as error:
            raise self._unreadable_memory(error) from error
        return memory, trainer

    def _memory_file(self, parameters: int) -> tuple[ErrorMemory, Arrays, Position]:
        try:
            notes, arrays = _read(self._memory)
            memory, start = memory_from(notes, arrays), _position(notes)
        except DAMAGED as error:
            raise self._unreadable_memory(error) from error
        residual = memory.residual
        if residual.size != parameters:
            raise SettingsError(
                f"{self._memory} belongs to a model with {residual.size} parameters, not {parameters}; "
                "use another state folder for another run"
            )
        if self._private and not notes.get("private", False):
            raise SettingsError(
                f"{self._memory} holds a residual and a trainer's state from before [privacy]: they come from gradients without "
                "noise, and what is left of them would be sent. Start with an empty state folder: fedrep client leave --purge"
            )
        trainer = {name.removeprefix("trainer."): array for name, array in arrays.items() if name.startswith("trainer.")}
        return memory, trainer, start

    def save_memory(self, memory: ErrorMemory, trainer: TrainerState, before: SiloState | None = None) -> None:
        """The change alone where little did, as when the fate of values is known; the whole after a training."""
        same_trainer = before is not None and trainer is before.trainer
        change = memory_change(before.memory, memory) if before is not None and same_trainer and self._log is not None else None
        if change is not None:
            self._append("memory", *change)
        else:
            self._write_memory(memory, trainer, self._position())

    def model(self) -> ModelState | None:
        """None if there is none, or if what is here is damaged: it is fetched again from the server."""
        if not self._model.exists():
            return None
        try:
            notes, arrays = _read(self._model)
            vector = arrays["model"]
            for change, values in self._changes_of("model", _position(notes)):
                notes, vector = dict(change), Patch.of("model", values).applied(vector)
            model = model_from(notes, vector)
        except DAMAGED:
            return None
        return model if model_hash(model.vector) == model.hash else None

    def save_model(self, model: ModelState, before: SiloState | None = None) -> None:
        old = before.model if before is not None and self._log is not None else None
        patch = Patch.between(old.vector, model.vector) if old is not None else None
        if patch is not None:
            self._append("model", model_notes(model), patch.arrays("model"))
        else:
            self._write_model(model, self._position())

    # The log.

    def _go_on_with_log(self, state: SiloState) -> None:
        """A folder gets its log with its first write; one that a crash left behind is removed."""
        document = self._journal_file()
        if document is None:
            return
        self._log_number = document.get("log", 0)
        path = self._log_path(self._log_number)
        if self._log_number:
            self._log = ChangeLog.continued(path)
            self._in_log = {part for record in read_log(path) for part in record.notes}
        for other in self.folder.glob("changes-*.log"):
            if other != path:
                other.unlink()
        begun = max((_position(_notes(file))[0] for file in (self._memory, self._model) if file.exists()), default=0)
        if begun > self._log_number:  # a fold that died before its journal: the log of now no longer concerns these files
            self._fold(state, begun + 1)

    def _append(self, part: str, notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        assert self._log is not None
        self._log.append(Record({part: notes}, arrays))
        self._in_log.add(part)

    def _fold_if_long(self, state: SiloState) -> None:
        limit = self._fold_at if self._fold_at is not None else SMALLEST_FOLD + 2 * state.memory.residual.nbytes
        if self._log is None or self._log.size > limit:
            self._fold(state, self._log_number + 1)

    def _fold(self, state: SiloState, number: int) -> None:
        """What the log says goes into the files; the next log starts empty, and journal.json, which names it, makes it so."""
        old, log = self._log, ChangeLog.started(self._log_path(number))
        sync_folder(self.folder)
        if "memory" in self._in_log:
            self._write_memory(state.memory, state.trainer, (number, 0))
        if "model" in self._in_log and state.model is not None:
            self._write_model(state.model, (number, 0))
        self._write_journal(state.journal, number)
        self._log, self._log_number, self._in_log = log, number, set()
        if old is not None:
            old.close()
            old.path.unlink(missing_ok=True)

    def _position(self) -> Position:
        return self._log_number, self._log.count if self._log is not None else 0

    def _log_path(self, number: int) -> Path:
        return self.folder / f"changes-{number}.log"

    def _changes(self) -> tuple[dict[str, Any] | None, list[Record]]:
        """The journal's file and the log that it names; a daemon may fold the one into the other while somebody else reads."""
        document = self._journal_file()
        while document is not None and (number := document.get("log", 0)):
            try:
                return document, read_log(self._log_path(number))
            except FileNotFoundError as error:
                again = self._journal_file()
                if again is None or again.get("log") == number:
                    raise self._unreadable(f"{self._log_path(number).name}, which goes with it, is missing") from error
                document = again
        return document, []

    def _changes_of(self, part: str, start: Position) -> list[tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]]:
        document, records = self._changes()
        number = document.get("log", 0) if document is not None else 0
        return [
            (record.notes[part], record.arrays)
            for index, record in enumerate(records)
            if part in record.notes and (number, index) >= start
        ]

    # The files.

    def _journal_file(self) -> dict[str, Any] | None:
        if not self._journal.exists():
            return None
        try:
            document: dict[str, Any] = parsed(self._journal.read_bytes())
            number = document.get("log", 0)
        except (ValueError, AttributeError) as error:
            raise self._unreadable(error) from error
        if not isinstance(number, int):
            raise self._unreadable("its log is no number")
        return document

    def _write_journal(self, journal: Journal, log: int) -> None:
        write_atomically(self._journal, json.dumps(journal_notes(journal) | {"log": log}).encode())

    def _write_memory(self, memory: ErrorMemory, trainer: TrainerState, position: Position) -> None:
        notes, arrays = memory_document(memory, trainer)
        _write(self._memory, notes | {"private": self._private}, arrays, position)

    def _write_model(self, model: ModelState, position: Position) -> None:
        _write(self._model, model_notes(model), {"model": model.vector}, position)

    def _unreadable(self, why: object) -> SettingsError:
        return SettingsError(
            f"{self._journal} cannot be read ({why}). It guards this silo's privacy budget: restore it from a backup, or "
            "leave the run with `fedrep client leave --purge` and join as a new silo"
        )

    def _unreadable_memory(self, why: object) -> SettingsError:
        return SettingsError(
            f"{self._memory} cannot be read ({why}). Restore the folder from a backup, or leave the run with "
            "`fedrep client leave --purge` and join anew: the silo then goes on without the residual of past rounds"
        )

    def save_status(self, status: Mapping[str, Any]) -> None:
        """For `fedrep client status`. Nothing depends on it, so it costs no fsync: it changes several times a round."""
        path = self.folder / "status.json"
        temporary = self.folder / ".status.json.part"
        temporary.write_text(json.dumps(status))
        temporary.replace(path)

    def status(self) -> dict[str, Any]:
        """What the daemon wrote last, with what the journal knows for certain."""
        try:
            shown = dict(parsed((self.folder / "status.json").read_bytes()))
        except (OSError, *DAMAGED):
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
        logs = self.folder.glob("changes-*.log")
        for path in (*self.folder.glob(".*.part"), self._memory, self._model, self._journal, *logs):
            path.unlink(missing_ok=True)


def spent_epsilon(ledger: Ledger) -> float | str:
    """For people and programs alike: a number, or "none" once a proposal went out without any guarantee (alpha = 0)."""
    if not ledger.rounds:
        return 0.0
    return ledger.total if ledger.total is not None else "none"


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    with safe_open(path, "np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
        return parsed(file.metadata()["fedrep"]), arrays


def _notes(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "np") as file:
            return dict(parsed(file.metadata()["fedrep"]))
    except DAMAGED:
        return {}  # a damaged model is fetched again; a damaged memory was refused before


def _write(path: Path, notes: Mapping[str, Any], arrays: Arrays, position: Position) -> None:
    document = {**notes, "log": position[0], "after": position[1]}
    write_atomically(path, save(arrays, {"fedrep": json.dumps(document)}))


def _position(notes: Mapping[str, Any]) -> Position:
    """From which record on the log concerns a file; files from before there was a log have none."""
    return operator.index(notes.get("log", 0)), operator.index(notes.get("after", 0))
