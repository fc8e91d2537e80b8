"""A run on the server as an event machine: `receive(event) -> effects`, between rounds and around them.

It decides who may start a round, announces it, plays its messages into `ServerRound`, and turns the result into the next model
and the update. Effects are carried out in their order. A save among them is the last: once it is written, `Saved(save)` is
handed in, and only then does the run believe what it saved and let others hear of it. So nobody hears of a round number or an
outcome that a crash could take back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedrep.errors import NotFoundError, OutOfPhaseError, UnknownSiloError, WrongRoundError
from fedrep.protocol.amendments import check_amendment
from fedrep.protocol.announcement import Dice, announce, next_roster
from fedrep.protocol.attendance import Absence, SessionName
from fedrep.protocol.goals import Goals
from fedrep.protocol.manifests import RosterEntry, RoundManifest, RunManifest, SignedRoundManifest, SiloName
from fedrep.protocol.messages import (
    Aborted,
    Abstention,
    Away,
    Back,
    Confirmation,
    DeadlinePassed,
    Event,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    Signatures,
    SignedRollback,
    Submission,
    Update,
)
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.round_closing import ClosedRound, close_round, skip_after_restart
from fedrep.protocol.round_effects import Noted, PhaseStarted, RoundEnded
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
    OpenedRound,
    OpenRound,
    RunEffect,
    Save,
    SetTimer,
    StartGrace,
)
from fedrep.protocol.run_events import (
    Amend,
    Counted,
    CountUnknown,
    Exclude,
    GraceOver,
    Joined,
    Left,
    LineBack,
    LineLost,
    Pause,
    Readmit,
    Restarted,
    Resume,
    RollBack,
    RoundDue,
    RunEvent,
    Saved,
    Stop,
    TimedOut,
    Withdrew,
)
from fedrep.protocol.run_progress import RunProgress, RunState
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_rules import check_promise, check_rollback

Sign = Callable[[RoundManifest], SignedRoundManifest]

# Every change of a run's state. RoundDue needs a quorum besides, and totals that were counted since the last round; Counted needs
# a goal that is reached. A run whose signed numbers are used up is FINISHED when its next round would be due.
STATES: dict[tuple[RunState, type[RunEvent]], RunState] = {
    (RunState.WAITING, RoundDue): RunState.RUNNING,
    (RunState.WAITING, Pause): RunState.PAUSED,
    (RunState.WAITING, Stop): RunState.STOPPED,
    (RunState.RUNNING, RoundDue): RunState.RUNNING,
    (RunState.RUNNING, Counted): RunState.FINISHED,
    (RunState.RUNNING, Pause): RunState.PAUSED,
    (RunState.RUNNING, Stop): RunState.STOPPED,
    (RunState.PAUSED, Resume): RunState.RUNNING,
    (RunState.PAUSED, Stop): RunState.STOPPED,
}


class ServerRun:
    """`sign` puts the server's signature under a round's manifest; `progress` and `open` change as events are received.

    With `in_place` a model takes the memory of the one before it, also while its round is not committed yet.
    """

    def __init__(
        self, rules: RunManifest, progress: RunProgress, dice: Dice, sign: Sign, goals: Goals, *, in_place: bool = False
    ) -> None:
        self._first = rules
        self.progress = progress
        self.open: OpenedRound | None = None
        self.latest: Update | None = None
        self._dice = dice
        self._sign = sign
        self._goals = goals
        self._in_place = in_place
        self._asked: tuple[Save, RunProgress] | None = None
        self._broken: dict[SiloName, int] = {}
        self._losses = 0
        self._is_counted = progress.last_round == 0  # whether a goal could be reached that nobody knows of

    @property
    def rules(self) -> RunManifest:
        """The manifest in force: of the open round, or of the next one."""
        in_force = self.progress.in_force
        return in_force[-1].manifest if in_force else self._first

    @property
    def chain(self) -> tuple[RunManifest, ...]:
        """All manifests that are or were in force, oldest first."""
        return (self._first, *(signed.manifest for signed in self.progress.in_force))

    def rules_of(self, number: int) -> RunManifest:
        """What a round that was played was played under."""
        return next(manifest for manifest in reversed(self.chain) if manifest.from_round <= number)

    def receive(self, event: RunEvent) -> list[RunEffect]:
        match event:
            case Proposal() | Abstention() | Submission() | Confirmation() | Reveal():
                return self._deliver(event)
            case TimedOut():
                return self._play(DeadlinePassed(event.phase, event.cut)) if self.is_open(event.round) else []
            case Aborted():
                return self._play(event) if self.open is not None else []
            case Joined():
                return self._join(event)
            case Left():
                return self._leave(event)
            case LineLost():
                return self._lose(event.silo)
            case LineBack():
                return self._find_again(event.silo)
            case GraceOver():
                return self._give_up(event)
            case Withdrew():
                return self._withdraw(event)
            case RoundDue():
                return self._open_round()
            case Pause() | Resume() | Stop():
                return self._command(event)
            case Exclude() | Readmit():
                return self._change_attendance(event)
            case RollBack():
                return self._roll_back(event)
            case Amend():
                return self._amend(event)
            case Counted():
                return self._judge(event)
            case CountUnknown():
                return [Gather(True)] if self._may_count() else []
            case Restarted():
                return self._start_again(event)
            case Saved():
                return self._believe(event.save)

    def check_allowed(self, silo: str, about: int = 0) -> None:
        """By the manifest in force; who has left may still ask `about` a round of its time."""
        name, pending = self.rules.name, self.progress.pending
        listing = [manifest for manifest in self.chain if silo in manifest.silos]
        if self.rules in listing or (about >= 1 and self.rules_of(about) in listing):
            return
        if listing:
            raise UnknownSiloError(
                f"an admin took {silo!r} off the list of run {name!r}; there is nothing left for it to do here",
                reason="NOT_ALLOWED",
            )
        if pending is not None and silo in pending.manifest.silos:
            raise NotFoundError(f"run {name!r} lists {silo!r} from round {pending.manifest.from_round} on", reason="UNKNOWN_RUN")
        raise UnknownSiloError(f"run {name!r} does not list {silo!r}; ask an admin of the federation", reason="NOT_ALLOWED")

    def check_rollback(self, order: SignedRollback, wanted: bytes) -> None:
        """Whether it says what would happen now: the model of hash `wanted` becomes the next version of this run."""
        check_rollback(order, self.rules.digest(), self.progress.model.state.version, wanted)

    def is_open(self, number: int) -> bool:
        return self.open is not None and self.open.number == number

    def round_for(self, number: int) -> ServerRound:
        """The open round, if that is its number."""
        if self.open is None:
            state = self.progress.state.value
            raise OutOfPhaseError(f"no round is open in this run ({state}); ask for the update of your last round")
        if number != self.open.number:
            raise WrongRoundError(f"the message is for round {number}; round {self.open.number} is open")
        return self.open.machine

    def update_of(self, number: int) -> Update | None:
        """The outcome of a round that is over; None if it is on disk only."""
        if self.latest is not None and self.latest.round == number:
            return self.latest
        if number > self.progress.last_round:
            raise WrongRoundError(f"round {number} has not started; round {self.progress.last_round} was the last")
        return None

    def confirmed_before(self, number: int) -> Signatures | None:
        """For a holder that comes when the others were enough and the round was applied: it misses nothing."""
        latest = self.latest
        if latest is None or latest.round != number or latest.outcome is not Outcome.APPLIED:
            return None
        return latest.evidence.confirmations

    def _deliver(self, message: Proposal | Abstention | Submission | Confirmation | Reveal) -> list[RunEffect]:
        if isinstance(message, Reveal) and message.round == self.progress.last_round:
            return []  # enough others were faster; that is no fault of this holder
        if isinstance(message, Confirmation) and self.confirmed_before(message.round) is not None:
            return []  # nor that the round was applied while it waited for its turn
        self.round_for(message.round)
        return self._play(message)

    def _play(self, *events: Event) -> list[RunEffect]:
        """A phase in which nobody is waited for is over: whoever has not answered is away."""
        assert self.open is not None
        manifest, played = self.open.signed.manifest, self.open.machine
        timers: list[RunEffect] = []
        notes: list[Noted] = []
        effects = [effect for event in events for effect in played.receive(event)]
        while played.phase is not Phase.DONE and not played.waits():
            effects += played.receive(DeadlinePassed(played.phase))
        for effect in effects:
            match effect:
                case PhaseStarted(phase):
                    timers.append(self._timer(manifest, phase))
                case Noted():
                    notes.append(replace(effect, round=manifest.round))
                case RoundEnded(result):
                    closed = _amended(close_round(self.rules, manifest, result, self.progress, in_place=self._in_place))
                    return self._ask(CommitRound(closed, (*notes, closed.line())))
        return [*timers, *notes]

    def _follow_presence(self) -> list[RunEffect]:
        """Who left, was excluded or lost its connection is waited for no longer, who is here again is."""
        if self.open is None:
            return self._gather()
        known = self.open.machine.away
        events: list[Event] = []
        for name in self.open.signed.manifest.names:
            away = self._away(name)
            if away is not None and name not in known:
                events.append(away)
            elif away is None and name in known:
                events.append(Back(name))
        return self._play(*events) if events else []

    def _away(self, silo: SiloName) -> Away | None:
        attendance = self.progress.attendance
        standing = attendance.standings[silo]
        if silo in attendance.excluded:
            return Away(silo, "was excluded")
        if not standing.present:
            return Away(silo, standing.absence.words)
        return None

    def _timer(self, manifest: RoundManifest, phase: Phase) -> SetTimer:
        seconds: float = getattr(manifest.deadlines, phase.value)
        return SetTimer(manifest.round, phase, seconds)

    def _join(self, event: Joined) -> list[RunEffect]:
        entry = event.entry
        self.check_allowed(entry.name)
        check_promise(entry, self.rules)
        self._broken.pop(entry.name, None)
        before = self.progress
        known = before.attendance.standings.get(entry.name)
        current = self.open.number if self.open is not None else before.last_round
        attendance = before.attendance.join(entry, current, event.kept)
        unsent = {silo: coded for silo, coded in before.unsent.items() if silo != entry.name}  # it may train again
        after = replace(before, attendance=attendance, keys={**before.keys, entry.name: event.key}, unsent=unsent)
        if known is None or not known.present:  # a mere change of keys is no news, or joining would flood the log
            return self._ask(KeepLine(after, Noted("joined", f"{entry.name} joined", entry.name, "info")))
        self.progress = after
        return self._follow_presence()

    def _is_present(self, silo: SiloName) -> bool:
        standing = self.progress.attendance.standings.get(silo)
        return standing is not None and standing.present

    def _lose(self, silo: SiloName) -> list[RunEffect]:
        """A connection may be back in a moment: only after its grace is the silo away. When a run is over, everyone goes home."""
        if self.progress.state.is_over or not self._is_present(silo) or silo in self._broken:
            return []
        self._losses += 1
        self._broken[silo] = self._losses
        return [StartGrace(silo, self._losses)]

    def _find_again(self, silo: SiloName) -> list[RunEffect]:
        """Only of one that was lost: who left joins again, and says so itself."""
        self._broken.pop(silo, None)
        standing = self.progress.attendance.standings.get(silo)
        if standing is None or standing.present or standing.absence is not Absence.LOST:
            return []
        after = replace(self.progress, attendance=self.progress.attendance.come_back(silo))
        return self._ask(KeepLine(after, Noted("back", f"the connection to {silo} is back", silo, "info")))

    def _give_up(self, event: GraceOver) -> list[RunEffect]:
        if self._broken.get(event.silo) != event.loss or not self._is_present(event.silo):
            return []
        after = replace(self.progress, attendance=self.progress.attendance.leave(event.silo, Absence.LOST))
        return self._ask(KeepLine(after, Noted("lost", f"the connection to {event.silo} is lost", event.silo)))

    def _withdraw(self, event: Withdrew) -> list[RunEffect]:
        if self.open is None or not self.is_open(event.round) or event.silo not in self.open.signed.manifest.names:
            return []
        return self._play(Away(event.silo, "left the round", for_good=True))

    def _leave(self, event: Left) -> list[RunEffect]:
        """Leaving twice, or without having joined, changes nothing. One that hung up first still says so."""
        standing = self.progress.attendance.standings.get(event.silo)
        if standing is None or not (standing.present or standing.absence is Absence.LOST):
            return []
        after = replace(self.progress, attendance=self.progress.attendance.leave(event.silo))
        return self._ask(KeepLine(after, Noted("left", f"{event.silo} left the run", event.silo, "info")))

    def _open_round(self) -> list[RunEffect]:
        before = self.progress
        state = STATES.get((before.state, RoundDue))
        number, roster = self.next_roster()
        if self.open is not None or state is None:
            return []
        if before.last_round >= self.rules.rounds:
            return self._finish(f"round {self.rules.rounds} was the last")
        if self._may_count() and not self._is_counted:
            return [Count()]
        if len(roster) < self.rules.quorum or before.model.is_lost:
            return []
        amended = before.amended_for(number)
        if amended is not before:  # the numbers in between wait out penalties, and are never given out
            return self._ask(KeepAttendance(amended, _amended_line(amended)))
        if number > self.rules.rounds:
            return self._finish(f"penalties leave no quorum before round {number}, and round {self.rules.rounds} is the last")
        manifest = announce(self.rules, before.model.state.name, before.clip_range, number, roster)
        keys = {entry.name: before.keys[entry.name] for entry in roster}
        rng = self._dice.generator("aggregate", number)
        opened = OpenedRound(ServerRound(self.rules, manifest, keys, rng), self._sign(manifest))
        line = _state_line(state, "") if state is not before.state else None
        attendance = before.attendance.opened(self._session_of(number), roster)
        return self._ask(OpenRound(replace(before, state=state, reason="", attendance=attendance), opened, line))

    def _command(self, event: Pause | Resume | Stop) -> list[RunEffect]:
        """What has happened already changes nothing."""
        before = self.progress
        state = STATES.get((before.state, type(event)))
        if state is not None:
            reason = "" if isinstance(event, Resume) else event.reason
            return self._ask(KeepState(replace(before, state=state, reason=reason), _state_line(state, reason)))
        if before.state.is_over and not (before.state is RunState.STOPPED and isinstance(event, Stop)):
            raise OutOfPhaseError(
                f"run {self.rules.name!r} is {before.state.value} for good; create a new run from its exported model",
                reason="RUN_OVER",
            )
        return []

    def _change_attendance(self, event: Exclude | Readmit) -> list[RunEffect]:
        attendance = self.progress.attendance
        if isinstance(event, Exclude):
            attendance = attendance.exclude(event.silo)
            text = f"{event.silo} excluded by {event.admin}" + (f": {event.reason}" if event.reason else "")
            line = Noted("excluded", text, event.silo)
        else:
            attendance = attendance.readmit(event.silo)
            line = Noted("readmitted", f"{event.silo} readmitted by {event.admin}", event.silo)
        return self._ask(KeepAttendance(replace(self.progress, attendance=attendance), line))

    def _roll_back(self, event: RollBack) -> list[RunEffect]:
        """The downlink residual starts at zero: it belonged to the updates that are taken back."""
        if self.open is not None:
            raise OutOfPhaseError("a round is open; end it before the model is rolled back")
        model = ServerModel(self.progress.model.state.succeeded_by(event.vector), np.zeros_like(event.vector))
        self.check_rollback(event.order, model.state.hash)
        text = f"rolled back to the parameters of version {event.version} by {event.order.admin}"
        line = Noted("rolled_back", text, round=self.progress.last_round)
        return self._ask(KeepModel(replace(self.progress, model=model, unsent={}, rollback=event.order), line))

    def _amend(self, event: Amend) -> list[RunEffect]:
        """One that waits for its epoch is replaced; nobody but the admins has heard of it."""
        before, new = self.progress, event.signed.manifest
        current = self.open.number if self.open is not None else before.last_round
        if before.state.is_over:
            raise OutOfPhaseError(f"run {self.rules.name!r} is {before.state.value} for good", reason="RUN_OVER")
        check_amendment(self.rules, new)
        if not current < new.from_round <= new.rounds:
            raise OutOfPhaseError(
                f"the list was signed for round {new.from_round}, and the run is in round {current} of {new.rounds}: sign it "
                "again, and pause the run first if its rounds are faster than you",
                reason="EPOCH_MOVED",
            )
        came, left = sorted(set(new.silos) - set(self.rules.silos)), sorted(set(self.rules.silos) - set(new.silos))
        changes = [f"{', '.join(names)} {verb}" for names, verb in ((came, "added"), (left, "removed")) if names]
        text = f"list of silos amended by {event.signed.admin} from round {new.from_round} on: {'; '.join(changes)}"
        after = replace(before, amendments=(*before.in_force, event.signed))
        if self.open is None:
            after = after.amended_for(before.last_round + 1)
        return self._ask(KeepAttendance(after, Noted("amended", text, severity="info", round=current)))

    def _may_count(self) -> bool:
        return self.open is None and (self.progress.state, Counted) in STATES

    def _judge(self, counted: Counted) -> list[RunEffect]:
        """A goal ends only a run that runs: of a paused one the totals are counted again when it goes on."""
        if not self._may_count():
            return []
        reason = self._goals.reached(counted.totals, self.progress.last_round)
        self._is_counted = reason is None
        return self._gather(at_once=True) if reason is None else self._finish(reason)

    def _finish(self, reason: str) -> list[RunEffect]:
        state = RunState.FINISHED
        return self._ask(KeepState(replace(self.progress, state=state, reason=reason), _state_line(state, reason)))

    def _start_again(self, event: Restarted) -> list[RunEffect]:
        """The server may have died before it counted the last round, or wrote what followed from that."""
        self.progress = self.progress.after_restart()
        self._is_counted = self._is_counted or event.counted
        if event.open_round <= self.progress.last_round:
            return self._open_round() if self._may_count() and not self._is_counted else []
        closed = _amended(skip_after_restart(self.rules, event.open_round, self.progress))
        return self._ask(CommitRound(closed, (closed.line(),)))

    def _ask(self, save: Save) -> list[RunEffect]:
        self._asked = save, self.progress
        return [save]

    def _believe(self, save: Save) -> list[RunEffect]:
        if self._asked is None or self._asked[0] is not save or self._asked[1] is not self.progress:
            raise OutOfPhaseError("the run has changed since it asked for this save, and would lose the change")
        self._asked = None
        self.progress = save.progress
        match save:
            case OpenRound():
                self.open = save.round
                return [Announced(save), self._timer(save.round.signed.manifest, Phase.PROPOSE)]
            case CommitRound():
                self.open, self.latest, self._is_counted = None, save.closed.update, False
                return [Answered(save), Count()]
            case KeepState() if self.open is not None and self.progress.state is RunState.STOPPED:
                return self._play(Aborted(self.progress.reason))
            case _:
                return self._follow_presence()

    def next_roster(self) -> tuple[int, tuple[RosterEntry, ...]]:
        """Of the next round and its number, if it were to start now; of nobody while there is no quorum."""
        now = self.progress
        last = max(now.last_round, self.rules.from_round - 1)
        return next_roster(now.attendance, now.keys, last, self.rules.quorum, self._session_of)

    def _session_of(self, number: int) -> SessionName:
        return self.rules.digest(), self.rules.session_start(number)

    def _gather(self, *, at_once: bool = False) -> list[RunEffect]:
        """A round starts when everyone is here, or a quorum is and has waited long enough for the rest.

        After the last number nobody is waited for: what is due then is the run's end.
        """
        if self.open is not None or (self.progress.state, RoundDue) not in STATES:
            return []
        if self.progress.last_round >= self.rules.rounds:
            return [Gather(True)]
        _, roster = self.next_roster()
        if len(roster) < self.rules.quorum or self.progress.model.is_lost:
            return []
        everyone = len(roster) == len(set(self.rules.silos) - self.progress.attendance.excluded)
        return [Gather(at_once or everyone)]


def _amended(closed: ClosedRound) -> ClosedRound:
    """In the same save as the last round of an epoch the list of the next one comes into force."""
    return replace(closed, progress=closed.progress.amended_for(closed.progress.last_round + 1))


def _amended_line(progress: RunProgress) -> Noted:
    manifest = progress.in_force[-1].manifest
    return Noted("amended", f"the list of silos for round {manifest.from_round} is in force", severity="info")


def _state_line(state: RunState, reason: str) -> Noted:
    return Noted("state", f"run is {state.value}" + (f": {reason}" if reason else ""), severity="info")
