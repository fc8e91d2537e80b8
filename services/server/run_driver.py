"""Drives one run: feeds messages and time into `ServerRound`, commits outcomes, wakes those who wait.

One lock per run orders the events; heavy work (signatures, sums, aggregation, database) happens in worker threads. A waiting
call costs one future. The outcome is in the database before the first silo hears of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import structlog

from fedrep import buffers
from fedrep.errors import FedrepError, OutOfPhaseError, RefusedError, WrongRoundError
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import (
    RosterEntry,
    RoundManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
    round_manifest_message,
)
from fedrep.protocol.messages import (
    Aborted,
    Confirmation,
    Consensus,
    DeadlinePassed,
    Effect,
    Event,
    Noted,
    Phase,
    PhaseStarted,
    Proposal,
    Reveal,
    RoundEnded,
    Signatures,
    Submission,
    SurvivorSet,
    Update,
)
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_rules import check_member
from fedrep.secagg.keys import SigningKey, VerifyKey
from fedrep.secagg.transcript import digest
from services.server.closing import Clock, ClosedRound, RunState, close_round
from services.server.config import ServerSettings
from services.server.journal import Journal
from services.server.store import Progress
from services.server.traffic import TrafficCounter

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A silo that joined: the key it signs with, as its certificate says."""

    name: SiloName
    verify_key: VerifyKey


@dataclass
class OpenRound:
    """The round in progress and its clock."""

    machine: ServerRound
    signed: SignedRoundManifest
    started_at: float
    marks: list[float]
    timer: asyncio.Task[None] | None = None
    clip_rates: dict[str, float] = field(default_factory=dict)


class RunDriver:
    """All state of one run in this process. Every public coroutine may raise FedrepError; nothing has changed then."""

    def __init__(
        self,
        signed: SignedRunManifest,
        model: ServerModel,
        journal: Journal,
        signing_key: SigningKey,
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
        self._signing_key = signing_key
        self._on_closed = on_closed
        self._settings = settings
        self._members: dict[SiloName, Member] = {}
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._gathering: asyncio.Task[None] | None = None
        self._stopping = False
        self._latest: Update | None = None
        self._proposed_last: dict[SiloName, bytes] = {}

    async def join(self, entry: RosterEntry, verify_key: VerifyKey) -> None:
        """The silo's session key was verified by the caller of this method."""
        async with self._lock:
            if entry.name not in self.manifest.silos:
                raise RefusedError(f"the run's manifest does not list {entry.name!r}; ask an admin", reason="NOT_ALLOWED")
            current = self.open.signed.manifest.round if self.open else self.last_round
            known = self.attendance.standings.get(entry.name)
            self.attendance = self.attendance.join(entry, current)
            self._members[entry.name] = Member(entry.name, verify_key)
            if known is None or not known.present or known.entry != entry:
                await self.note("joined", f"{entry.name} joined", silo=entry.name)
            self._gather()

    async def leave(self, name: SiloName) -> None:
        async with self._lock:
            self.attendance = self.attendance.leave(name)
            await self.note("left", f"{name} left the run", silo=name)

    async def deliver(self, event: Proposal | Submission | Confirmation | Reveal) -> None:
        """One message of a silo into the open round."""
        async with self._lock:
            if isinstance(event, Reveal) and event.round == self.last_round and self.open is None:
                return  # enough others were faster; that is no fault of this holder
            await self._receive(self._round_for(event.round), event)

    async def consensus(self, silo: SiloName, round_number: int) -> Consensus:
        machine = await self._wait(round_number, {Phase.PROPOSE})
        return await asyncio.to_thread(machine.consensus_for, silo)

    async def survivors(self, silo: SiloName, round_number: int) -> SurvivorSet:
        machine = await self._wait(round_number, {Phase.PROPOSE, Phase.SUBMIT})
        check_member(silo, machine.manifest)
        return machine.survivors()

    async def confirm(self, confirmation: Confirmation) -> Signatures:
        """Held until enough holders confirmed; the same signature may ask again."""
        machine = self._round_for(confirmation.round).machine
        if machine.phase is not Phase.DONE:
            await self.deliver(confirmation)
        await self._wait_while(lambda: machine.phase is Phase.CONFIRM)
        return machine.confirmations()

    async def update(self, round_number: int) -> Update | None:
        """The outcome of a round, from memory or the database; None while it is not known within the waiting time."""
        await self._wait_while(lambda: self.open is not None and self.open.signed.manifest.round == round_number)
        if self._latest is not None and self._latest.round == round_number:
            return self._latest
        if self.open is not None and self.open.signed.manifest.round == round_number:
            return None
        if round_number > self.last_round:
            raise WrongRoundError(f"round {round_number} has not started; round {self.last_round} was the last")
        return await asyncio.to_thread(self.journal.update, round_number)

    async def next_round(self) -> SignedRoundManifest | None:
        """The open round; a round that is about to start is waited for."""
        await self._wait_while(lambda: self.open is None and self._gathering is not None and not self._gathering.done())
        return self.open.signed if self.open is not None else None

    def report_clip_rate(self, silo: str, round_number: int, clip_rate: float) -> None:
        if self.open is not None and self.open.signed.manifest.round == round_number:
            self.open.clip_rates[silo] = clip_rate

    async def set_state(self, state: RunState, reason: str) -> None:
        async with self._lock:
            await self._set_state(state, reason)
            if state in (RunState.STOPPED, RunState.FINISHED) and self.open is not None:
                await self._receive(self.open, Aborted(reason or f"the run was {state.value}"))
            self._gather()

    async def change_attendance(self, change: Callable[[Attendance], Attendance], kind: str, text: str, silo: SiloName) -> None:
        async with self._lock:
            self.attendance = change(self.attendance)
            await self.note(kind, text, silo=silo, severity="warning")
            await asyncio.to_thread(self.journal.save_progress, self._progress(self.model))
            self._gather()

    async def replace_model(self, model: ServerModel, text: str) -> None:
        """Roll back: the open round is skipped, the older parameters become a new version."""
        async with self._lock:
            if self.open is not None:
                await self._receive(self.open, Aborted("the run was rolled back"))
            await asyncio.to_thread(self.journal.save_model, model, self._progress(model))
            self.model = model
            await self.note("rolled_back", text, severity="warning")
            self._gather()

    async def shut_down(self, grace: float) -> None:
        """Let the open round end within the grace period, else skip it; start no other."""
        self._stopping = True
        if self._gathering is not None:
            self._gathering.cancel()
        deadline = time.time() + grace
        while self.open is not None and time.time() < deadline:
            await asyncio.sleep(0.05)
        async with self._lock:
            if self.open is not None:
                await self._receive(self.open, Aborted("the server is shutting down"))

    async def note(self, kind: str, text: str, silo: str = "", round_number: int = 0, severity: str = "info") -> None:
        """A line in the run's event log, which the dashboard follows."""
        await asyncio.to_thread(self.journal.note, kind, text, silo, round_number, severity)

    def resume(self) -> None:
        """Start rounds again after a restart or creation."""
        self._gather()

    def _round_for(self, round_number: int) -> OpenRound:
        if self.open is None:
            raise OutOfPhaseError(f"no round is open in this run ({self.state.value}); ask for the update of your last round")
        current = self.open.signed.manifest.round
        if round_number != current:
            raise WrongRoundError(f"the message is for round {round_number}; round {current} is open")
        return self.open

    async def _wait(self, round_number: int, while_in: set[Phase]) -> ServerRound:
        machine = self._round_for(round_number).machine
        await self._wait_while(lambda: machine.phase in while_in)
        if machine.phase in while_in:
            raise OutOfPhaseError(f"round {round_number} is still in {machine.phase.name}; ask again", reason="NOT_YET")
        return machine

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        limit = asyncio.get_running_loop().time() + self._settings.wait_seconds
        while condition():
            left = limit - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    def _wake(self) -> None:
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()

    async def _receive(self, current: OpenRound, event: Event) -> None:
        effects = await asyncio.to_thread(current.machine.receive, event)
        await self._carry_out(current, effects)

    async def _carry_out(self, current: OpenRound, effects: list[Effect]) -> None:
        number = current.signed.manifest.round
        for effect in effects:
            match effect:
                case PhaseStarted(phase):
                    current.marks.append(time.time())
                    self._arm(current, phase)
                case Noted(kind, text, silo):
                    severity = "alert" if kind in ("discarded", "robustness") else "warning"
                    await self.note(kind, text, silo=silo or "", round_number=number, severity=severity)
                case RoundEnded():
                    pass  # the phase DONE that follows closes it
        if current.machine.phase is Phase.DONE and self.open is current:
            await self._close(current)
        if effects:
            self._wake()

    def _arm(self, current: OpenRound, phase: Phase) -> None:
        if current.timer is not None and current.timer is not asyncio.current_task():
            current.timer.cancel()
        if phase is Phase.DONE:
            return
        seconds: float = getattr(self.manifest.deadlines, phase.value)
        current.timer = asyncio.create_task(self._time_out(current, phase, seconds))

    async def _time_out(self, current: OpenRound, phase: Phase, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._lock:
            if self.open is current and current.machine.phase is phase:
                await self._receive(current, DeadlinePassed(phase))

    async def _close(self, current: OpenRound) -> None:
        """Commit, then answer, then go on. A database that is away is waited for: nobody hears of what is not on disk."""
        closed = await asyncio.to_thread(self._closed, current)
        delay = 0.5
        while True:
            try:
                await asyncio.to_thread(self.journal.commit, closed)
                break
            except FedrepError as error:
                log.error("round_not_committed", run=self.manifest.name, round=closed.update.round, problem=str(error))
                if self._stopping:
                    raise
                await asyncio.sleep(delay)
                delay = min(2 * delay, 30.0)
        self.model, self.attendance, self.clip_range = closed.model, closed.attendance, closed.clip_range
        self.last_round, self._latest, self.open = closed.update.round, closed.update, None
        self.last_activity = time.time()
        self._on_closed(self.manifest.name, closed)
        log.info(
            "round",
            run=self.manifest.name,
            round=closed.update.round,
            outcome=closed.update.outcome.value,
            reason=closed.update.reason or None,
            survivors=len(closed.update.survivors.names()) if closed.update.survivors else 0,
            seconds=round(current.marks[-1] - current.started_at, 3),
        )
        await self._after_round()

    async def _after_round(self) -> None:
        reason = await asyncio.to_thread(self.journal.reason_to_stop, self.last_round)
        if reason is not None and self.state is RunState.RUNNING:
            await self._set_state(RunState.FINISHED, reason)
        else:
            self._gather(at_once=True)

    def _closed(self, current: OpenRound) -> ClosedRound:
        return close_round(
            current.machine,
            self.model,
            self.attendance,
            self.clip_range,
            clip_rates=current.clip_rates,
            repeated=self._repeated(current.machine),
            clock=Clock(current.started_at, tuple(current.marks)),
            traffic=self.traffic.take(),
        )

    def _repeated(self, machine: ServerRound) -> frozenset[str]:
        """Silos that proposed exactly the coordinates they proposed last time: nothing new was released."""
        now = machine.proposed_coordinates()
        repeated = frozenset(silo for silo, code in now.items() if self._proposed_last.get(silo) == code)
        self._proposed_last.update(now)
        return repeated

    def _progress(self, model: ServerModel) -> Progress:
        return self.journal.progress(self.last_round, model, self.attendance, self.clip_range)

    async def _set_state(self, state: RunState, reason: str) -> None:
        self.state, self.state_reason = state, reason
        await asyncio.to_thread(self.journal.set_state, state, reason)
        self._wake()

    def _gather(self, *, at_once: bool = False) -> None:
        """Start the next round when everyone is here, or a quorum is and has waited long enough for the rest."""
        if self._stopping or self.open is not None or self.state not in (RunState.WAITING, RunState.RUNNING):
            return
        _, roster = self._next_roster()
        if len(roster) < self.manifest.quorum:
            return
        everyone = len(roster) == len(set(self.manifest.silos) - self.attendance.excluded)
        if self._gathering is None or self._gathering.done():
            wait = 0.0 if everyone or at_once else self._settings.gather_seconds
            self._gathering = asyncio.create_task(self._start_round_after(wait))
        elif everyone and self._gathering is not asyncio.current_task():
            self._gathering.cancel()
            self._gathering = asyncio.create_task(self._start_round_after(0.0))

    def _next_roster(self) -> tuple[int, tuple[RosterEntry, ...]]:
        """The next number whose roster reaches the quorum: waiting out penalties must not stop a run for good."""
        first = self.last_round + 1
        pauses = sorted({s.back_in_round for s in self.attendance.standings.values() if s.back_in_round > first})
        for number in (first, *pauses):
            roster = tuple(entry for entry in self.attendance.roster(number) if entry.name in self._members)
            if len(roster) >= self.manifest.quorum:
                return number, roster
        return first, ()

    async def _start_round_after(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        async with self._lock:
            number, roster = self._next_roster()
            ready = self.open is None and not self._stopping and self.state in (RunState.WAITING, RunState.RUNNING)
            if not ready or len(roster) < self.manifest.quorum:
                return
            if self.state is RunState.WAITING:
                await self._set_state(RunState.RUNNING, "")
            await asyncio.to_thread(self.journal.note_open_round, number)
            self._open_round(number, roster)
            self._wake()

    def _open_round(self, number: int, roster: tuple[RosterEntry, ...]) -> None:
        state = self.model.state
        rules = self.manifest
        manifest = RoundManifest(
            run=self.run,
            round=number,
            model_version=state.version,
            model_hash=state.hash,
            chain=state.chain,
            roster=roster,
            parameters=rules.parameters,
            coordinates=rules.coordinates,
            per_silo=rules.coordinates // len(roster),
            alpha=rules.alpha,
            buffer_size=rules.buffer_size,
            ring_bits=rules.ring_bits,
            value_bits=rules.value_bits,
            clip_range=self.clip_range.value,
            byzantine=rules.byzantine,
            deadlines=rules.deadlines,
        )
        signed = SignedRoundManifest(manifest, self._signing_key.sign(round_manifest_message(manifest)))
        keys = {entry.name: self._members[entry.name].verify_key for entry in roster}
        machine = ServerRound(rules, manifest, keys, self._order(number), self._rng("aggregate", number))
        now = time.time()
        self.open = OpenRound(machine, signed, now, [now])
        self._arm(self.open, Phase.PROPOSE)

    def _order(self, number: int) -> tuple[SiloName, ...]:
        """The same shuffle for `reshuffle_every` rounds."""
        return buffers.shuffle(self.manifest.silos, self._rng("buffers", number // self.manifest.reshuffle_every))

    def _rng(self, purpose: str, number: int) -> np.random.Generator:
        seed = digest("fedrep/server-random", self.journal.buffer_seed, purpose, number)
        return np.random.default_rng(int.from_bytes(seed, "little"))


def quiet_after_restart(attendance: Attendance) -> Attendance:
    """Penalties and exclusions outlast a restart; presence does not: silos join again."""
    absent = {name: replace(standing, present=False) for name, standing in attendance.standings.items()}
    return replace(attendance, standings=absent)
