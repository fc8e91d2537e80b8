"""Carries out what a run's machine asks for: writes before anybody hears of it, timers, and waking those who wait.

One turn per run orders the events; heavy work (signatures, sums, aggregation, database) happens in worker threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from fedrep.errors import FedrepError, StoreUnavailableError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Aborted, Abstention, Confirmation, Phase, Proposal, Reveal, Submission
from fedrep.protocol.pace import Pace
from fedrep.protocol.round_closing import ClosedRound
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
from fedrep.protocol.run_events import (
    Counted,
    CountUnknown,
    GraceOver,
    Joined,
    Left,
    LineBack,
    LineLost,
    RoundDue,
    RunEvent,
    Saved,
    TimedOut,
)
from fedrep.protocol.server_run import ServerRun
from fedrep_runtime.freed_memory import give_back
from fedrep_server.config import ServerSettings
from fedrep_server.rounds.presence_notes import PresenceNotes
from fedrep_server.rounds.records import RunRecords
from fedrep_server.rounds.round_row import Clock, round_row
from fedrep_server.rounds.traffic import TrafficCounter, together
from fedrep_server.rounds.waiting import Bell, Turn, carried_through
from fedrep_server.store import RoundRow

log = structlog.get_logger(__name__)

LONGEST_PAUSE = 30.0
INLINE_PARAMETERS = 500_000  # a thread for each message of a small model costs more than the message


_SMALL = (Confirmation, Abstention, Joined, Left, LineBack, LineLost)
_SPOKEN = (Proposal, Abstention, Submission, Confirmation, Reveal)
_AT_ONCE = (SetTimer, StartGrace, Gather, Announced, Answered)  # neither written nor asked for


@dataclass(frozen=True, slots=True)
class EndedRound:
    """A round that is on disk."""

    run: str
    closed: ClosedRound
    row: RoundRow


class RoundListener(Protocol):
    def round_ended(self, ended: EndedRound) -> None: ...
    def commit_failed(self) -> None:
        """The database did not take the end or the start of a round; it is tried again."""
        ...


class Interpreter:
    """`bell` rings whenever something has changed. `phase_ends` is when the open phase's time is over."""

    def __init__(
        self, machine: ServerRun, records: RunRecords, settings: ServerSettings, listeners: Sequence[RoundListener]
    ) -> None:
        self.machine = machine
        self.records = records
        self.traffic = TrafficCounter()
        self.idle_traffic = TrafficCounter()  # of silos that waited while there was no round
        self.last_activity = time.time()
        self.bell = Bell()
        self.lock = Turn()
        self._name = machine.rules.name
        self._gather_seconds = settings.gather_seconds
        self._grace_seconds = settings.line_grace_seconds
        self.pace = Pace(settings.pace_factor, settings.pace_floor)
        self.phase_ends = 0.0
        self.last_heard = 0.0
        self.notes = PresenceNotes()
        self.notes.follow(machine.progress.attendance)
        self._graces: dict[SiloName, asyncio.Task[None]] = {}
        self._listeners = listeners
        self._marks: list[float] = []
        self._timer: asyncio.Task[None] | None = None
        self._gathering: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def is_gathering(self) -> bool:
        """Whether a round is about to start."""
        return self._gathering is not None and not self._gathering.done()

    async def tell(self, *events: RunEvent, provided: Callable[[], None] | None = None) -> None:
        """In this order, and nothing else in between; none of them if `provided` raises.

        Who goes away before its turn takes its events along: however long a turn lasts, nothing is held that nobody waits for.
        """
        if len(events) == 1 and provided is None and self.lock.is_free and self._is_light(events[0]):
            await self._tell_now(events[0])
        else:
            await self.lock.come()
            await self._tell_in_turn(events, provided)

    async def _tell_now(self, event: RunEvent) -> None:
        """Most messages lead to nothing that takes time: a task for each would cost more than they do."""
        effects = self._received(event)
        if all(isinstance(effect, _AT_ONCE) for effect in effects):
            self._carry_out_at_once(effects)
            self.notes.follow(self.machine.progress.attendance)
        else:
            self.lock.take()  # free as before: nobody else has run since
            await self._finish(effects)

    @carried_through
    async def _finish(self, effects: list[RunEffect]) -> None:
        try:
            await self._carry_out(effects)
            self.notes.follow(self.machine.progress.attendance)
        finally:
            self.lock.give()

    @carried_through
    async def _tell_in_turn(self, events: Sequence[RunEvent], provided: Callable[[], None] | None) -> None:
        try:
            if provided is not None:
                provided()
            for event in events:
                await self._receive(event)
        finally:
            self.lock.give()

    async def shut_down(self, grace: float) -> None:
        """Let the open round end within the grace period, else skip it; start no other."""
        self._stopping = True
        async with self.lock:
            if self._gathering is not None:
                self._gathering.cancel()
        deadline = time.time() + grace
        while self.machine.open is not None and time.time() < deadline:
            await asyncio.sleep(0.05)
        async with self.lock:
            try:
                await self._receive(Aborted("the server is shutting down"))
            except FedrepError as error:  # the round stays open on disk, and the next start skips it
                log.error("round_left_open", run=self._name, problem=str(error))

    async def _receive(self, event: RunEvent) -> None:
        effects = self._received(event) if self._is_light(event) else await asyncio.to_thread(self._received, event)
        await self._carry_out(effects)
        self.notes.follow(self.machine.progress.attendance)

    def _received(self, event: RunEvent) -> list[RunEffect]:
        waited_for = self._proposers_waited_for(event)
        effects = self.machine.receive(event)
        self._time(waited_for)
        if isinstance(event, _SPOKEN):
            self.last_heard = time.time()
        elif isinstance(event, LineLost):
            self.notes.line_broke(event.silo)
        return effects

    def _is_light(self, event: RunEvent) -> bool:
        """Whether the event loop may spend the time: a signature or two, and at the end of a phase few passes over the model."""
        return isinstance(event, _SMALL) or self.machine.rules.parameters <= INLINE_PARAMETERS

    @property
    def phase_began(self) -> float:
        return self._marks[-1] if self._marks else self.last_activity

    def _proposers_waited_for(self, event: RunEvent) -> tuple[SiloName, ...]:
        """Those whose time to propose this event ends."""
        played = self.machine.open.machine if self.machine.open is not None else None
        if played is None or played.phase is not Phase.PROPOSE:
            return ()
        if isinstance(event, Proposal):
            return (event.silo,) if played.waits_for(event.silo) else ()
        return played.waited_for() if isinstance(event, TimedOut) else ()

    def _time(self, silos: tuple[SiloName, ...]) -> None:
        """They have proposed now, or had not when their time was over."""
        for silo in silos:
            self.pace = self.pace.after(silo, time.time() - self.phase_began)

    async def _carry_out(self, effects: list[RunEffect]) -> None:
        for effect in effects:
            match effect:
                case CommitRound():
                    await self._commit(effect)
                case KeepModel():
                    await self._keep_model(effect)
                case KeepLine():
                    await self._keep_line(effect)
                case KeepState() | KeepAttendance() | OpenRound():
                    await asyncio.to_thread(self.records.write, effect)
                    await self._saved(effect)
                case Count():
                    await self._count()
                case _:
                    self._carry_out_one(effect)
        if effects:
            self.bell.ring()
        await self._keep([effect for effect in effects if isinstance(effect, Noted)])

    def _carry_out_at_once(self, effects: list[RunEffect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)
        if effects:
            self.bell.ring()

    def _carry_out_one(self, effect: RunEffect) -> None:
        match effect:
            case SetTimer():
                self._set_timer(effect)
            case StartGrace():
                self._start_grace(effect)
            case Gather():
                self._gather(effect.at_once)
            case _:
                pass  # the bell tells those who wait; lines are kept when nobody waits for them

    async def _saved(self, save: Save) -> None:
        await self._carry_out(self.machine.receive(Saved(save)))

    async def _keep_line(self, save: KeepLine) -> None:
        """Nothing else of it is on disk, so the run goes on as well without it."""
        line = self.notes.worth_keeping(save.line)
        if line is not None:
            await asyncio.to_thread(self.records.write, replace(save, line=line))
        else:
            self.records.changed(self._name)
        await self._saved(save)

    async def _keep_model(self, save: KeepModel) -> None:
        """An error may be the loss of an answer only: the model is looked for before anybody hears that it was not kept."""
        try:
            await asyncio.to_thread(self.records.write, save)
        except StoreUnavailableError as error:
            if not await self._stands(save, error):
                raise
        await self._saved(save)

    async def _stands(self, save: KeepModel, error: FedrepError) -> bool:
        pause = 0.5
        while True:
            log.error("model_in_doubt", run=self._name, version=save.progress.model.state.version, problem=str(error))
            try:
                return await asyncio.to_thread(self.records.holds, save)
            except StoreUnavailableError as again:
                if self._stopping:
                    raise
                error = again
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _commit(self, save: CommitRound) -> None:
        """A database that is away is waited for: nobody hears of what is not on disk."""
        self._disarm()
        marks = (*self._marks, time.time())
        traffic, idle = self.traffic.take(), self.idle_traffic.take()
        row = await asyncio.to_thread(round_row, save.closed, Clock(marks[0], marks), traffic)
        pause = 0.5
        while True:
            try:
                await asyncio.to_thread(self.records.commit, save, row, together(traffic, idle))
                break
            except FedrepError as error:
                log.error("round_not_committed", run=self._name, round=row.round, problem=str(error))
                self._say_failed()
                if self._stopping:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self.last_activity = time.time()
        for listener in self._listeners:
            listener.round_ended(EndedRound(self._name, save.closed, row))
        log.info(
            "round",
            run=self._name,
            round=row.round,
            outcome=row.outcome.value,
            reason=row.reason or None,
            survivors=row.survivors,
            seconds=round(marks[-1] - marks[0], 3),
        )
        await self._follow(save)
        await self._tidy(save.closed.progress.model.state.vector.nbytes)

    async def _follow(self, save: CommitRound) -> None:
        """The round stands, and its silos hear so, whether or not the database says now what it led to."""
        try:
            await self._saved(save)
        except FedrepError as error:
            log.error("stop_rules_not_checked", run=self._name, problem=str(error))
            await self._carry_out(self.machine.receive(CountUnknown()))

    def _say_failed(self) -> None:
        for listener in self._listeners:
            listener.commit_failed()

    async def _tidy(self, model_bytes: int) -> None:
        """After everybody has been answered; what cannot be tidied now is tidied after the next round."""

        def tidy() -> None:
            give_back(model_bytes)
            self.records.tidy()

        try:
            await asyncio.to_thread(tidy)
        except FedrepError as error:
            log.warning("not_tidied", run=self._name, problem=str(error))

    async def _keep(self, lines: list[Noted]) -> None:
        """The round goes on without its lines in the log when the database is away."""
        if not lines:
            return
        try:
            await asyncio.to_thread(self.records.notes, lines)
        except FedrepError as error:
            log.warning("events_lost", run=self._name, events=[line.text for line in lines], problem=str(error))

    async def _count(self) -> None:
        totals = await asyncio.to_thread(self.records.totals)
        await self._carry_out(self.machine.receive(Counted(totals)))

    def _set_timer(self, wanted: SetTimer) -> None:
        self._disarm()
        if wanted.phase is Phase.PROPOSE:
            self._marks = []
        self._marks.append(time.time())
        given = self._paced(wanted)
        self.phase_ends = time.time() + given.seconds
        self._timer = asyncio.create_task(self._time_out(given, cut=given.seconds < wanted.seconds))

    def _paced(self, wanted: SetTimer) -> SetTimer:
        """Proposals are not waited for longer than the silos of this round lately took."""
        if wanted.phase is not Phase.PROPOSE or self.machine.open is None:
            return wanted
        return replace(wanted, seconds=self.pace.seconds(self.machine.open.signed.manifest.names, wanted.seconds))

    def _disarm(self) -> None:
        if self._timer is not None and self._timer is not asyncio.current_task():
            self._timer.cancel()

    async def _time_out(self, timer: SetTimer, cut: bool = False) -> None:
        await asyncio.sleep(timer.seconds)
        async with self.lock:
            await self._receive(TimedOut(timer.round, timer.phase, cut))

    def _start_grace(self, wanted: StartGrace) -> None:
        if self._stopping:
            return  # the server itself is about to hang up
        earlier = self._graces.pop(wanted.silo, None)
        if earlier is not None:
            earlier.cancel()
        self._graces[wanted.silo] = asyncio.create_task(self._end_grace(wanted))

    async def _end_grace(self, wanted: StartGrace) -> None:
        await asyncio.sleep(self._grace_seconds)
        pause = 0.5
        while not self._stopping:
            try:
                await self.tell(GraceOver(wanted.silo, wanted.loss))
                return
            except FedrepError as error:  # the database is away
                log.error("loss_not_noted", run=self._name, silo=wanted.silo, problem=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _gather(self, at_once: bool) -> None:
        """Silos that are here wait for the others, unless all are here or a round has just ended."""
        if self._stopping:
            return
        if self._gathering is not None and not self._gathering.done():
            if not at_once:
                return
            if self._gathering is not asyncio.current_task():  # which has counted, and is about to end
                self._gathering.cancel()
        wait = 0.0 if at_once else self._gather_seconds
        self._gathering = asyncio.create_task(self._start_round_after(wait))

    async def _start_round_after(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        pause = 0.5
        while True:
            try:
                async with self.lock:
                    if not self._stopping:
                        await self._receive(RoundDue())
                return
            except FedrepError as error:  # the database is away: the run waits for it
                log.error("round_not_started", run=self._name, problem=str(error))
                self._say_failed()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
