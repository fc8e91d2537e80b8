"""Drives one run: feeds messages and time into `ServerRound`, commits outcomes, wakes those who wait.

One lock per run orders the events; heavy work (signatures, sums, aggregation, database) happens in worker threads. A waiting
call costs one future. The outcome is in the database before the first silo hears of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from fedrep.errors import FedrepError, OutOfPhaseError, UnknownSiloError, WrongRoundError
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RosterEntry, SignedRoundManifest, SignedRunManifest, SiloName
from fedrep.protocol.messages import (
    Aborted,
    Confirmation,
    Consensus,
    DeadlinePassed,
    Event,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    Signatures,
    Submission,
    SurvivorSet,
    Update,
)
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.round_effects import Effect, Noted, PhaseStarted, RoundEnded, RoundResult
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_rules import check_member
from fedrep.secagg.keys import VerifyKey
from fedrep_server.config import ServerSettings
from fedrep_server.rounds.closing import ClosedRound, RunState, close_round
from fedrep_server.rounds.journal import Journal
from fedrep_server.rounds.open_round import Dice, OpenRound, Releases, Seal, announce, next_roster
from fedrep_server.rounds.traffic import TrafficCounter
from fedrep_server.rounds.waiting import Bell, carried_through
from fedrep_server.store import NewEvent

log = structlog.get_logger(__name__)

LONGEST_PAUSE = 30.0


class RunDriver:
    """All state of one run in this process. Every public coroutine may raise FedrepError; nothing has changed then."""

    def __init__(
        self,
        signed: SignedRunManifest,
        model: ServerModel,
        journal: Journal,
        seal: Seal,
        settings: ServerSettings,
        *,
        state: RunState,
        state_reason: str,
        attendance: Attendance,
        clip_range: ClipRange,
        last_round: int,
        on_closed: Callable[[str, ClosedRound], None],
    ) -> None:
        self.signed = signed
        self.manifest = signed.manifest
        self.run = signed.manifest.digest()
        self.model = model
        self.journal = journal
        self.state = state
        self.state_reason = state_reason
        self.attendance = attendance
        self.clip_range = clip_range
        self.last_round = last_round
        self.last_activity = time.time()
        self.traffic = TrafficCounter()
        self.open: OpenRound | None = None
        self._seal = seal
        self._on_closed = on_closed
        self._settings = settings
        self._keys: dict[SiloName, VerifyKey] = {}
        self._dice = Dice(journal.buffer_seed)
        self._lock = asyncio.Lock()
        self._bell = Bell()
        self._gathering: asyncio.Task[None] | None = None
        self._stopping = False
        self._latest: Update | None = None
        self._releases = Releases()

    def check_allowed(self, silo: str) -> None:
        if silo not in self.manifest.silos:
            raise UnknownSiloError(
                f"run {self.manifest.name!r} does not list {silo!r}; ask an admin of the federation", reason="NOT_ALLOWED"
            )

    @carried_through
    async def join(self, entry: RosterEntry, verify_key: VerifyKey) -> None:
        """The silo's session key was verified by the caller of this method."""
        self.check_allowed(entry.name)
        async with self._lock:
            known = self.attendance.standings.get(entry.name)
            if known is None or not known.present or known.entry != entry:
                await self.note("joined", f"{entry.name} joined", silo=entry.name)
            current = self.open.number if self.open else self.last_round
            self.attendance = self.attendance.join(entry, current)
            self._keys[entry.name] = verify_key
            self._gather()

    @carried_through
    async def leave(self, name: SiloName) -> None:
        """Leaving twice, or without having joined, changes nothing."""
        async with self._lock:
            standing = self.attendance.standings.get(name)
            if standing is not None and standing.present:
                await self.note("left", f"{name} left the run", silo=name)
                self.attendance = self.attendance.leave(name)

    @carried_through
    async def deliver(self, event: Proposal | Submission | Confirmation | Reveal) -> None:
        """One message of a silo into the open round."""
        async with self._lock:
            if isinstance(event, Reveal) and event.round == self.last_round:
                return  # enough others were faster; that is no fault of this holder
            await self._receive(self._round_for(event.round), event)

    async def consensus(self, silo: SiloName, round_number: int) -> Consensus:
        machine = await self._wait(round_number, {Phase.PROPOSE})
        return machine.consensus_for(silo)

    async def survivors(self, silo: SiloName, round_number: int) -> SurvivorSet:
        machine = await self._wait(round_number, {Phase.PROPOSE, Phase.SUBMIT})
        check_member(silo, machine.manifest)
        return machine.survivors()

    async def confirm(self, confirmation: Confirmation) -> Signatures:
        """Held until enough holders confirmed; the same signature may ask again. A holder that comes when the others were
        enough and the round was applied gets their signatures, and misses nothing."""
        latest = self._latest
        if latest is not None and latest.round == confirmation.round and latest.outcome is Outcome.APPLIED:
            return latest.evidence.confirmations
        machine = self._round_for(confirmation.round).machine
        await self.deliver(confirmation)
        await self._wait_while(lambda: machine.phase is Phase.CONFIRM)
        if machine.phase is Phase.CONFIRM:
            raise OutOfPhaseError("too few holders have confirmed so far; ask again", reason="NOT_YET")
        return machine.confirmations()

    async def update(self, round_number: int) -> Update | None:
        """The outcome of a round, from memory or the database; None while it is not known within the waiting time."""
        await self._wait_while(lambda: self.open is not None and self.open.number == round_number)
        if self._latest is not None and self._latest.round == round_number:
            return self._latest
        if self.open is not None and self.open.number == round_number:
            return None
        if round_number > self.last_round:
            raise WrongRoundError(f"round {round_number} has not started; round {self.last_round} was the last")
        return await asyncio.to_thread(self.journal.update, round_number)

    async def next_round(self) -> SignedRoundManifest | None:
        """The open round; a round that is about to start is waited for."""
        await self._wait_while(lambda: self.open is None and self._gathering is not None and not self._gathering.done())
        return self.open.signed if self.open is not None else None

    def report_clip_rate(self, silo: str, round_number: int, clip_rate: float) -> None:
        if self.open is not None and self.open.number == round_number:
            self.open.clip_rates[silo] = clip_rate

    async def stop(self, reason: str) -> None:
        """For good; stopping again changes nothing."""
        await self._change_state(RunState.STOPPED, reason, {RunState.WAITING, RunState.RUNNING, RunState.PAUSED})

    async def pause(self, reason: str) -> None:
        await self._change_state(RunState.PAUSED, reason, {RunState.WAITING, RunState.RUNNING})

    async def go_on(self) -> None:
        await self._change_state(RunState.RUNNING, "", {RunState.PAUSED})

    @carried_through
    async def _change_state(self, state: RunState, reason: str, possible_in: set[RunState]) -> None:
        async with self._lock:
            if self.state not in possible_in:
                if self.state.is_over and self.state is not state:
                    raise OutOfPhaseError(
                        f"run {self.manifest.name!r} is {self.state.value} for good; create a new run from its exported model",
                        reason="RUN_OVER",
                    )
                return
            await self._set_state(state, reason)
            if state is RunState.STOPPED and self.open is not None:
                await self._receive(self.open, Aborted(reason))
            self._gather()

    @carried_through
    async def change_attendance(self, change: Callable[[Attendance], Attendance], kind: str, text: str, silo: SiloName) -> None:
        async with self._lock:
            changed = change(self.attendance)
            progress = self.journal.progress(self.last_round, self.model, changed, self.clip_range)
            event = NewEvent(time.time(), kind, text, "warning", silo=silo)
            await asyncio.to_thread(self.journal.save_progress, progress, [event])
            self.attendance = changed
            self._gather()

    @carried_through
    async def replace_model(self, successor: Callable[[ServerModel], ServerModel], text: str) -> None:
        """Roll back: the open round is skipped, the older parameters become a new version."""
        async with self._lock:
            if self.open is not None:
                await self._receive(self.open, Aborted("the run was rolled back"))
            model = await asyncio.to_thread(successor, self.model)
            event = NewEvent(time.time(), "rolled_back", text, "warning", self.last_round)
            progress = self.journal.progress(self.last_round, model, self.attendance, self.clip_range)
            await asyncio.to_thread(self.journal.save_model, model, progress, [event])
            self.model = model
            self._gather()

    async def shut_down(self, grace: float) -> None:
        """Let the open round end within the grace period, else skip it; start no other."""
        self._stopping = True
        async with self._lock:
            if self._gathering is not None:
                self._gathering.cancel()
        deadline = time.time() + grace
        while self.open is not None and time.time() < deadline:
            await asyncio.sleep(0.05)
        async with self._lock:
            if self.open is not None:
                try:
                    await self._receive(self.open, Aborted("the server is shutting down"))
                except FedrepError as error:  # the round stays open on disk, and the next start skips it
                    log.error("round_left_open", run=self.manifest.name, round=self.open.number, problem=str(error))

    async def note(self, kind: str, text: str, silo: str = "", round_number: int = 0, severity: str = "info") -> None:
        """A line in the run's event log, which the dashboard follows."""
        await asyncio.to_thread(self.journal.note, kind, text, silo, round_number, severity)

    def _round_for(self, round_number: int) -> OpenRound:
        if self.open is None:
            raise OutOfPhaseError(f"no round is open in this run ({self.state.value}); ask for the update of your last round")
        if round_number != self.open.number:
            raise WrongRoundError(f"the message is for round {round_number}; round {self.open.number} is open")
        return self.open

    async def _wait(self, round_number: int, while_in: set[Phase]) -> ServerRound:
        machine = self._round_for(round_number).machine
        await self._wait_while(lambda: machine.phase in while_in)
        if machine.phase in while_in:
            raise OutOfPhaseError(f"round {round_number} is still in {machine.phase.name}; ask again", reason="NOT_YET")
        return machine

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        await self._bell.wait_while(condition, self._settings.wait_seconds)

    async def _receive(self, current: OpenRound, event: Event) -> None:
        effects = await asyncio.to_thread(current.machine.receive, event)
        await self._carry_out(current, effects)

    async def _carry_out(self, current: OpenRound, effects: list[Effect]) -> None:
        notes = []
        for effect in effects:
            match effect:
                case PhaseStarted(phase):
                    current.marks.append(time.time())
                    self._arm(current, phase)
                case Noted(kind, text, silo):
                    severity = "alert" if kind in ("discarded", "robustness") else "warning"
                    notes.append(NewEvent(time.time(), kind, text, severity, current.number, silo or ""))
                case RoundEnded(result):
                    current.marks.append(time.time())
                    self._disarm(current)
                    await self._close(current, result, notes)
        if effects:
            self._bell.ring()
        if notes and current.machine.phase is not Phase.DONE:
            await self._keep(notes)

    async def _keep(self, notes: list[NewEvent]) -> None:
        """The round goes on without its lines in the log when the database is away."""
        try:
            await asyncio.to_thread(self.journal.notes, notes)
        except FedrepError as error:
            log.warning("events_lost", run=self.manifest.name, events=[note.text for note in notes], problem=str(error))

    def _arm(self, current: OpenRound, phase: Phase) -> None:
        self._disarm(current)
        seconds: float = getattr(self.manifest.deadlines, phase.value)
        current.timer = asyncio.create_task(self._time_out(current, phase, seconds))

    def _disarm(self, current: OpenRound) -> None:
        if current.timer is not None and current.timer is not asyncio.current_task():
            current.timer.cancel()

    async def _time_out(self, current: OpenRound, phase: Phase, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._lock:
            if self.open is current and current.machine.phase is phase:
                await self._receive(current, DeadlinePassed(phase))

    async def _close(self, current: OpenRound, result: RoundResult, notes: list[NewEvent]) -> None:
        """Commit, then answer, then go on. A database that is away is waited for: nobody hears of what is not on disk."""
        closed = await asyncio.to_thread(self._closed, current, result)
        pause = 0.5
        while True:
            try:
                await asyncio.to_thread(self.journal.commit, closed, notes)
                break
            except FedrepError as error:
                log.error("round_not_committed", run=self.manifest.name, round=closed.update.round, problem=str(error))
                if self._stopping:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self.model, self.attendance, self.clip_range = closed.model, closed.attendance, closed.clip_range
        self.last_round, self._latest, self.open = closed.update.round, closed.update, None
        self.last_activity = time.time()
        self._on_closed(self.manifest.name, closed)
        log.info("round", run=self.manifest.name, **closed.in_a_line(current.marks[-1] - current.started_at))
        await self._after_round()

    async def _after_round(self) -> None:
        try:
            reason = await asyncio.to_thread(self.journal.reason_to_stop, self.last_round)
            if reason is not None and self.state is RunState.RUNNING:
                await self._set_state(RunState.FINISHED, reason)
        except FedrepError as error:  # asked again after the next round
            log.error("stop_rules_not_checked", run=self.manifest.name, problem=str(error))
        self._gather(at_once=True)

    def _closed(self, current: OpenRound, result: RoundResult) -> ClosedRound:
        return close_round(
            current.machine,
            result,
            self.model,
            self.attendance,
            self.clip_range,
            clip_rates=current.clip_rates,
            repeated=self._releases.repeated(current.machine),
            clock=current.clock(),
            traffic=self.traffic.take(),
        )

    async def _set_state(self, state: RunState, reason: str) -> None:
        await asyncio.to_thread(self.journal.set_state, state, reason)
        self.state, self.state_reason = state, reason
        self._bell.ring()

    def _gather(self, *, at_once: bool = False) -> None:
        """Start the next round when everyone is here, or a quorum is and has waited long enough for the rest."""
        if self._stopping or self.open is not None or self.state not in (RunState.WAITING, RunState.RUNNING):
            return
        _, roster = next_roster(self.attendance, self._keys, self.last_round, self.manifest.quorum)
        if len(roster) < self.manifest.quorum:
            return
        everyone = len(roster) == len(set(self.manifest.silos) - self.attendance.excluded)
        if self._gathering is None or self._gathering.done():
            wait = 0.0 if everyone or at_once else self._settings.gather_seconds
            self._gathering = asyncio.create_task(self._start_round_after(wait))
        elif everyone and self._gathering is not asyncio.current_task():
            self._gathering.cancel()
            self._gathering = asyncio.create_task(self._start_round_after(0.0))

    async def _start_round_after(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        pause = 0.5
        while True:
            try:
                async with self._lock:
                    await self._start_round()
                return
            except FedrepError as error:  # the database is away: the run waits for it
                log.error("round_not_started", run=self.manifest.name, problem=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _start_round(self) -> None:
        number, roster = next_roster(self.attendance, self._keys, self.last_round, self.manifest.quorum)
        ready = self.open is None and not self._stopping and self.state in (RunState.WAITING, RunState.RUNNING)
        if not ready or len(roster) < self.manifest.quorum:
            return
        await asyncio.to_thread(self.journal.note_open_round, number, first=self.state is RunState.WAITING)
        self.state, self.state_reason = RunState.RUNNING, ""
        self.open = await asyncio.to_thread(self._opened, number, roster)
        self._arm(self.open, Phase.PROPOSE)
        self._bell.ring()

    def _opened(self, number: int, roster: tuple[RosterEntry, ...]) -> OpenRound:
        rules, dice = self.manifest, self._dice
        signed = announce(rules, self.model.state, self.clip_range, number, roster, self._seal)
        keys = {entry.name: self._keys[entry.name] for entry in roster}
        machine = ServerRound(rules, signed.manifest, keys, dice.order(rules, number), dice.generator("aggregate", number))
        now = time.time()
        return OpenRound(machine, signed, now, [now])
