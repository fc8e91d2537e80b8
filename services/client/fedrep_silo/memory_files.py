"""The error memory and the trainer's state on disk, where a round writes one whole vector: g, once, before it is submitted.

    memory-a.safetensors, memory-b.safetensors    g of a training; the one whose values were opened last is the base of u
    trainer-a.safetensors, trainer-b.safetensors  the trainer's state after a training
    memory.safetensors                            all of it in one: what no record can say, as after an upgrade

Everything else about u follows from I and from what was sent, which is little, and goes to the log. Of two files with the same
name the one that the state on disk does not need is overwritten in place, and then named in the log; so whatever a crash leaves
half written is needed by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.errors import SettingsError
from fedrep.patched import Patch
from fedrep.protocol.error_memory import ErrorMemory, Fate, Pending
from fedrep.protocol.silo_state import SiloState, TrainerState
from fedrep_runtime.json_text import parsed
from fedrep_runtime.tensor_files import (
    Tensor,
    overwrite_tensors,
    read_metadata,
    read_tensors,
    write_tensors,
)
from fedrep_silo.state_files import Arrays, changed_memory, pending_from, pending_notes

SLOTS = ("a", "b")
IN_FILE = ""  # of memory.safetensors; before there is one, u is zero
NO_TRAINER = "none"  # a trainer that keeps no state

Change = tuple[dict[str, Any], dict[str, NDArray[Any]]]
Changes = Sequence[tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Which files the state on disk rests on."""

    base: str = IN_FILE
    pending: str = IN_FILE
    trainer: str = IN_FILE


class MemoryFiles:
    def __init__(self, folder: Path, *, private: bool) -> None:
        self.path = folder / "memory.safetensors"
        self._folder = folder
        self._private = private
        self._at = Whereabouts()
        self._parameters = 0
        self._rooms: dict[str, NDArray[np.float32]] = {}

    def room(self) -> NDArray[np.float32] | None:
        """Memory for the next g: that of the one before the last. Only while nothing is pending, which might lie there.

        Not the file itself, mapped: writing to fresh pages of a file costs more than writing the file.
        """
        if not self._parameters:
            return None
        slot = _other(self._at.base)
        if slot not in self._rooms:
            self._rooms[slot] = np.empty(self._parameters, np.float32)
        return self._rooms[slot]

    def exist(self) -> bool:
        return any(path.exists() for path in self.paths())

    def paths(self) -> list[Path]:
        return [self.path, *(self._slot(kind, name) for kind in ("memory", "trainer") for name in SLOTS)]

    # Writing.

    def change(self, before: SiloState, memory: ErrorMemory, trainer: TrainerState) -> Change | None:
        """What the log has to say for `memory` to follow from `before`; None if only the whole can say it."""
        old = before.memory
        if old.pending is None and memory.pending is not None and _same_vector(old, memory):
            return self._submitted(memory, trainer, new_trainer=trainer is not before.trainer)
        if trainer is not before.trainer or old.pending is None or memory.pending is not None:
            return None
        fate = _fate(old, memory)
        if fate is None:
            return None
        if fate is Fate.OPENED:
            self._at = replace(self._at, base=self._at.pending)
        return {"fate": fate.value, "given_up": memory.given_up, "clipped_mass": memory.clipped_mass}, {}

    def _submitted(self, memory: ErrorMemory, trainer: TrainerState, *, new_trainer: bool) -> Change:
        assert memory.pending is not None
        slot = _other(self._at.base)
        overwrite_tensors(self._slot("memory", slot), {"g": memory.pending.contribution.g}, {})
        at = replace(self._at, pending=slot)
        if new_trainer:
            at = replace(at, trainer=_other(at.trainer) if trainer else NO_TRAINER)
            if trainer:
                overwrite_tensors(self._slot("trainer", at.trainer), _contiguous(trainer), {})
        self._at = at
        notes = {"submitted": pending_notes(memory.pending), "slot": slot, "trainer": at.trainer, "private": self._private}
        return notes, _coded(memory.pending)

    def snapshot(self, memory: ErrorMemory) -> Change | None:
        """All that the log says about it in one record; None if it rests on memory.safetensors, which is then written anew."""
        at = self._at
        if at.base == IN_FILE or at.trainer == IN_FILE or (memory.pending is not None and at.pending == IN_FILE):
            return None
        notes = {
            "base": at.base,
            "trainer": at.trainer,
            "given_up": memory.given_up,
            "clipped_mass": memory.clipped_mass,
            "private": self._private,
        }
        arrays: dict[str, NDArray[Any]] = {}
        if memory.patch is not None:
            arrays |= {"patch.indices": memory.patch.indices, "patch.values": memory.patch.values}
        if memory.pending is not None:
            notes |= {"submitted": pending_notes(memory.pending), "slot": at.pending}
            arrays |= _coded(memory.pending)
        return {"snapshot": notes}, arrays

    def write_whole(self, memory: ErrorMemory, trainer: TrainerState, position: Mapping[str, int]) -> None:
        notes: dict[str, Any] = {"given_up": memory.given_up, "clipped_mass": memory.clipped_mass, "pending": []}
        arrays: dict[str, Tensor] = {"residual": memory.before}
        if memory.pending is not None:
            pending = memory.pending
            arrays |= {"pending.indices": pending.indices, "pending.sent": pending.sent, "pending.g": pending.contribution.g}
            notes["pending"] = [pending_notes(memory.pending)]
        arrays |= {f"trainer.{name}": array for name, array in _contiguous(trainer).items()}
        write_tensors(self.path, arrays, {"fedrep": json.dumps(notes | {"private": self._private, **position})})
        self._at = Whereabouts()
        self._rooms.clear()  # the memory of now may lie in either

    # Reading.

    def notes(self) -> dict[str, Any]:
        """Of memory.safetensors."""
        try:
            return dict(parsed(read_metadata(self.path)["fedrep"])) if self.path.exists() else {}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # it is refused where it is needed

    def read(self, parameters: int, changes: Changes) -> tuple[ErrorMemory, Arrays]:
        """u with what is pending, and the trainer's state; ValueError or KeyError for what is damaged."""
        first, memory = self._start(parameters, changes)
        at = Whereabouts()
        if memory is None:
            memory, trainer = self._file(parameters)
        else:
            trainer, at = {}, self._at
        for notes, arrays in changes[first:]:
            memory, at = self._changed(memory, at, notes, arrays, parameters)
        named = [_trainer_of(notes) for notes, _ in changes if _trainer_of(notes) is not None]
        if named and named[-1] != IN_FILE:
            at = replace(at, trainer=str(named[-1]))
            trainer = {} if at.trainer == NO_TRAINER else read_tensors(self._slot("trainer", at.trainer))[1]
        elif first:
            trainer = self._file(parameters)[1]
        self._at, self._parameters = at, parameters
        return memory, trainer

    def _start(self, parameters: int, changes: Changes) -> tuple[int, ErrorMemory | None]:
        """From where on changes are followed: files that older ones name have been overwritten since."""
        snapshot = max((index for index, (notes, _) in enumerate(changes) if "snapshot" in notes), default=-1)
        opened = max((index for index, (notes, _) in enumerate(changes) if notes.get("fate") == Fate.OPENED.value), default=-1)
        if opened > snapshot:
            for index in range(opened - 1, -1, -1):
                notes, arrays = changes[index]
                about = notes.get("snapshot", notes)
                if "submitted" in about:
                    pending = self._pending(about, arrays, parameters)
                    memory = ErrorMemory(np.empty(0, np.float32), pending).settle(Fate.OPENED)
                    self._at = Whereabouts(base=about["slot"], pending=about["slot"])
                    return opened + 1, _counted(memory, changes[opened][0])
        if snapshot < 0:
            return 0, None
        notes, arrays = changes[snapshot]
        kept = notes["snapshot"]
        patch = Patch(arrays["patch.indices"], arrays["patch.values"]) if "patch.indices" in arrays else None
        memory = ErrorMemory(self._g(kept["base"], kept, parameters), patch=patch)
        if "submitted" in kept:
            memory = replace(memory, pending=self._pending(kept, arrays, parameters))
        self._at = Whereabouts(kept["base"], kept.get("slot", IN_FILE))
        return snapshot + 1, _counted(memory, kept)

    def _changed(
        self,
        memory: ErrorMemory,
        at: Whereabouts,
        notes: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        parameters: int,
    ) -> tuple[ErrorMemory, Whereabouts]:
        if "submitted" in notes:
            return replace(memory, pending=self._pending(notes, arrays, parameters)), replace(at, pending=notes["slot"])
        if "fate" not in notes:  # a record of an earlier release
            return changed_memory(memory, notes, arrays), at
        if memory.pending is None:
            raise ValueError("it knows the fate of values that it does not know")
        fate = Fate(notes["fate"])
        return _counted(memory.settle(fate), notes), replace(at, base=at.pending) if fate is Fate.OPENED else at

    def _pending(self, notes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], parameters: int) -> Pending:
        g = self._g(notes["slot"], notes, parameters)
        if "sent.coordinates" in arrays:
            coordinates = arrays["sent.coordinates"].tobytes()
            indices = decode_coordinates(coordinates, parameters)
        else:
            coordinates, indices = b"", arrays["indices"].astype(np.int64)
        return pending_from(notes["submitted"], g, indices, arrays["sent"], coordinates)

    def _g(self, slot: str, notes: Mapping[str, Any], parameters: int) -> NDArray[np.float32]:
        self._require_private(notes)
        g = read_tensors(self._slot("memory", slot))[1]["g"]
        self._require_size(self._slot("memory", slot), g.size, parameters)
        return g

    def _file(self, parameters: int) -> tuple[ErrorMemory, Arrays]:
        """memory.safetensors, also as earlier releases wrote it: u with zero on I, and apart what was there before."""
        if not self.path.exists():
            return ErrorMemory(np.zeros(parameters, np.float32)), {}
        metadata, arrays = read_tensors(self.path)
        notes, base = parsed(metadata["fedrep"]), arrays["residual"]
        self._require_size(self.path, base.size, parameters)
        self._require_private(notes)
        trainer = {name.removeprefix("trainer."): array for name, array in arrays.items() if name.startswith("trainer.")}
        memory = ErrorMemory(base, None, notes["given_up"], notes.get("clipped_mass", 0.0))
        if notes["pending"] and "pending.g" not in arrays:  # version 1 of the protocol: these values had left u already
            return replace(memory, given_up=memory.given_up + len(notes["pending"])), trainer
        for found in notes["pending"]:
            indices = arrays["pending.indices"]
            if "pending.before" in arrays:
                base[indices] = arrays["pending.before"]
            memory = replace(memory, pending=pending_from(found, arrays["pending.g"], indices, arrays["pending.sent"]))
        return memory, trainer

    def _require_size(self, path: Path, found: int, parameters: int) -> None:
        if found != parameters:
            raise SettingsError(
                f"{path} belongs to a model with {found} parameters, not {parameters}; use another state folder for another run"
            )

    def _require_private(self, notes: Mapping[str, Any]) -> None:
        if self._private and not notes.get("private", False):
            raise SettingsError(
                f"{self._folder} holds a residual and a trainer's state from before [privacy]: they come from gradients without "
                "noise, and what is left of them would be sent. Start with an empty state folder: fedrep client leave --purge"
            )

    def _slot(self, kind: str, name: str) -> Path:
        if name not in SLOTS:
            raise ValueError(f"there is no file {kind}-{name}")
        return self._folder / f"{kind}-{name}.safetensors"


def _other(slot: str) -> str:
    return SLOTS[1] if slot == SLOTS[0] else SLOTS[0]


def _same_vector(old: ErrorMemory, new: ErrorMemory) -> bool:
    counts = (old.given_up, old.clipped_mass) == (new.given_up, new.clipped_mass)
    return new.base is old.base and new.patch is old.patch and counts


def _fate(old: ErrorMemory, new: ErrorMemory) -> Fate | None:
    """Of the values that were pending; None if the memory is not what that fate makes of it."""
    assert old.pending is not None
    if new.base is old.pending.contribution.g and new.patch is not None and new.patch.indices is old.pending.indices:
        return Fate.OPENED
    if _same_vector(old, new):
        return Fate.CLOSED
    if new.base is old.base and new.given_up == old.given_up + 1:
        return Fate.GIVEN_UP
    return None


def _counted(memory: ErrorMemory, notes: Mapping[str, Any]) -> ErrorMemory:
    return replace(memory, given_up=notes["given_up"], clipped_mass=notes["clipped_mass"])


def _coded(pending: Pending) -> dict[str, NDArray[Any]]:
    coordinates = pending.coordinates or encode_coordinates(pending.indices, pending.contribution.g.size)
    return {"sent.coordinates": np.frombuffer(coordinates, np.uint8), "sent": pending.sent}


def _trainer_of(notes: Mapping[str, Any]) -> object:
    return notes.get("snapshot", notes).get("trainer")


def _contiguous(trainer: TrainerState) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(array, order="C") for name, array in trainer.items()}
