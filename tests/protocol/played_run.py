"""A run of the server with the silos of a federation, on a disk that can be looked at after every step of every write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.announcement import Dice
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.goals import Goals, Totals
from fedrep.protocol.manifests import RosterEntry, RoundManifest, RunManifest, SignedRoundManifest, SiloName
from fedrep.protocol.messages import Away, Back, DeadlinePassed, Event, Outcome, Phase, SignedRollback, Update, rollback_message
from fedrep.protocol.model_state import ServerModel, model_hash
from fedrep.protocol.round_effects import Noted
from fedrep.protocol.run_effects import (
    Announced,
    Answered,
    CommitRound,
    Count,
    Gather,
    KeepAttendance,
    KeepLine,
    KeepModel,
    KeepState,
    OpenRound,
    RunEffect,
    Save,
    SetTimer,
    StartGrace,
)
from fedrep.protocol.run_events import Counted, Joined, Restarted, RollBack, RoundDue, RunEvent, Saved, TimedOut
from fedrep.protocol.run_progress import RunProgress, RunState
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_run import ServerRun
from tests.protocol.federation import ADMIN, Federation, Silo, fingerprint_of


class Disk(Protocol):
    """What survives the process."""

    def write(self, save: Save) -> Iterator[None]:
        """Step by step: a crash may come after each."""
        ...

    def read(self) -> tuple[RunProgress, int]:
        """What a restart finds, and the number of the round that was open."""
        ...

    def update(self, number: int) -> Update | None: ...
    def totals(self) -> Totals: ...


@dataclass
class MemoryDisk:
    """The columns and files that a server has of a run, written as `RunRecords` writes them."""

    state: RunState
    reason: str
    last_round: int
    open_round: int
    version: int
    attendance: Attendance
    clip_range: ClipRange
    files: dict[int, ServerModel]
    rollback: SignedRollback | None = None
    updates: dict[int, Update] = field(default_factory=dict)
    lines: list[Noted] = field(default_factory=list)

    @classmethod
    def of(cls, rules: RunManifest, model: ServerModel) -> MemoryDisk:
        first = RunProgress.first(rules, model)
        return cls(first.state, first.reason, 0, 0, 0, first.attendance, first.clip_range, {0: model})

    def copy(self) -> MemoryDisk:
        return replace(self, files=dict(self.files), updates=dict(self.updates), lines=list(self.lines))

    def write(self, save: Save) -> Iterator[None]:
        for step in self.steps(save):
            step()
            yield

    def steps(self, save: Save) -> list[Callable[[], None]]:
        """The model's file, if there is a new one, then the transaction."""
        new_model = isinstance(save, KeepModel)
        if isinstance(save, CommitRound):
            new_model = save.closed.update.outcome is Outcome.APPLIED
        file: list[Callable[[], None]] = [lambda: self._put(save.progress.model)] if new_model else []
        return [*file, lambda: self._transact(save)]

    def _put(self, model: ServerModel) -> None:
        self.files[model.state.version] = model

    def _transact(self, save: Save) -> None:
        now = save.progress
        match save:
            case KeepLine():
                pass
            case KeepState():
                self.state, self.reason = now.state, now.reason
            case KeepAttendance() | KeepModel():
                self._keep(now)
            case OpenRound():
                assert save.round.number > max(self.open_round, self.last_round), "a number is given out once"
                self.open_round, self.state, self.reason = save.round.number, now.state, ""
            case CommitRound():
                assert now.last_round > self.last_round
                self._keep(now)
                self.open_round = 0
                self.updates[now.last_round] = save.closed.update
        self.lines += save.lines if isinstance(save, CommitRound) else [save.line] if save.line is not None else []

    def _keep(self, now: RunProgress) -> None:
        self.last_round, self.version = now.last_round, now.model.state.version
        self.attendance, self.clip_range, self.rollback = now.attendance, now.clip_range, now.rollback

    def read(self) -> tuple[RunProgress, int]:
        model = self.files[self.version]
        progress = RunProgress(self.state, self.reason, self.last_round, model, self.attendance, self.clip_range)
        return replace(progress, rollback=self.rollback), self.open_round

    def update(self, number: int) -> Update | None:
        return self.updates.get(number)

    def totals(self) -> Totals:
        return Totals(len(self.updates), None, 0.0)


def unsigned(manifest: RoundManifest) -> SignedRoundManifest:
    return SignedRoundManifest(manifest, b"")


def nothing() -> None:
    return


@dataclass
class Interpreter:
    """The smallest driver of a ServerRun: writes, hands in that it wrote, and remembers what others were told since.

    `moment` is called wherever a kill could come.
    """

    machine: ServerRun
    disk: Disk
    moment: Callable[[], None] = nothing
    heard: list[Announced | Answered | RunEvent] = field(default_factory=list)
    asked: list[Save] = field(default_factory=list)
    models: dict[int, ServerModel] = field(default_factory=dict)
    gathered: list[bool] = field(default_factory=list)
    timers: list[SetTimer] = field(default_factory=list)
    graces: list[StartGrace] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)

    def tell(self, event: RunEvent) -> None:
        self._carry_out(self.machine.receive(event))

    def command(self, event: RunEvent) -> None:
        """An admin's call, which is answered when all of it was carried out."""
        self.tell(event)
        self.heard.append(event)
        self.moment()

    def _carry_out(self, effects: Iterable[RunEffect]) -> None:
        for effect in effects:
            match effect:
                case Announced() | Answered():
                    self.hear(effect)
                case SetTimer():
                    self.timers.append(effect)
                case StartGrace():
                    self.graces.append(effect)
                case Gather():
                    self.gathered.append(effect.at_once)
                case Count():
                    self.tell(Counted(self.disk.totals()))
                case Noted():
                    self.notes.append(effect)
                case _:
                    self.save(effect)

    def hear(self, effect: Announced | Answered) -> None:
        self.heard.append(effect)
        self.moment()

    def save(self, save: Save) -> None:
        self.asked.append(save)
        self.models[save.progress.model.state.version] = copied(save.progress.model)
        for _ in self.disk.write(save):
            self.moment()
        self.tell(Saved(save))


def copied(model: ServerModel) -> ServerModel:
    """As it is now: the next one may take its memory."""
    return ServerModel(replace(model.state, vector=model.state.vector.copy()), model.residual.copy())


class Routed:
    """The open round as a federation's silos reach it: through the run."""

    def __init__(self, interpreter: Interpreter, played: ServerRound) -> None:
        self._interpreter = interpreter
        self._played = played

    def receive(self, event: Event) -> list[Any]:
        if isinstance(event, DeadlinePassed):
            self._interpreter.tell(TimedOut(self._played.manifest.round, event.phase, event.cut))
        elif isinstance(event, Away | Back):
            raise AssertionError("the run itself says who is away")
        else:
            self._interpreter.tell(event)
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._played, name)


@dataclass
class PlayedRun(Federation):
    """A federation whose rounds are announced and closed by the server's own machine."""

    interpreter: Interpreter = field(init=False)

    def serve(self, disk: Disk, driven_by: type[Interpreter] = Interpreter) -> Interpreter:
        """A server that starts, for the first time or again."""
        progress, was_open = disk.read()
        machine = ServerRun(self.run, progress, Dice(bytes(32)), unsigned, Goals(self.run.rounds))
        self.interpreter = driven_by(machine, disk)
        self.interpreter.tell(Restarted(was_open))
        return self.interpreter

    def entry(self, silo: Silo) -> RosterEntry:
        key = silo.announced_key()
        return RosterEntry(silo.name, fingerprint_of(silo.name), key, self.membership(silo).signed_key(key), self.promise)

    def join(self, *names: SiloName) -> None:
        for name in names or self.silos:
            silo = self.silos[name]
            self.interpreter.tell(Joined(self.entry(silo), silo.signing_key.verify_key))

    def rollback_to(self, version: int, vector: NDArray[np.float32], /, **changes: Any) -> RollBack:
        """As an admin's call brings it; whose signature it bears was checked before the machine hears of it."""
        following = self.interpreter.machine.progress.model.state.version + 1
        signature = ADMIN.sign(rollback_message(self.run.digest(), following, model_hash(vector)))
        order = SignedRollback(self.run.digest(), following, model_hash(vector), "ada", b"admin", signature)
        return RollBack(version, vector, replace(order, **changes))

    def open_round(self, roster: Iterable[SiloName] | None = None) -> RoundManifest:
        assert roster is None, "who takes part is the run's own decision"
        self.interpreter.tell(RoundDue())
        opened = self.interpreter.machine.open
        assert opened is not None
        self.model, self.rollback = self.interpreter.machine.progress.model, self.interpreter.machine.progress.rollback
        self.manifest = opened.signed.manifest
        self.round_number = self.manifest.round
        self.server = cast(ServerRound, Routed(self.interpreter, opened.machine))
        for name in self.manifest.names:
            self.announce(self.silos[name])
        return self.manifest

    def finish(self) -> Update:
        answers = [told.update for told in self.interpreter.heard if isinstance(told, Answered)]
        self.model = self.interpreter.machine.progress.model
        self.told[answers[-1].round] = answers[-1]
        for silo in self.silos.values():
            self.tell(silo, answers[-1])
        return answers[-1]

    def play_all(self, silent_from: dict[SiloName, Phase] | None = None) -> Update:
        """A round that everyone joins, or joins again, before."""
        self.join()
        return self.play(silent_from=silent_from)
