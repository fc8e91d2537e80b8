"""A whole federation in one process: real messages, real cryptography, no network. Tests steer who drops out and who lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrep.buffers import sizes
from fedrep.errors import CryptoError, OutOfPhaseError
from fedrep.privacy import Ledger
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.manifests import (
    Deadlines,
    RecordPromise,
    RosterEntry,
    RoundManifest,
    RunManifest,
    SignedRoundManifest,
    SignedRunManifest,
    SiloName,
    round_manifest_message,
    run_manifest_message,
)
from fedrep.protocol.messages import (
    Abstention,
    Confirmation,
    DeadlinePassed,
    Evidence,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    Signatures,
    SignedRollback,
    Submission,
    Update,
    rollback_message,
)
from fedrep.protocol.model_state import ServerModel, model_hash
from fedrep.protocol.round_effects import Effect
from fedrep.protocol.server_round import ServerRound
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
    Trained,
    TrainingFailed,
)
from fedrep.protocol.silo_identity import Conduct, Randomness, SiloIdentity
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_presence import Sessions
from fedrep.protocol.silo_round import Confirmed, Membership, Observing, Proposed, Ready, Revealed, Submitted
from fedrep.protocol.silo_rules import PeerIdentity, Policy
from fedrep.protocol.silo_state import SiloState
from fedrep.protocol.silo_table import Phase as SiloPhase
from fedrep.protocol.thresholds import default_colluders, default_min_survivors, default_quorum
from fedrep.quantize import value_bits
from fedrep.secagg.keys import AgreementKey, Entropy, SigningKey, generate_signing_key
from fedrep.secagg.pairs import Pairs
from tests.protocol.player import Player


def entropy_from(rng: np.random.Generator) -> Entropy:
    """Repeatable bytes for tests; the service uses `secrets`."""
    return lambda count: rng.bytes(count)


def run_manifest(silos: int, model: NDArray[np.float32], **changes: object) -> RunManifest:
    """A run that passes the preflight, with the defaults of the service; `changes` are applied before the derived values."""
    names = tuple(SiloName(f"silo-{number:02d}") for number in range(silos))
    settings: dict[str, object] = {"buffer_size": 2, "byzantine": 0, "ring_bits": 16, **changes}
    size, f = int(str(settings["buffer_size"])), int(str(settings["byzantine"]))
    quorum = int(str(settings.get("quorum", min(default_quorum(silos, size, f), silos))))
    colluders = int(str(settings.get("colluders", default_colluders(size))))
    bits = value_bits(int(str(settings["ring_bits"])), sizes(silos, size)[0])
    base = RunManifest(
        name="test",
        silos=names,
        parameters=model.size,
        layout_hash=bytes(32),
        model_hash=model_hash(model),
        coordinates=max(model.size // 4, silos),
        alpha=0.5,
        buffer_size=size,
        reshuffle_every=1,
        ring_bits=16,
        value_bits=bits,
        downlink_bits=16,
        initial_range=1.0,
        smallest_range=1e-6,
        largest_range=1e6,
        quorum=quorum,
        min_survivors=default_min_survivors(size, colluders),
        colluders=colluders,
        byzantine=f,
        aggregator="mean",
        aggregator_settings="{}",
        rounds=100,
        deadlines=Deadlines(60, 60, 60, 60),
        drills=False,
        buffer_seed=bytes(range(32)),
    )
    return replace(base, **{**settings, "quorum": quorum, "colluders": colluders})  # type: ignore[arg-type]


Step = TypeVar("Step")
ADMIN = generate_signing_key("ed25519")
SERVER = generate_signing_key("ed25519")


def fingerprint_of(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


class NoDrill:
    attack = ""

    def check(self, run: RunManifest) -> None:
        pass

    def share(self, run: RunManifest, round_number: int, g: NDArray[np.float32]) -> None:
        pass

    def of_update(self, _run: RunManifest, _round: int, g: NDArray[np.float32]) -> NDArray[np.float32]:
        return g


class NoLedgers:
    """This is the only run over the silo's data."""

    def of(self, _run: str) -> Ledger:
        return Ledger()

    def elsewhere(self, _run: str) -> float | None:
        return 0.0


class RememberingSessions(Sessions):
    """Erases keys as a silo does, and keeps them aside for tests that let it enter rounds that no silo would."""

    def __init__(self, entropy: Entropy) -> None:
        super().__init__(entropy)
        self.ever: dict[bytes, AgreementKey] = {}

    def new(self) -> AgreementKey:
        key = super().new()
        self.ever[key.public] = key
        return key


class Silo:
    """One silo: its machine, played by hand, and the steps it has reached in the current round, which tests may exchange."""

    def __init__(self, federation: Federation, name: SiloName, signing_key: SigningKey, rng: np.random.Generator) -> None:
        self.name = name
        self.signing_key = signing_key
        self.rng = rng
        self.listed = b""
        self._federation = federation
        self.player = Player(self._machine, SiloState.new(federation.run.parameters, {}))
        self.clear()

    def _machine(self, state: SiloState) -> SiloMachine:
        randomness = Randomness(lambda count: self.rng.bytes(count), lambda: self.rng, lambda: self.rng)
        federation = self._federation
        own = SiloIdentity(
            self.name,
            lambda: self.signing_key,
            federation,
            federation.policy,
            NoDrill(),
            NoLedgers(),
            randomness,
            federation.promise,
        )
        machine = SiloMachine(own, Conduct(federation.run.name), state)
        machine._sessions = RememberingSessions(randomness.secrets)
        return machine

    @property
    def every_key(self) -> dict[bytes, AgreementKey]:
        """Those that it has erased too."""
        sessions = self.machine._sessions
        assert isinstance(sessions, RememberingSessions)
        return sessions.ever

    def clear(self) -> None:
        self.ready: Ready | None = None
        self.proposed: Proposed | None = None
        self.submitted: Submitted | None = None
        self.observing: Observing | None = None
        self.confirmed: Confirmed | None = None
        self.revealed: Revealed | None = None

    @property
    def machine(self) -> SiloMachine:
        return self.player.machine

    @property
    def identity(self) -> PeerIdentity:
        return PeerIdentity(self.name, "silo", fingerprint_of(self.name), self.signing_key.verify_key)

    @property
    def memory(self) -> ErrorMemory:
        return self.machine.state.memory

    @memory.setter
    def memory(self, memory: ErrorMemory) -> None:
        self.machine.state = replace(self.machine.state, memory=memory)

    @property
    def g(self) -> NDArray[np.float32]:
        """Of its last training, sent or not; the residual alone if there is none."""
        pending, contribution = self.memory.pending, self.machine._contribution
        if contribution is None:
            contribution = pending.contribution if pending is not None else None
        return contribution.g if contribution is not None else self.memory.residual

    @property
    def last_round(self) -> int:
        return self.machine.state.journal.last_round

    @property
    def sessions(self) -> dict[bytes, AgreementKey]:
        return self.machine._sessions.keys

    @sessions.setter
    def sessions(self, keys: dict[bytes, AgreementKey]) -> None:
        self.machine._sessions.keys = keys

    @property
    def pairs(self) -> Pairs:
        return self.machine._sessions.pairs

    def announced_key(self) -> bytes:
        """The newest, as it goes out with Join; a silo in a round has erased the one that the round lists."""
        if self.listed:
            return self.listed
        return list(self.sessions)[-1] if self.sessions else self.machine._sessions.new().public

    def said(self, kind: type[Step]) -> Step:
        """The silo's message of that kind, which waits for its answer."""
        return next(message for message in self.player.waiting if isinstance(message, kind))

    def remember_step(self) -> None:
        part = self.machine.part
        if part is None:
            return
        self.ready = part.ready
        match part.step:
            case Proposed():
                self.proposed = part.step
            case Submitted():
                self.submitted = part.step
            case Observing():
                self.observing = part.step
            case Confirmed():
                self.confirmed = part.step
            case Revealed():
                self.revealed = part.step

    def exchange(self, step: Proposed | Submitted) -> None:
        """Go on as if this had been the silo's own step: what a liar does."""
        assert self.machine.part is not None
        self.machine.part.step = step
        self.remember_step()

    def answer(self, kind: type, answer: Answer) -> None:
        """Raises what the silo's own rules have against the answer, as its machine reports it."""
        self.player.news.clear()
        self.player.answer(kind, answer)
        self.remember_step()
        complaint = self.player.complaint()
        if complaint is not None:
            raise complaint.error


@dataclass
class Federation:
    """Server and silos of one run. `play` runs a round to its end; every stage can also be taken by hand."""

    run: RunManifest
    model: ServerModel
    rng: np.random.Generator
    silos: dict[SiloName, Silo] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    promise: RecordPromise | None = None
    round_number: int = 0
    server: ServerRound | None = None
    manifest: RoundManifest | None = None
    effects: list[Effect] = field(default_factory=list)
    updates: dict[SiloName, NDArray[np.float32]] = field(default_factory=dict)
    told: dict[int, Update] = field(default_factory=dict)
    rollback: SignedRollback | None = None

    @classmethod
    def of(cls, silos: int, parameters: int = 64, seed: int = 0, key_kind: str = "ed25519", **changes: object) -> Federation:
        rng = np.random.default_rng(seed)
        vector = rng.normal(size=parameters).astype(np.float32)
        run = run_manifest(silos, vector, **changes)
        federation = cls(run, ServerModel.initial(vector), rng)
        if run.record_epsilon_at_most is not None and run.delta_at_most is not None:
            federation.promise = RecordPromise(run.record_epsilon_at_most, run.delta_at_most)
        for name in run.silos:
            key = generate_signing_key(key_kind)  # type: ignore[arg-type]
            silo = Silo(federation, name, key, np.random.default_rng(rng.integers(2**63)))
            federation.silos[name] = silo
            silo.player.start()
            federation.answer_join(silo, None)
        return federation

    def member(self, chain: bytes, role: str, *, ended: bool = False) -> PeerIdentity:  # noqa: ARG002  these last for ever
        """The silos' trust store: a certificate is a name."""
        if role == "silo" and SiloName(chain.decode()) in self.silos:
            return self.silos[SiloName(chain.decode())].identity
        key = {"admin": ADMIN, "server": SERVER}.get(role)
        if key is None:
            raise CryptoError("nobody has this certificate")
        return PeerIdentity(SiloName(role), role, fingerprint_of(role), key.verify_key)

    @property
    def peers(self) -> dict[SiloName, PeerIdentity]:
        return {name: silo.identity for name, silo in self.silos.items()}

    @property
    def round(self) -> ServerRound:
        assert self.server is not None
        return self.server

    def answer_join(self, silo: Silo, signed: SignedRoundManifest | None) -> None:
        """Whatever the silo asks until it stands in the round, or waits for one."""
        state, order = self.model.state.name, self.rollback
        joined = Joined(self.signed_run(), signed, state, "running", b"server", self.round_number, 1, order)
        player = silo.player
        while player.waits_for(Join):
            silo.answer(Join, joined)
        if player.waits_for(GetModel):
            silo.answer(GetModel, FetchedModel(self.model.state.version, self.model.state.vector))
        if player.waits_for(GetCertificates):
            chains = {fingerprint_of(name): name.encode() for name in self.run.silos}
            silo.answer(GetCertificates, Certificates(chains))

    def open_round(self, roster: Iterable[SiloName] | None = None) -> RoundManifest:
        """A new manifest and machine; every silo of the roster checks it and gets ready."""
        manifest = self.new_round(roster)
        for name in manifest.names:
            self.announce(self.silos[name])
        return manifest

    def new_round(self, roster: Iterable[SiloName] | None = None) -> RoundManifest:
        """Of all who hold a session key, or of the roster given."""
        self.round_number += 1
        present = [name for name, silo in self.silos.items() if silo.sessions or silo.pairs.own]
        names = sorted(roster if roster is not None else present, key=str.encode)
        entries = []
        for name in names:
            silo = self.silos[name]
            key = silo.announced_key()
            entries.append(RosterEntry(name, fingerprint_of(name), key, self.membership(silo).signed_key(key), self.promise))
        state = self.model.state
        self.manifest = RoundManifest(
            run=self.run.digest(),
            round=self.round_number,
            model_version=state.version,
            model_hash=state.hash,
            chain=state.chain,
            roster=tuple(entries),
            parameters=self.run.parameters,
            coordinates=self.run.coordinates,
            per_silo=self.run.coordinates // len(entries),
            alpha=self.run.alpha,
            buffer_size=self.run.buffer_size,
            ring_bits=self.run.ring_bits,
            value_bits=self.run.value_bits,
            clip_range=self.run.initial_range,
            byzantine=self.run.byzantine,
            deadlines=self.run.deadlines,
        )
        keys = {name: self.silos[name].signing_key.verify_key for name in names}
        self.server = ServerRound(self.run, self.manifest, keys, self.rng)
        return self.manifest

    def signed(self) -> SignedRoundManifest:
        assert self.manifest is not None
        return SignedRoundManifest(self.manifest, SERVER.sign(round_manifest_message(self.manifest)))

    def signed_run(self) -> SignedRunManifest:
        return SignedRunManifest(self.run, "admin", b"admin", ADMIN.sign(run_manifest_message(self.run)))

    def order_rollback(self, by: SigningKey = ADMIN, **changes: object) -> None:
        """An admin signs that the run goes on from the server's model, whatever the updates led to."""
        state, run = self.model.state, self.run.digest()
        order = SignedRollback(run, state.version, state.hash, "admin", b"admin", b"")
        order = replace(order, **changes)  # type: ignore[arg-type]
        signature = by.sign(rollback_message(order.run, order.version, order.model_hash))
        self.rollback = replace(order, signature=signature)

    def membership(self, silo: Silo) -> Membership:
        return Membership(silo.name, self.run, self.policy, silo.signing_key, self.promise)

    def enter(self, silo: Silo, manifest: RoundManifest | None = None, *, last_round: int | None = None) -> Ready:
        """What the silo's rules say to a manifest, without its machine: a step of its own, to be played by hand."""
        manifest = manifest or self.manifest
        assert manifest is not None
        silo.clear()
        silo.ready = Ready.enter(
            self.membership(silo),
            manifest,
            self.peers,
            silo.sessions,
            last_round=silo.last_round if last_round is None else last_round,
            model_hash=self.model.state.hash,
            pairs=silo.pairs,
        )
        return silo.ready

    def announce(self, silo: Silo) -> None:
        """The silo hears of the round and gets ready, up to the beginning of its training."""
        assert self.manifest is not None
        self.leave_round(silo)
        silo.clear()
        silo.player.time_passes()
        self.answer_join(silo, self.signed())
        pending = silo.memory.pending
        if silo.machine.phase is SiloPhase.SETTLING and pending is not None:
            told = self.told.get(pending.place.round)
            nobody_knows = Refusal(OutOfPhaseError("nobody knows"))
            silo.answer(GetUpdate, nobody_knows if told is None else Concluded(told, None, "running"))
        silo.remember_step()

    def leave_round(self, silo: Silo) -> None:
        """A silo that is still in a round nobody will end goes back to waiting."""
        if silo.machine.phase is not SiloPhase.IDLE:
            self.miss_the_end(silo)
            silo.player.answer(GetUpdate, Refusal(OutOfPhaseError("nobody knows")))

    def miss_the_end(self, silo: Silo) -> None:
        """The round went on without this silo, which may still be training: it asks how the round ended."""
        while silo.machine.phase is not SiloPhase.CONCLUDING:
            if silo.machine.phase is SiloPhase.TRAINING and not silo.player.waits_for(GetConsensus):
                silo.player.time_passes()
            silo.player.answer(object, Refusal(OutOfPhaseError("the round is over")))

    def train(self, silo: Silo, scale: float = 0.1) -> None:
        """Whatever it trains comes to its end; a training for an older model is followed by one for the round's."""
        while silo.player.train is not None:
            train, silo.player.train = silo.player.train, None
            update = self.updates.get(silo.name)
            if update is None:
                update = silo.rng.normal(scale=scale, size=self.run.parameters).astype(np.float32)
            silo.player.feed(Trained(train.model.version, update, {}))
        silo.remember_step()

    def propose(self, silo: Silo) -> None:
        """Train, draw I_k, send the proposal."""
        self.prepare(silo)
        self.effects += self.round.receive(silo.said(Proposal))
        silo.answer(Proposal, Accepted())

    def prepare(self, silo: Silo) -> Proposed:
        """The proposal, ready to be sent."""
        self.train(silo)
        assert silo.proposed is not None
        return silo.proposed

    def abstain(self, silo: Silo) -> None:
        """Its training fails: the silo says that it proposes nothing."""
        train, silo.player.train = silo.player.train, None
        assert train is not None
        silo.player.feed(TrainingFailed(train.model.version, "no data today"))
        self.effects += self.round.receive(silo.said(Abstention))
        silo.answer(Abstention, Accepted())

    def submit(self, silo: Silo) -> None:
        """A silo whose buffer has too few proposers has nothing to submit, and goes on as a holder."""
        silo.answer(GetConsensus, self.round.consensus_for(silo.name))
        if silo.observing is not None:
            return
        self.effects += self.round.receive(silo.said(Submission))
        silo.answer(Submission, Accepted())

    def submit_in_vain(self, silo: Silo) -> None:
        """The submission comes too late: the silo goes on as a holder."""
        silo.answer(GetConsensus, self.round.consensus_for(silo.name))
        silo.answer(Submission, Refusal(OutOfPhaseError("too late")))

    def observe(self, silo: Silo) -> None:
        """The silo is not ready when the others agree: it goes on as a holder."""
        silo.player.time_passes()
        silo.answer(GetConsensus, self.round.consensus_for(silo.name))

    def confirm(self, silo: Silo) -> None:
        silo.answer(GetSurvivors, self.round.survivors_for(silo.name))
        self.effects += self.round.receive(silo.said(Confirmation))

    def reveal(self, silo: Silo, signatures: Signatures | None = None) -> None:
        told = (signatures,) if signatures is not None else self.round.confirmations_for(silo.name)
        silo.answer(Confirmation, Confirmations(*told))
        if self.round.phase is Phase.REVEAL:
            self.effects += self.round.receive(silo.said(Reveal))
        silo.answer(Reveal, Accepted())

    def finish_reveals(self) -> None:
        """Everyone who confirmed reveals, as long as the round wants it."""
        for silo in self.members:
            if silo.player.waits_for(Confirmation) and self.round.phase is Phase.REVEAL:
                self.reveal(silo)

    def deadline(self) -> None:
        self.effects += self.round.receive(DeadlinePassed(self.round.phase))

    def play(self, *, silent_from: dict[SiloName, Phase] | None = None) -> Update:
        """One round; a silo in `silent_from` falls silent when that phase begins."""
        gone = silent_from or {}

        def active(phase: Phase) -> list[Silo]:
            order = list(Phase)
            return [
                self.silos[name]
                for name in (self.manifest.names if self.manifest else ())
                if name not in gone or order.index(phase) < order.index(gone[name])
            ]

        self.open_round()
        for phase, act in (
            (Phase.PROPOSE, self.propose),
            (Phase.SUBMIT, self.submit),
            (Phase.CONFIRM, self.confirm),
            (Phase.REVEAL, self.reveal),
        ):
            if self.round.phase is Phase.DONE:
                break
            for silo in active(phase):
                if self.over:
                    break
                if phase is Phase.SUBMIT and silo.proposed is None:
                    continue
                if phase is Phase.CONFIRM and silo.submitted is None and silo.proposed is None:
                    self.observe(silo)
                act(silo)
            if self.round.phase is phase:
                self.deadline()
        return self.finish()

    def until(self, phase: Phase) -> ServerRound:
        """A new round, everyone honest and in time, up to `phase`; before REVEAL all confirm, not only the first t."""
        self.open_round()
        steps = {
            Phase.PROPOSE: self.propose,
            Phase.SUBMIT: self.submit,
            Phase.CONFIRM: self.confirm,
            Phase.REVEAL: self.reveal,
        }
        for current, act in steps.items():
            for silo in self.members:
                if current is phase or self.over:
                    break
                act(silo)
            if current is phase:
                break
        assert self.round.phase is phase
        return self.round

    @property
    def over(self) -> bool:
        return self.round.phase is Phase.DONE

    @property
    def members(self) -> list[Silo]:
        """The silos of the round's roster, in its order: position n is holder n + 1."""
        assert self.manifest is not None
        return [self.silos[name] for name in self.manifest.names]

    def by_buffer(self) -> list[list[Silo]]:
        """The silos of each buffer of the consensus."""
        consensus = self.round.consensus_for(self.members[0].name)
        return [[self.silos[place.silo] for place in buffer] for buffer in consensus.assignment]

    def finish(self) -> Update:
        """Apply the outcome on the server and let every silo settle its pending values."""
        update = self.told[self.round_number] = self.close()
        for silo in self.silos.values():
            self.tell(silo, update)
        return update

    def close(self) -> Update:
        """The next model, and what the server tells about the round."""
        result = self.round.result
        assert result is not None
        descent = None
        if result.outcome is Outcome.APPLIED:
            assert result.combined is not None
            self.model, descent = self.model.apply(
                result.indices, result.coordinates, result.combined.vector, self.run.downlink_bits
            )
        evidence = Evidence(result.survivors, result.confirmations, (), result.opened)
        return Update(
            self.run.digest(), self.round_number, result.outcome, result.reason, self.model.state.name, evidence, descent
        )

    def tell(self, silo: Silo, update: Update) -> None:
        """The outcome reaches the silo, wherever it stands; what it renounces is not passed on."""
        player, round_number = silo.player, update.round
        if silo.machine.part is None or silo.machine.part.manifest.round != round_number:
            return
        self.miss_the_end(silo)
        while player.waits_for(GetUpdate):
            player.answer(GetUpdate, Concluded(update, None, "running"))
