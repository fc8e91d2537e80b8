"""A run's memory: what the driver wants kept, as rows of the store and files of the model store. Blocking; call it in a thread.

The model file is written first and the transaction second, so that a crash between them leaves an orphan file and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedrep.errors import NotFoundError
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import Outcome, Statement, Update
from fedrep.protocol.model_state import ServerModel
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2 as observer
from fedrep_server.rounds.closing import ClosedRound, RunState, empty_row, skipped_by_restart
from fedrep_server.rounds.model_store import ModelStore, StoredModel
from fedrep_server.store import NewEvent, NewModel, Progress, RoundCommit, Store, StoredUpdate, attendance_to_json

Listener = Callable[[str], None]
FLOAT_BYTES = 4
REMEMBERED_ROUNDS = 32


@dataclass
class Journal:
    """`name` is the run's; `changed` is told after every write that observers may want to see."""

    name: str
    run: RunHash
    options: observer.RunOptions
    rounds: int
    buffer_seed: bytes
    store: Store
    models: ModelStore
    keep_models: int
    changed: Listener
    _statements: dict[int, tuple[Statement, ...]] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, closed: ClosedRound, notes: Sequence[NewEvent] = ()) -> None:
        """All of a round or nothing."""
        update, state = closed.update, closed.model.state
        model = None
        if update.outcome is Outcome.APPLIED:
            self.models.put(self.name, state.version, state.vector, closed.model.residual, state.hash, state.chain)
            model = NewModel(state.version, state.hash, state.chain, FLOAT_BYTES * state.vector.size)
        progress = self.progress(update.round, closed.model, closed.attendance, closed.clip_range)
        events = (*notes, _event(update))
        self._commit(RoundCommit(self.name, closed.row, progress, _stored(update), model, closed.traffic, closed.ledger, events))
        for version in self.store.retire_models(self.name, self.keep_models):
            self.models.delete(self.name, version)

    def commit_restart(self, number: int, model: ServerModel, attendance: Attendance, clip_range: ClipRange) -> None:
        """The round that was open when the process died ends as SKIPPED, with the reason."""
        update = skipped_by_restart(self.run, number, model)
        row = empty_row(number, update.reason, time.time(), clip_range.value, model.state.version)
        progress = self.progress(number, model, attendance, clip_range)
        self._commit(RoundCommit(self.name, row, progress, _stored(update), events=(_event(update),)))

    def _commit(self, commit: RoundCommit) -> None:
        self.store.commit_round(commit)
        self.changed(self.name)

    def progress(self, last_round: int, model: ServerModel, attendance: Attendance, clip_range: ClipRange) -> Progress:
        state = model.state
        return Progress(
            last_round,
            state.version,
            state.hash,
            state.chain,
            clip_range.value,
            clip_range.quiet,
            attendance_to_json(attendance),
            self.buffer_seed,
        )

    def save_progress(self, progress: Progress, events: Sequence[NewEvent]) -> None:
        self.store.save_progress(self.name, progress, None, events)
        self.changed(self.name)

    def save_model(self, model: ServerModel, progress: Progress, events: Sequence[NewEvent]) -> None:
        state = model.state
        self.models.put(self.name, state.version, state.vector, model.residual, state.hash, state.chain)
        row = NewModel(state.version, state.hash, state.chain, FLOAT_BYTES * state.vector.size)
        self.store.save_progress(self.name, progress, row, events)
        self.changed(self.name)

    def update(self, number: int) -> Update:
        stored = self.store.round_update(self.name, number)
        if stored is None:
            raise NotFoundError(f"round {number} of run {self.name!r} is not known here", reason="UNKNOWN_ROUND")
        header = pb.UpdateHeader.FromString(stored.header)
        if stored.levels is None or stored.coordinates is None:
            raise NotFoundError(
                f"the update of round {number} is no longer kept; fetch the model instead", reason="UPDATE_NOT_KEPT"
            )
        return codec.update_from_wire(header, stored.coordinates + stored.levels)

    def model(self, version: int) -> StoredModel:
        return self.models.get(self.name, version)

    def note_open_round(self, number: int, *, first: bool) -> None:
        """On disk before the round is announced; the first one of a run also turns it from waiting to running."""
        if first:
            self.set_state(RunState.RUNNING, "")
        self.store.open_round(self.name, number)

    def set_state(self, state: RunState, reason: str) -> None:
        text = f"run is {state.value}" + (f": {reason}" if reason else "")
        self.store.set_run_state(self.name, state.value, reason, [NewEvent(time.time(), "state", text)])
        self.changed(self.name)

    def note(self, kind: str, text: str, silo: str = "", round_number: int = 0, severity: str = "info") -> None:
        self.notes([NewEvent(time.time(), kind, text, severity, round_number, silo)])

    def notes(self, events: Sequence[NewEvent]) -> None:
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
        with self._reading:
            kept = self.store.statements(self.name, number)
            found = tuple(codec.statement_from_wire(pb.Statement(silo=s, signature=sig), self.run, number) for s, sig in kept)
            if len(self._statements) >= REMEMBERED_ROUNDS:
                self._statements.clear()
            self._statements[number] = found
        return found

    def reason_to_stop(self, last_round: int) -> str | None:
        """The run's own stop rules: rounds, target accuracy, epsilon budget."""
        figures = self.store.summary(self.name)
        done = figures.rounds_applied + figures.rounds_skipped
        if done >= self.rounds:
            return f"all {self.rounds} rounds played"
        target = self.options.target_accuracy
        if target and figures.best_accuracy is not None and figures.best_accuracy >= target:
            return f"target accuracy {target:g} reached"
        budget = self.options.epsilon_budget
        if budget and (figures.epsilon_total is None or figures.epsilon_total >= budget):
            return f"the epsilon budget of {budget:g} is used up after round {last_round}"
        return None


def _stored(update: Update) -> StoredUpdate:
    header, _ = codec.update_to_wire(update)
    descent = update.descent
    payload = (b"", b"") if descent is None else (descent.coordinates, descent.levels)
    return StoredUpdate(header.SerializeToString(), *payload)


def _event(update: Update) -> NewEvent:
    if update.outcome is Outcome.APPLIED:
        survivors = update.evidence.survivors
        count = len(survivors.names()) if survivors is not None else 0
        return NewEvent(time.time(), "round_applied", f"round {update.round} applied with {count} silos", round=update.round)
    text = f"round {update.round} skipped: {update.reason}"
    return NewEvent(time.time(), "round_skipped", text, "warning", update.round)
