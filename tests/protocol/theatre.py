"""A federation that plays by itself in one process: the silos' own machines against the server's, round after round.

Nobody waits for a clock: when no silo can go on, the phase's time is over. A silo may fall silent in a phase of a round, or be
killed at any moment of its player's fuse and started again over what its disk holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import FedrepError, OutOfPhaseError
from fedrep.protocol.manifests import SignedRoundManifest, SignedRunManifest, SiloName
from fedrep.protocol.messages import Abstention, Confirmation, Phase, Proposal, Reveal, Statement, Submission, Update
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
    Joined,
    Refusal,
    Request,
    Trained,
    TrainingFailed,
)
from fedrep.protocol.silo_table import Phase as SiloPhase
from tests.protocol.federation import Federation, Silo, fingerprint_of
from tests.protocol.player import Killed

Silence = Mapping[tuple[int, SiloName], Phase]
Failures = Collection[tuple[int, SiloName]]
ORDER = list(Phase)


class Theatre:
    """`federation` holds server and silos; `deliver_last_words` says whether a killed silo's last message still arrives.

    In the rounds of `failures` a silo's training fails, and it abstains.
    """

    def __init__(
        self,
        federation: Federation,
        silence: Silence | None = None,
        *,
        failures: Failures = (),
        deliver_last_words: bool = False,
    ) -> None:
        self.federation = federation
        self.silence = dict(silence or {})
        self.failures = frozenset(failures)
        self.updates: dict[int, Update] = {}
        self.results: list[Update] = []
        self.statements: dict[int, dict[SiloName, Statement]] = {}
        self.trainings: dict[SiloName, list[NDArray[np.float32]]] = {name: [] for name in federation.silos}
        self.killed_in: list[int] = []
        self.last_words: list[Request] = []
        self.over = False
        self._deliver_last_words = deliver_last_words
        self._signed: SignedRoundManifest | None = None
        self._confirmed: set[int] = set()

    def play(self, rounds: int) -> list[Update]:
        for _ in range(rounds):
            self.play_round()
        self.over = True
        self._let_everyone_act()
        return self.results

    def play_round(self) -> Update:
        federation = self.federation
        self._let_everyone_act()  # who was killed joins again
        federation.new_round()
        self._signed = federation.signed()
        while not federation.over:
            if not self._let_everyone_act():
                federation.deadline()
        update = federation.close()
        self.updates[update.round] = update
        self.results.append(update)
        self._signed = None
        self._let_everyone_act()
        return update

    def silent(self, silo: Silo) -> bool:
        phase = self.silence.get((self.federation.round_number, silo.name))
        if phase is None or self.federation.server is None:
            return False
        return ORDER.index(self.federation.round.phase) >= ORDER.index(phase) and not self.federation.over

    def _let_everyone_act(self) -> bool:
        """Until nobody can go on; whether anybody could at all."""
        moved, going = False, True
        while going:
            going = False
            for silo in self.federation.silos.values():
                going |= not self.silent(silo) and self._act(silo)
            moved |= going
        return moved

    def _act(self, silo: Silo) -> bool:
        """One thing this silo can do now."""
        try:
            return self._start_or_train(silo) or (bool(silo.player.waiting) and self._answer(silo, silo.player.waiting[0]))
        except Killed:
            self.killed_in.append(self.federation.round_number)
            speech = Proposal | Abstention | Submission | Confirmation | Reveal | GetUpdate
            self.last_words = [message for message in silo.player.waiting[-1:] if isinstance(message, speech)]
            silo.player.restart()
            if self._deliver_last_words:
                for message in self.last_words:
                    self._hear(silo, message)
            return True

    def _start_or_train(self, silo: Silo) -> bool:
        player = silo.player
        if silo.machine.phase is SiloPhase.OUTSIDE:
            player.start()
            return True
        if silo.machine.phase is SiloPhase.IDLE and player.wait is not None and (self._signed is not None or self.over):
            player.time_passes()
            return True
        if player.train is not None:
            train, player.train = player.train, None
            if (self.federation.round_number, silo.name) in self.failures:
                player.feed(TrainingFailed(train.model.version, "no data today"))
                return True
            self.trainings[silo.name].append(self.update_of(silo))
            player.feed(Trained(train.model.version, self.trainings[silo.name][-1], {}))
            return True
        return False

    def update_of(self, silo: Silo) -> NDArray[np.float32]:
        return silo.rng.normal(scale=0.1, size=self.federation.run.parameters).astype(np.float32)

    def _answer(self, silo: Silo, request: Request) -> bool:
        answer = self._hear(silo, request)
        if answer is None:
            return False
        silo.player.waiting = [each for each in silo.player.waiting if each is not request]
        silo.player.feed_answer(request, answer)
        silo.remember_step()
        return True

    def _hear(self, silo: Silo, request: Request) -> Answer | None:
        """What the server says, or None while it holds the call."""
        try:
            return self.respond(silo, request)
        except FedrepError as error:
            return Refusal(error)

    def respond(self, silo: Silo, request: Request) -> Answer | None:
        federation = self.federation
        match request:
            case Join():
                state = "finished" if self.over else "running"
                return Joined(self.signed_run(), self._signed, federation.model.state.name, state, b"server", 0, 1)
            case GetModel():
                return FetchedModel(federation.model.state.version, federation.model.state.vector)
            case GetCertificates():
                return Certificates({fingerprint_of(name): name.encode() for name in federation.run.silos})
            case Proposal() | Abstention() | Submission() | Reveal():
                self._require_open(request.round)
                federation.effects += federation.round.receive(request)
                return Accepted()
            case GetConsensus():
                self._require_open(request.round)
                return None if federation.round.phase is Phase.PROPOSE else federation.round.consensus_for(silo.name)
            case GetSurvivors():
                self._require_open(request.round)
                return None if federation.round.phase is Phase.SUBMIT else federation.round.survivors()
            case Confirmation():
                return self._confirm(request)
            case GetUpdate():
                return self._update(request)
            case _:
                raise AssertionError(request)

    def signed_run(self) -> SignedRunManifest:
        return self.federation.signed_run()

    def _confirm(self, confirmation: Confirmation) -> Answer | None:
        federation = self.federation
        self._require_open(confirmation.round)
        if id(confirmation) not in self._confirmed:
            self._confirmed.add(id(confirmation))
            federation.effects += federation.round.receive(confirmation)
        return None if federation.round.phase is Phase.CONFIRM else Confirmations(federation.round.confirmations())

    def _update(self, request: GetUpdate) -> Answer | None:
        update = self.updates.get(request.round)
        if update is None:
            if self._signed is None or self._signed.manifest.round != request.round:
                raise OutOfPhaseError("that round has not started")
            return None
        if request.statement is not None:
            self.statements.setdefault(request.round, {})[request.statement.silo] = request.statement
        statements = tuple(self.statements.get(request.round, {}).values())
        told = replace(update, evidence=replace(update.evidence, statements=statements))
        return Concluded(told, self._signed, "running")

    def _require_open(self, round_number: int) -> None:
        if self._signed is None or self._signed.manifest.round != round_number:
            raise OutOfPhaseError(f"round {round_number} is not open")
