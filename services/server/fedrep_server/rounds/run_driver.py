"""One run as calls see it: each is an event for the run's machine, or a question to it that may have to wait.

A waiting call costs one future. No rule of the protocol lives here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from fedrep.errors import OutOfPhaseError
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RosterEntry, RunHash, RunManifest, SignedRoundManifest, SignedRunManifest, SiloName
from fedrep.protocol.messages import (
    Aborted,
    Abstention,
    Confirmation,
    Consensus,
    Phase,
    Proposal,
    Reveal,
    Signatures,
    SignedRollback,
    Statement,
    Submission,
    SurvivorSet,
    Update,
)
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.run_effects import (
    OpenedRound,
)
from fedrep.protocol.run_events import (
    Amend,
    Exclude,
    Joined,
    Left,
    LineBack,
    LineLost,
    Pause,
    Readmit,
    Resume,
    RollBack,
    Stop,
    Withdrew,
)
from fedrep.protocol.run_progress import RunState
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_rules import check_statement
from fedrep.protocol.server_run import ServerRun
from fedrep.secagg.keys import VerifyKey
from fedrep_server.config import ServerSettings
from fedrep_server.rounds.interpreter import Interpreter, RoundListener
from fedrep_server.rounds.model_store import StoredModel
from fedrep_server.rounds.presence_notes import PresenceNotes
from fedrep_server.rounds.records import RunRecords
from fedrep_server.rounds.traffic import TrafficCounter

log = structlog.get_logger(__name__)

LONGEST_PAUSE = 30.0


class RunDriver:
    """One run in this process.

    A public coroutine that raises FedrepError has changed nothing, with two exceptions: `roll_back` may have ended the open round
    before it failed, and whatever ends a round while the server shuts down and its database is away was taken, although its
    outcome is lost with the process (the next start skips the round).
    """

    def __init__(
        self,
        signed: SignedRunManifest,
        machine: ServerRun,
        records: RunRecords,
        settings: ServerSettings,
        listeners: Sequence[RoundListener] = (),
    ) -> None:
        self._first = signed
        self.damage = ""  # why there is no model, while there is none
        self.machine = machine
        self.records = records
        self._wait_seconds = settings.wait_seconds
        self._interpreter = Interpreter(machine, records, settings, listeners)
        self._first_came = 0.0
        self._lines: Counter[SiloName] = Counter()
        self._hanging_up: dict[SiloName, asyncio.Task[None]] = {}

    @property
    def signed(self) -> SignedRunManifest:
        """The manifest in force."""
        return self.chain[-1]

    @property
    def chain(self) -> tuple[SignedRunManifest, ...]:
        """It and those before it, oldest first."""
        return (self._first, *self.machine.progress.in_force)

    @property
    def amendment(self) -> SignedRunManifest | None:
        """The one that waits for its epoch."""
        return self.machine.progress.pending

    @property
    def manifest(self) -> RunManifest:
        return self.signed.manifest

    @property
    def run(self) -> RunHash:
        return self.manifest.digest()

    @property
    def traffic(self) -> TrafficCounter:
        return self._interpreter.traffic

    @property
    def idle_traffic(self) -> TrafficCounter:
        return self._interpreter.idle_traffic

    @property
    def last_activity(self) -> float:
        """When a round ended, or the server started, or the first silo came: before that nothing could have happened."""
        if self.state is RunState.WAITING and not self.present:
            return time.time()
        return max(self._interpreter.last_activity, self._first_came)

    @property
    def present(self) -> frozenset[SiloName]:
        """Silos that joined and answer, excluded ones too."""
        return frozenset(name for name, standing in self.attendance.standings.items() if standing.present)

    def holds_line(self, name: SiloName) -> bool:
        return self._lines[name] > 0

    @property
    def notes(self) -> PresenceNotes:
        return self._interpreter.notes

    @property
    def phase_began(self) -> float:
        return self._interpreter.phase_began

    @property
    def phase_ends(self) -> float:
        return self._interpreter.phase_ends

    @property
    def last_heard(self) -> float:
        """When a silo last said something in a round."""
        return self._interpreter.last_heard

    @property
    def open(self) -> OpenedRound | None:
        return self.machine.open

    @property
    def state(self) -> RunState:
        return self.machine.progress.state

    @property
    def state_reason(self) -> str:
        return self.damage if self.model.is_lost else self.machine.progress.reason

    @property
    def last_round(self) -> int:
        return self.machine.progress.last_round

    @property
    def model(self) -> ServerModel:
        return self.machine.progress.model

    @property
    def attendance(self) -> Attendance:
        return self.machine.progress.attendance

    @property
    def rollback(self) -> SignedRollback | None:
        """The latest that an admin signed: silos that come back later need it too."""
        return self.machine.progress.rollback

    @property
    def clip_range(self) -> ClipRange:
        return self.machine.progress.clip_range

    async def join(self, entry: RosterEntry, key: VerifyKey, kept: bytes = b"") -> None:
        """The silo's session key was verified by the caller of this method."""
        if not self.present:
            self._first_came = time.time()
        await self._interpreter.tell(Joined(entry, key, kept))

    async def leave(self, name: SiloName) -> None:
        await self._interpreter.tell(Left(name))

    async def attend(self, name: SiloName) -> None:
        """Held for the waiting time, or until the connection breaks: the silo counts as lost unless it soon calls again."""
        self._lines[name] += 1
        try:
            await self._interpreter.tell(LineBack(name))
            await asyncio.sleep(self._wait_seconds)
        finally:
            self._lines[name] -= 1
            if not self._lines[name] and name not in self._hanging_up:
                task = self._hanging_up[name] = asyncio.create_task(self._interpreter.tell(LineLost(name)))
                task.add_done_callback(lambda _: self._hanging_up.pop(name))

    async def withdraw(self, name: SiloName, round_number: int) -> None:
        """Who asks how the open round ends, before it has answered to all of it, has left it."""
        if self.machine.is_open(round_number) and self.open is not None:
            played = self.open.machine
            if played.phase is not Phase.REVEAL or played.waits_for(name):
                await self._interpreter.tell(Withdrew(name, round_number))

    async def deliver(self, message: Proposal | Abstention | Submission | Confirmation | Reveal) -> None:
        """One message of a silo into the open round."""
        await self._interpreter.tell(message)

    async def consensus(self, silo: SiloName, round_number: int) -> Consensus:
        played = await self._wait(round_number, {Phase.PROPOSE})
        return played.consensus_for(silo)

    async def survivors(self, silo: SiloName, round_number: int) -> SurvivorSet:
        played = await self._wait(round_number, {Phase.PROPOSE, Phase.SUBMIT})
        return played.survivors_for(silo)

    async def confirm(self, confirmation: Confirmation) -> tuple[Signatures, tuple[bytes, ...]]:
        """Held until enough holders confirmed; the same signature may ask again."""
        before = self.machine.confirmed_before(confirmation.round)
        if before is not None:
            return before, ()
        played = self.machine.round_for(confirmation.round)
        await self.deliver(confirmation)
        await self._wait_while(lambda: played.phase is Phase.CONFIRM)
        if played.phase is Phase.CONFIRM:
            raise OutOfPhaseError("too few holders have confirmed so far; ask again", reason="NOT_YET")
        return played.confirmations_for(confirmation.silo)

    async def update(self, round_number: int) -> Update | None:
        """The outcome of a round, from memory or the database; None while it is not known within the waiting time."""
        await self._wait_while(lambda: self.machine.is_open(round_number))
        if self.machine.is_open(round_number):
            return None
        known = self.machine.update_of(round_number)
        return known if known is not None else await asyncio.to_thread(self.records.update, round_number)

    async def next_round(self) -> SignedRoundManifest | None:
        """The open round; a round that is about to start is waited for."""
        await self._wait_while(lambda: self.open is None and self._interpreter.is_gathering)
        return self.open.signed if self.open is not None else None

    async def take_statement(self, statement: Statement, key: VerifyKey) -> None:
        check_statement(statement, self.machine.rules_of(statement.round).digest(), self.last_round, key)
        await asyncio.to_thread(self.records.keep_statement, statement)

    async def statements(self, round_number: int) -> tuple[Statement, ...]:
        known = self.records.known_statements(round_number)
        return known if known is not None else await asyncio.to_thread(self.records.statements, round_number)

    async def stop(self, reason: str) -> None:
        """For good; stopping again changes nothing."""
        await self._interpreter.tell(Stop(reason))

    async def pause(self, reason: str) -> None:
        await self._interpreter.tell(Pause(reason))

    async def go_on(self) -> None:
        await self._interpreter.tell(Resume())

    async def exclude(self, silo: SiloName, admin: str, reason: str) -> None:
        await self._interpreter.tell(Exclude(silo, admin, reason))

    async def readmit(self, silo: SiloName, admin: str) -> None:
        await self._interpreter.tell(Readmit(silo, admin))

    async def roll_back(self, kept: StoredModel, order: SignedRollback) -> None:
        """The open round is skipped, the older parameters become a new version. The order's signature was verified before."""
        await self._interpreter.tell(
            Aborted("the run was rolled back"),
            RollBack(kept.version, kept.vector, order),
            provided=lambda: self.machine.check_rollback(order, kept.hash),
        )

    async def amend(self, signed: SignedRunManifest) -> None:
        """The signature was verified before."""
        await self._interpreter.tell(Amend(signed))

    async def shut_down(self, grace: float) -> None:
        """Let the open round end within the grace period, else skip it; start no other."""
        await self._interpreter.shut_down(grace)

    async def note(self, kind: str, text: str, silo: str = "", round_number: int = 0, severity: str = "info") -> None:
        """A line in the run's event log, which the dashboard follows."""
        await asyncio.to_thread(self.records.note, kind, text, silo, round_number, severity)

    async def _wait(self, round_number: int, while_in: set[Phase]) -> ServerRound:
        played = self.machine.round_for(round_number)
        await self._wait_while(lambda: played.phase in while_in)
        if played.phase in while_in:
            raise OutOfPhaseError(f"round {round_number} is still in {played.phase.name}; ask again", reason="NOT_YET")
        return played

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        await self._interpreter.bell.wait_while(condition, self._wait_seconds)
