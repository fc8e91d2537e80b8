"""The server of a simulation: the run's own machine, and what it answers each call. Nothing is on disk, and no clock runs.

What the service's interpreter, driver and servicer do over gRPC and a database happens here in plain calls: a save is believed
at once, a call that has to wait is answered with None and asked again, and whoever plays the run says when a phase is over.
"""

from __future__ import annotations

from collections.abc import Callable

from fedrep.errors import FedrepError, NotFoundError
from fedrep.protocol.announcement import Dice
from fedrep.protocol.goals import Goals, Totals
from fedrep.protocol.manifests import (
    RosterEntry,
    RoundManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
    round_manifest_message,
)
from fedrep.protocol.messages import Abstention, Confirmation, Phase, Proposal, Reveal, Statement, Submission
from fedrep.protocol.round_closing import ClosedRound, with_statements
from fedrep.protocol.round_effects import Noted
from fedrep.protocol.run_effects import (
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
)
from fedrep.protocol.run_events import Counted, Joined, Left, Restarted, RoundDue, RunEvent, Saved, TimedOut
from fedrep.protocol.run_progress import RunProgress
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.server_rules import check_member, check_session_key, check_statement
from fedrep.protocol.server_run import ServerRun
from fedrep.protocol.silo_effects import (
    Accepted,
    Answer,
    Certificates,
    Concluded,
    Confirmations,
    FetchedModel,
    GetCertificates,
    GetConsensus,
    GetModel,
    GetSurvivors,
    GetUpdate,
    Join,
    Refusal,
    Request,
)
from fedrep.protocol.silo_effects import Joined as JoinedAnswer
from fedrep_simulator.people import People
from fedrep_simulator.seeds import seed_bytes

Written = Callable[[Save], None]


class SimulatedServer:
    """`written` is told of everything that the service would put on disk, before anybody hears of it.

    `between` is where the run stood after the last round that was counted, whatever has happened in the next one.
    """

    def __init__(
        self, signed: SignedRunManifest, people: People, progress: RunProgress, goals: Goals, seed: int, written: Written
    ) -> None:
        self.people = people
        self.signed = signed
        self.closed: ClosedRound | None = None
        self.between = progress
        self.round_due = False
        self.counting = False
        self._written = written
        self._chains = {person.fingerprint: person.credentials.chain for person in people.silos.values()}
        self._confirming: dict[int, ServerRound] = {}
        self._statements: dict[int, dict[SiloName, Statement]] = {}
        self.machine = ServerRun(signed.manifest, progress, Dice(seed_bytes(seed, "server")), self._sign, goals)
        self.tell(Restarted(progress.last_round, counted=True))  # as `between` is

    def _sign(self, manifest: RoundManifest) -> SignedRoundManifest:
        return SignedRoundManifest(manifest, self.people.server.signing_key.sign(round_manifest_message(manifest)))

    @property
    def is_over(self) -> bool:
        return self.machine.progress.state.is_over

    def tell(self, event: RunEvent) -> None:
        for effect in self.machine.receive(event):
            self._carry_out(effect)

    def _carry_out(self, effect: RunEffect) -> None:
        match effect:
            case KeepLine() | KeepState() | KeepAttendance() | KeepModel() | OpenRound() | CommitRound():
                if isinstance(effect, CommitRound):
                    self.closed = effect.closed
                self._written(effect)
                self.tell(Saved(effect))
            case Gather():
                self.round_due = True
            case Count():
                self.counting = True
            case _:
                pass  # timers ring when nobody can go on; who waits asks again

    def open_round(self) -> None:
        self.round_due = False
        self.tell(RoundDue())

    def count(self, totals: Totals) -> None:
        self.counting = False
        self.tell(Counted(totals))
        self.between = self.machine.progress

    def time_out(self) -> None:
        """Nobody can go on: the time of the phase is over."""
        assert self.machine.open is not None
        self.tell(TimedOut(self.machine.open.number, self.machine.open.machine.phase))

    def leave(self, silo: SiloName) -> None:
        self.tell(Left(silo))

    def answer(self, silo: SiloName, request: Request) -> Answer | None:
        """None while the server holds the call."""
        try:
            return self._answer(silo, request)
        except FedrepError as error:
            return Refusal(error)

    def _answer(self, silo: SiloName, request: Request) -> Answer | None:
        machine = self.machine
        match request:
            case Join():
                return self._join(silo, request)
            case GetModel():
                state = machine.progress.model.state
                if request.version != state.version:
                    raise NotFoundError(f"version {request.version} is not kept here")
                return FetchedModel(state.version, state.vector)
            case GetCertificates(_, fingerprints):
                return Certificates({fingerprint: self._chains.get(fingerprint, b"") for fingerprint in fingerprints})
            case Proposal() | Abstention() | Submission() | Reveal():
                self.tell(request)
                return Accepted()
            case GetConsensus(_, number):
                played = machine.round_for(number)
                return None if played.phase is Phase.PROPOSE else played.consensus_for(silo)
            case GetSurvivors(_, number):
                played = machine.round_for(number)
                check_member(silo, played.manifest)
                return None if played.phase in (Phase.PROPOSE, Phase.SUBMIT) else played.survivors_for(silo)
            case Confirmation():
                return self._confirm(request)
            case GetUpdate():
                return self._update(silo, request)

    def _join(self, silo: SiloName, request: Join) -> JoinedAnswer:
        machine, person = self.machine, self.people.silos[silo]
        if request.session_key:
            entry = RosterEntry(silo, person.fingerprint, request.session_key, request.signature, request.promise)
            key = person.signing_key.verify_key
            check_session_key(entry, machine.rules.digest(), key)
            self.tell(Joined(entry, key, request.kept))
        progress = machine.progress
        signed = machine.open.signed if machine.open is not None else None
        chain = self.people.server.credentials.chain
        name = progress.model.state.name
        return JoinedAnswer(self.signed, signed, name, progress.state.value, chain, progress.last_round, 1)

    def _confirm(self, request: Confirmation) -> Confirmations | None:
        before = self.machine.confirmed_before(request.round)
        if before is not None:
            return Confirmations(before)
        played = self._confirming.get(id(request))
        if played is None:
            played = self._confirming[id(request)] = self.machine.round_for(request.round)
            self.tell(request)
        if played.phase is Phase.CONFIRM:
            return None
        del self._confirming[id(request)]
        return Confirmations(*played.confirmations_for(request.silo))

    def _update(self, silo: SiloName, request: GetUpdate) -> Concluded | None:
        machine = self.machine
        if request.statement is not None:
            key = self.people.silos[silo].signing_key.verify_key
            check_statement(request.statement, machine.rules.digest(), machine.progress.last_round, key)
            self._statements.setdefault(request.round, {})[silo] = request.statement
        if machine.is_open(request.round) or self.counting or self.round_due:
            return None
        update = machine.update_of(request.round)
        if update is None:
            raise NotFoundError(f"round {request.round} is not known here", reason="UNKNOWN_ROUND")
        told = with_statements(update, tuple(self._statements.get(request.round, {}).values()))
        following = machine.open.signed if machine.open is not None else None
        return Concluded(told, following, machine.progress.state.value)


def noted(save: Save) -> tuple[Noted, ...]:
    """The lines of the event log that belong to a save."""
    if isinstance(save, CommitRound):
        return save.lines
    return (save.line,) if save.line is not None else ()
