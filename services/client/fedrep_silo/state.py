"""The silo's state on disk: whole vectors where there is no other way, and a log of everything else, before the message that
depends on it.

    journal.json        round number, "revealed" and "renounced" rounds, epsilon ledger, last proposal   before speaking
    memory-*, trainer-* g of a training, and the trainer's state after it: see `memory_files`            before submitting
    model.safetensors   the model this silo holds, with version, hash and chain                          when it was fetched
    changes-N.log       all changes since: one record, one sync                                          before what needs it
    audit.jsonl         what left the silo; new lines stand in the log of changes first                  before it leaves

A crash between two writes is harmless: the journal only forbids, the memory is consistent by itself, the model can be fetched.
journal.json names the log that goes with it; the other files say from which record on the log concerns them. A log that has grown
as long as the vectors is folded: the model is written anew, what is left to say of the memory begins the next log, and the new
journal.json, which names that log, makes it true.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep.errors import CryptoError, InvalidInputError, SettingsError
from fedrep.privacy import Ledger
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.model_state import ModelState, model_hash
from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_state import Journal, SiloState, TrainerState
from fedrep_runtime.files import sync_folder, write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_runtime.tensor_files import read_metadata, read_tensors, write_tensors
from fedrep_silo.audit import Audit, AuditLine
from fedrep_silo.change_log import START_ANEW, ChangeLog, Record, read_log
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.memory_files import MemoryFiles
from fedrep_silo.state_files import change_model, journal_from, journal_notes, model_change, model_from, model_notes
from fedrep_silo.status_file import read_status, write_status
from fedrep_trainers.trainer import Trainer

log = structlog.get_logger(__name__)

SMALLEST_FOLD = 2**20
SHORT = 2**18  # bytes that a page cache takes while nobody notices
Position = tuple[int, int]  # number of a log, and of a record in it
# Whatever the bytes of a file can be that is not what was written: each reader says what to do about it.
DAMAGED = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, InvalidInputError, CryptoError)


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
        self._fold_at = fold_at
        self._journal = folder / "journal.json"
        self._memory = MemoryFiles(folder, private=private)
        self._model = folder / "model.safetensors"
        self._audit = Audit(folder / "audit.jsonl")
        self._on_disk: SiloState | None = None
        self._log: ChangeLog | None = None
        self._log_number = 0
        self._in_log: set[str] = set()
        self._notes: dict[str, Any] = {}
        self._arrays: dict[str, NDArray[Any]] = {}

    def load(self, trainer: Trainer) -> SiloState:
        """What was saved last; the trainer is put back to its state of then."""
        self.check_journal()
        memory, kept = self.memory(trainer.layout.size)
        if kept:
            self._give_back(trainer, kept)
        state = SiloState(self.charged_journal(), memory, trainer.state(), self.model())
        self._go_on_with_log(state)
        if state.journal != self.journal():  # or a second crash at the same place would pass for an older folder
            self.save_journal(state.journal)
            self._commit(durably=True)
        self._on_disk = state
        return state

    def room(self) -> NDArray[np.float32] | None:
        """Where g of the next training may be put, to be on disk sooner; None while the state on disk still needs the place."""
        return self._memory.room() if self._on_disk is not None and self._on_disk.memory.pending is None else None

    def check_journal(self) -> None:
        """A folder that lost its journal must not pass for a new one."""
        if self._memory.exist() and not self._journal.exists():
            raise SettingsError(
                f"{self.folder} has a memory and no journal, which says in which rounds this silo spoke and what it revealed: "
                f"{START_ANEW}"
            )

    @property
    def has_trained(self) -> bool:
        """Whether anything was ever proposed or sent from this folder."""
        return self._memory.exist() or self.journal().last_training > 0

    def write(self, save: Save, leaving: Sequence[AuditLine] = ()) -> Written:
        """Durable when this returns: each part that changed, in the order that makes a crash between two harmless, and what the
        audit says about messages that leave with it."""
        state, before = save.state, self._on_disk
        if before is None:
            raise AssertionError("this folder was not loaded, or a write to it failed: load it anew")
        self._on_disk = None  # unless everything below succeeds, what is on the disk must be read again
        self._notes, self._arrays = {}, {}
        spoke = state.journal is not before.journal
        remembers = state.trainer is not before.trainer or state.memory is not before.memory
        if spoke:
            if self._ledgers is not None and state.journal.ledger is not before.journal.ledger:
                self._ledgers.write(state.journal.ledger_name, state.journal.ledger)
            self.save_journal(state.journal)
        if remembers:
            self.save_memory(state.memory, state.trainer, before)
        if state.model is not None and state.model is not before.model:
            self.save_model(state.model, before)
        entries = [line.text() for line in leaving]
        logged = self._log is not None and (spoke or remembers)
        if entries and logged:
            self._append("audit", entries, {})
        self._commit(durably=spoke or remembers)
        if entries:
            self._audit.append(entries, durably=not logged)
        if self._may_fold(state, before):
            self._fold(state, self._log_number + 1)
        self._on_disk = state
        return Written(save)

    def is_short(self, save: Save) -> bool:
        """Whether writing this is a short append for which no disk is waited for."""
        state, before = save.state, self._on_disk
        if before is None or self._log is None or not self._log.is_safe or self._may_fold(state, before):
            return False
        if state.journal is not before.journal or state.trainer is not before.trainer or state.memory is not before.memory:
            return False
        if state.model is None or state.model is before.model:
            return True
        descent = state.model.descent
        return before.model is not None and descent is not None and len(descent.coordinates) + len(descent.levels) < SHORT

    def charged_journal(self) -> Journal:
        """A crash may have come between the ledger and the journal: what was charged stays charged."""
        journal = self.journal()
        if self._ledgers is None or not journal.run:
            return journal
        kept = self._ledgers.of(journal.ledger_name)
        unknown = kept.rounds - journal.ledger.rounds
        if unknown > 1:
            raise SettingsError(
                f"{self.folder} is older than the ledger of its run: it knows nothing of {unknown} proposals there; {START_ANEW}",
                reason="STATE_TOO_OLD",
            )
        if unknown < 0:
            raise SettingsError(
                f"this silo's ledger of its run counts {kept.rounds} proposals, and {self.folder} {journal.ledger.rounds}, so "
                "what has been spent would be shown too small. Is the folder `ledger` the right one, and is its disk there? If "
                "files in it are lost, restore them from a backup",
                reason="LEDGER_LOST",
            )
        return replace(journal, ledger=kept) if unknown == 1 else journal

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
        except DAMAGED as error:
            raise self._unreadable(error) from error

    def save_journal(self, journal: Journal) -> None:
        if self._log is None:
            self._write_journal(journal, 0)
        else:
            self._append("journal", journal_notes(journal), {})

    def memory(self, parameters: int) -> tuple[ErrorMemory, dict[str, NDArray[Any]]]:
        """The error memory and the trainer's state that belongs to it."""
        try:
            return self._memory.read(parameters, self._changes_of("memory", _position(self._memory.notes())))
        except (*DAMAGED, FileNotFoundError, MemoryError) as error:
            raise SettingsError(
                f"{self._memory.path} and its neighbours cannot be read ({error}): {START_ANEW}. It then goes on without the "
                "residual of before"
            ) from error

    def save_memory(self, memory: ErrorMemory, trainer: TrainerState, before: SiloState | None = None) -> None:
        """g of a new training and a record; a record alone where a fate was decided; the whole where neither says it all."""
        change = self._memory.change(before, memory, trainer) if before is not None and self._log is not None else None
        if change is not None:
            self._append("memory", *change)
        else:
            self._commit(durably=True)  # the journal, which forbids, comes first
            self._write_memory(memory, trainer, self._position())

    def model(self) -> ModelState | None:
        """None if there is none, or if what is here is damaged: it is fetched again from the server."""
        if not self._model.exists():
            return None
        try:
            metadata, arrays = read_tensors(self._model)
            notes, vector = parsed(metadata["fedrep"]), arrays["model"]
            for change, values in self._changes_of("model", _position(notes)):
                change_model(vector, change, values)
                notes = change
            model = model_from(notes, vector)
        except (*DAMAGED, MemoryError):
            return None
        return model if model_hash(model.vector, model.hash) == model.hash else None

    def save_model(self, model: ModelState, before: SiloState | None = None) -> None:
        old = before.model if before is not None and self._log is not None else None
        change = model_change(old, model) if old is not None else None
        if change is not None:
            self._append("model", *change)
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
            records = read_log(path)
            self._in_log = {part for record in records for part in record.notes}
            self._audit.complete([entry for record in records for entry in record.notes.get("audit", ())])
        for other in self.folder.glob("changes-*.log"):
            if other != path:
                other.unlink()
        begun = max(_position(self._memory.notes())[0], _position(self._model_notes())[0])
        if begun > self._log_number:  # a fold that died before its journal: the log of now no longer concerns these files
            self._fold(state, begun + 1)

    def _append(self, part: str, notes: Mapping[str, Any] | Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> None:
        """To the record of this write: its parts are true together, or not at all."""
        assert self._arrays.keys().isdisjoint(arrays), "parts of one record name their arrays apart"
        self._notes[part] = notes
        self._arrays |= arrays

    def _commit(self, *, durably: bool) -> None:
        """A model alone need not be safe from a power cut, only from the end of this process: it can be fetched."""
        if self._log is None or not self._notes:
            return
        record = Record(self._notes, self._arrays)
        self._notes, self._arrays = {}, {}
        self._log.append(record, durably=durably)
        self._in_log.update(record.notes)

    def _may_fold(self, state: SiloState, before: SiloState) -> bool:
        """A long log, but only just after a model came, if it holds any: an older one may have lent its memory to the next."""
        if self._log is None:
            return True
        limit = self._fold_at if self._fold_at is not None else SMALLEST_FOLD + 2 * state.memory.base.nbytes
        return self._log.size > limit and ("model" not in self._in_log or state.model is not before.model)

    def _fold(self, state: SiloState, number: int) -> None:
        """What the log says goes into the files; the next log starts empty, and journal.json, which names it, makes it so."""
        if "audit" in self._in_log:
            self._audit.sync()
        old, log = self._log, ChangeLog.started(self._log_path(number))
        sync_folder(self.folder)
        kept: set[str] = set()
        if "memory" in self._in_log:
            snapshot = self._memory.snapshot(state.memory)
            if snapshot is not None:
                log.append(Record({"memory": snapshot[0]}, snapshot[1]))
                kept = {"memory"}
            else:
                self._write_memory(state.memory, state.trainer, (number, 0))
        if "model" in self._in_log and state.model is not None:
            self._write_model(state.model, (number, 0))
        self._write_journal(state.journal, number)
        self._log, self._log_number, self._in_log = log, number, kept
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
        self._memory.write_whole(memory, trainer, {"log": position[0], "after": position[1]})

    def _write_model(self, model: ModelState, position: Position) -> None:
        notes = model_notes(model) | {"log": position[0], "after": position[1]}
        write_tensors(self._model, {"model": model.vector}, {"fedrep": json.dumps(notes)})

    def _model_notes(self) -> dict[str, Any]:
        try:
            return dict(parsed(read_metadata(self._model)["fedrep"])) if self._model.exists() else {}
        except DAMAGED:
            return {}  # a damaged model is fetched again

    def _unreadable(self, why: object) -> SettingsError:
        return SettingsError(f"{self._journal} cannot be read ({why}). It says in which rounds this silo spoke: {START_ANEW}")

    def save_status(self, status: Mapping[str, Any]) -> None:
        """For `fedrep client status`; a full disk stops nobody over it."""
        try:
            write_status(self.folder / "status.json", status)
        except OSError as error:
            log.warning("status_not_written", why=str(error))

    def status(self) -> dict[str, Any]:
        """What the daemon wrote last, with what the journal knows for certain."""
        try:
            shown = read_status(self.folder / "status.json")
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
        for path in (*self.folder.glob(".*.part"), *self._memory.paths(), self._model, self._journal, *logs):
            path.unlink(missing_ok=True)


def spent_epsilon(ledger: Ledger) -> float | str:
    """For people and programs alike: a number, or "none" once a proposal went out without any guarantee (alpha = 0)."""
    if not ledger.rounds:
        return 0.0
    return ledger.total if ledger.total is not None else "none"


def _position(notes: Mapping[str, Any]) -> Position:
    """From which record on the log concerns a file; files from before there was a log have none."""
    return operator.index(notes.get("log", 0)), operator.index(notes.get("after", 0))
