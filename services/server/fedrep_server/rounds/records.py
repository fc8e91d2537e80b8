"""What is kept of a run: the saves its machine asks for, as rows of the store and files of the model store.

Blocking; call it in a thread. The model file is written first and the transaction second, so that a crash between them leaves
an orphan file and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedrep.errors import ConflictError, NotFoundError
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.goals import Totals
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import ModelName, Outcome, Statement, Update
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep.protocol.round_closing import ClosedRound
from fedrep.protocol.round_effects import Noted
from fedrep.protocol.run_effects import CommitRound, Count, KeepAttendance, KeepLine, KeepModel, KeepState, OpenRound, Save
from fedrep.protocol.run_events import Counted, RunEvent, Saved
from fedrep.protocol.run_progress import RunProgress, RunState
from fedrep.protocol.server_run import ServerRun
from fedrep.sparsify import gather
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2 as observer
from fedrep_server.rounds.model_steps import CHECKPOINT_EVERY, StoredStep
from fedrep_server.rounds.model_store import ModelStore, StoredModel, another_model
from fedrep_server.rounds.round_row import Clock, ledger_entries, round_row
from fedrep_server.store import (
    NewEvent,
    NewModel,
    Progress,
    RoundCommit,
    RoundRow,
    Store,
    StoredRun,
    StoredUpdate,
    Traffic,
    attendance_from_json,
    attendance_to_json,
)

Listener = Callable[[str], None]
FLOAT_BYTES = 4
REMEMBERED_ROUNDS = 32


@dataclass
class RunRecords:
    """`name` is the run's; `changed` is told after every write that observers may want to see."""

    name: str
    run: RunHash
    options: observer.RunOptions
    buffer_seed: bytes
    store: Store
    models: ModelStore
    keep_models: int
    changed: Listener
    keep_updates: int = 200
    _statements: dict[int, tuple[Statement, ...]] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _asked_for: int = 0
    _untidy: bool = False
    _checkpoint: int | None = None

    def write(self, save: Save) -> None:
        """On disk when it returns; nothing of it counts if it raises."""
        match save:
            case KeepLine():
                self.store.append_events(self.name, _events(save.line))
            case KeepState():
                state = save.progress.state.value
                self.store.set_run_state(self.name, state, save.progress.reason, _events(save.line))
            case KeepAttendance():
                self.store.save_progress(self.name, self.columns(save.progress), None, _events(save.line))
            case KeepModel():
                model = self._put(save.progress)
                self.store.save_progress(self.name, self.columns(save.progress), model, _events(save.line))
            case OpenRound():
                self._open(save)
            case CommitRound():
                self.commit(save, round_row(save.closed, Clock(time.time(), ()), {}), {})
        self.changed(self.name)

    def holds(self, save: KeepModel) -> bool:
        """Whether it stands on disk, found by the admin's order, which no two rollbacks share."""
        kept = self.store.run(self.name).progress
        return (kept.model_hash, kept.rollback) == (save.progress.model.state.hash, self.columns(save.progress).rollback)

    def _open(self, save: OpenRound) -> None:
        """A number that was asked for in vain may stand on disk all the same. Nobody has heard of it, so it can be used."""
        number = save.round.number
        asked_before, self._asked_for = self._asked_for == number, number
        lines = () if save.line is None else (save.line,)
        try:
            self.store.open_round(self.name, number, save.progress.state.value, _events(*lines))
        except ConflictError:
            if not asked_before or self.store.run(self.name).open_round != number:
                raise

    def settle(self, machine: ServerRun, event: RunEvent) -> None:
        """Carries out what an event leads to as far as it concerns the disk: for a start, when nobody waits for anything."""
        for effect in machine.receive(event):
            if isinstance(effect, Save):
                self.write(effect)
                self.settle(machine, Saved(effect))
            elif isinstance(effect, Count):
                self.settle(machine, Counted(self.totals()))

    def commit(self, save: CommitRound, row: RoundRow, traffic: Mapping[str, Traffic]) -> None:
        """All of a round or nothing; trying again is safe."""
        closed = save.closed
        change = RoundCommit(
            self.name,
            row,
            self.columns(closed.progress),
            _stored(closed.update),
            self._step(closed) if closed.update.outcome is Outcome.APPLIED else None,
            traffic,
            ledger_entries(closed),
            _events(*save.lines),
        )
        try:
            self.store.commit_round(change)
        except ConflictError:
            # An earlier try may have succeeded and its answer been lost; figures are reckoned anew, but a round has one update.
            before = self.store.round_update(self.name, row.round)
            if before is None or before.header != change.update.header:
                raise
        self.changed(self.name)

    def tidy(self) -> None:
        """Lets go of what retention does not keep. May fail, and then does all of it the next time."""
        before, self._untidy = self._untidy, True
        self.store.forget_past(self.name)
        if self.store.retire_models(self.name, self.keep_models) or before:
            self.prune_models(self.store.run(self.name))
        self._untidy = False

    def _step(self, closed: ClosedRound) -> NewModel:
        """The round's own change, and every now and then the whole, so that a restart need not start from far."""
        model, descent = closed.progress.model, closed.update.descent
        assert descent is not None
        state = model.state
        residual = gather(model.residual, closed.result.indices)
        self.models.put_step(self.name, StoredStep(state.version, descent, residual, state.hash, state.chain))
        if self._checkpoint is None:
            known = [version for version in self.models.versions(self.name) if version < state.version]
            self._checkpoint = max(known, default=-CHECKPOINT_EVERY)
        if state.version - self._checkpoint >= CHECKPOINT_EVERY:
            return self._put(closed.progress)
        return _named(state)

    def _put(self, progress: RunProgress) -> NewModel:
        state, residual = progress.model.state, progress.model.residual
        self.models.put(self.name, state.version, state.vector, residual, state.hash, state.chain)
        self._checkpoint = state.version
        return _named(state)

    def columns(self, progress: RunProgress) -> Progress:
        """As the store keeps it."""
        state, clip_range = progress.model.state, progress.clip_range
        attendance = attendance_to_json(progress.attendance)
        return Progress(
            progress.last_round,
            state.version,
            state.hash,
            state.chain,
            clip_range.value,
            clip_range.quiet,
            attendance,
            self.buffer_seed,
            codec.rollback_to_wire(progress.rollback).SerializeToString() if progress.rollback is not None else None,
            codec.amendments_to_wire(progress.amendments, progress.amended).SerializeToString() or None,
        )

    def read(self, stored: StoredRun) -> RunProgress:
        """What a restart finds."""
        kept = stored.progress
        file = self.model(kept.model_version)
        if (file.hash, file.chain) != (kept.model_hash, kept.chain):
            raise another_model(self.name, kept.model_version)
        return self._progress(stored, ServerModel(ModelState(file.vector, file.version, file.hash, file.chain), file.residual))

    def read_without_model(self, stored: StoredRun) -> RunProgress:
        kept = stored.progress
        return self._progress(stored, ServerModel.lost(ModelName(kept.model_version, kept.model_hash, kept.chain)))

    def _progress(self, stored: StoredRun, model: ServerModel) -> RunProgress:
        kept = stored.progress
        amendments, amended = codec.amendments_from_wire(pb.Amendments.FromString(kept.amendments or b""))
        return RunProgress(
            RunState(stored.state),
            stored.reason,
            kept.last_round,
            model,
            attendance_from_json(kept.attendance),
            ClipRange(kept.clip_range, kept.clip_quiet),
            rollback=codec.rollback_from_wire(pb.SignedRollback.FromString(kept.rollback)) if kept.rollback else None,
            amendments=amendments,
            amended=amended,
        )

    def prune_models(self, stored: StoredRun) -> None:
        """Files that no row names: a server died between the two."""
        newest = stored.progress.model_version
        named = {row.version for row in self.store.models(self.name)}
        self.models.prune(self.name, named | {newest}, frozenset(range(newest - self.keep_updates + 1, newest + 1)))

    def update(self, number: int) -> Update:
        stored = self.store.round_update(self.name, number)
        if stored is None:
            raise NotFoundError(f"round {number} of run {self.name!r} is not known here", reason="UNKNOWN_ROUND")
        header = pb.UpdateHeader.FromString(stored.header)
        if stored.levels is not None and stored.coordinates is not None:
            return codec.update_from_wire(header, stored.coordinates + stored.levels)
        step = self.models.step(self.name, header.model_version)
        if step is None or step.hash != header.model_hash:
            raise NotFoundError(
                f"the update of round {number} is no longer kept; fetch the model instead", reason="UPDATE_NOT_KEPT"
            )
        return codec.update_from_wire(header, step.descent.coordinates + step.descent.levels)

    def model(self, version: int) -> StoredModel:
        return self.models.get(self.name, version)

    def note(self, kind: str, text: str, silo: str = "", round_number: int = 0, severity: str = "info") -> None:
        self._append([NewEvent(time.time(), kind, text, severity, round_number, silo)])

    def notes(self, lines: Sequence[Noted]) -> None:
        self._append(_events(*lines))

    def _append(self, events: Sequence[NewEvent]) -> None:
        self.store.append_events(self.name, events)
        self.changed(self.name)

    def keep_statement(self, statement: Statement) -> None:
        with self._reading:
            self.store.add_statement(self.name, statement.round, statement.silo, statement.signature)
            self._statements.pop(statement.round, None)

    def known_statements(self, number: int) -> tuple[Statement, ...] | None:
        """Without asking the database: every silo asks about the same round, and only this process writes about it."""
        return self._statements.get(number)

    def statements(self, number: int) -> tuple[Statement, ...]:
        """One of those who ask at the same time asks the database, the others wait for its answer."""
        with self._reading:
            known = self._statements.get(number)
            if known is not None:
                return known
            kept = self.store.statements(self.name, number)
            found = tuple(codec.statement_from_wire(pb.Statement(silo=s, signature=sig), self.run, number) for s, sig in kept)
            if len(self._statements) >= REMEMBERED_ROUNDS:
                self._statements.clear()
            self._statements[number] = found
        return found

    def totals(self) -> Totals:
        """Epsilon by the ledger kept here: no silo's word about itself ends a run for all."""
        figures = self.store.summary(self.name)
        return Totals(figures.rounds_applied + figures.rounds_skipped, figures.best_accuracy, figures.epsilon_counted)


def _stored(update: Update) -> StoredUpdate:
    """Without the values, which are the model store's, as a step."""
    header, _ = codec.update_to_wire(update)
    payload = (b"", b"") if update.descent is None else (None, None)
    return StoredUpdate(header.SerializeToString(), *payload)


def _named(state: ModelState) -> NewModel:
    return NewModel(state.version, state.hash, state.chain, FLOAT_BYTES * state.vector.size)


def _events(*lines: Noted) -> list[NewEvent]:
    now = time.time()
    return [NewEvent(now, line.kind, line.text, line.severity, line.round, line.silo or "") for line in lines]
