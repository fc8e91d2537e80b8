"""A whole federation in one process: real messages, real cryptography, no network. Tests steer who drops out and who lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedrep import buffers
from fedrep.buffers import largest_buffer
from fedrep.protocol.error_memory import ErrorMemory, Pending
from fedrep.protocol.manifests import (
    Deadlines,
    RosterEntry,
    RoundManifest,
    RunManifest,
    SiloName,
    session_key_message,
)
from fedrep.protocol.messages import DeadlinePassed, Evidence, Outcome, Phase, Signatures, Update
from fedrep.protocol.model_state import ServerModel, model_hash
from fedrep.protocol.round_effects import Effect
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.silo_round import Confirmed, Membership, Observing, Proposed, Ready, Revealed, Submitted
from fedrep.protocol.silo_rules import PeerIdentity, Policy
from fedrep.protocol.thresholds import default_colluders, default_min_survivors, default_quorum
from fedrep.quantize import value_bits
from fedrep.secagg.keys import AgreementKey, SigningKey, generate_signing_key
from fedrep.sparsify import propose

Entropy = Callable[[int], bytes]


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
    bits = value_bits(int(str(settings["ring_bits"])), largest_buffer(quorum, silos, size))
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
    )
    return replace(base, **{**settings, "quorum": quorum, "colluders": colluders})  # type: ignore[arg-type]


@dataclass
class Silo:
    """One silo: its keys, its error memory and the step it has reached in the current round."""

    name: SiloName
    signing_key: SigningKey
    sessions: dict[bytes, AgreementKey]
    memory: ErrorMemory
    rng: np.random.Generator
    last_round: int = 0
    ready: Ready | None = None
    proposed: Proposed | None = None
    submitted: Submitted | None = None
    observing: Observing | None = None
    confirmed: Confirmed | None = None
    revealed: Revealed | None = None

    @property
    def identity(self) -> PeerIdentity:
        return PeerIdentity(self.name, "silo", fingerprint_of(self.name), self.signing_key.verify_key)


def fingerprint_of(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


@dataclass
class Federation:
    """Server and silos of one run. `play` runs a round to its end; every stage can also be taken by hand."""

    run: RunManifest
    model: ServerModel
    silos: dict[SiloName, Silo]
    rng: np.random.Generator
    policy: Policy = field(default_factory=Policy)
    round_number: int = 0
    server: ServerRound | None = None
    manifest: RoundManifest | None = None
    effects: list[Effect] = field(default_factory=list)
    updates: dict[SiloName, NDArray[np.float32]] = field(default_factory=dict)

    @classmethod
    def of(cls, silos: int, parameters: int = 64, seed: int = 0, key_kind: str = "ed25519", **changes: object) -> Federation:
        rng = np.random.default_rng(seed)
        vector = rng.normal(size=parameters).astype(np.float32)
        run = run_manifest(silos, vector, **changes)
        members = {}
        for name in run.silos:
            session = AgreementKey.generate(entropy_from(rng))
            members[name] = Silo(
                name,
                generate_signing_key(key_kind),  # type: ignore[arg-type]
                {session.public: session},
                ErrorMemory(np.zeros(parameters, np.float32)),
                np.random.default_rng(rng.integers(2**63)),
            )
        return cls(run, ServerModel.initial(vector), members, rng)

    @property
    def peers(self) -> dict[SiloName, PeerIdentity]:
        return {name: silo.identity for name, silo in self.silos.items()}

    @property
    def round(self) -> ServerRound:
        assert self.server is not None
        return self.server

    def open_round(self, roster: Iterable[SiloName] | None = None) -> RoundManifest:
        """A new manifest and machine; every silo of the roster checks it and gets ready."""
        self.round_number += 1
        names = sorted(roster if roster is not None else self.silos, key=str.encode)
        entries = []
        for name in names:
            silo = self.silos[name]
            key = list(silo.sessions)[-1]
            entries.append(
                RosterEntry(name, fingerprint_of(name), key, silo.signing_key.sign(session_key_message(self.run.digest(), key)))
            )
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
        order = tuple(SiloName(name) for name in buffers.shuffle(self.run.silos, self.rng))
        keys = {name: self.silos[name].signing_key.verify_key for name in names}
        self.server = ServerRound(self.run, self.manifest, keys, order, self.rng)
        for name in names:
            self.enter(self.silos[name])
        return self.manifest

    def membership(self, silo: Silo) -> Membership:
        return Membership(silo.name, self.run, self.policy, silo.signing_key)

    def enter(self, silo: Silo, manifest: RoundManifest | None = None) -> Ready:
        manifest = manifest or self.manifest
        assert manifest is not None
        silo.ready = Ready.enter(
            self.membership(silo),
            manifest,
            self.peers,
            silo.sessions,
            last_round=silo.last_round,
            model_hash=self.model.state.hash,
        )
        silo.proposed = silo.submitted = silo.observing = silo.confirmed = silo.revealed = None
        return silo.ready

    def train(self, silo: Silo, scale: float = 0.1) -> None:
        version = self.model.state.version
        if silo.memory.needs_training(version):
            fixed = self.updates.get(silo.name)
            if fixed is not None:
                silo.memory = silo.memory.trained(version, fixed)
                return
            update = silo.rng.normal(scale=scale, size=self.run.parameters).astype(np.float32)
            silo.memory = silo.memory.trained(version, update)

    def propose(self, silo: Silo) -> None:
        """Train, draw I_k, send the proposal."""
        self.effects += self.round.receive(self.prepare(silo).message)

    def prepare(self, silo: Silo) -> Proposed:
        """The proposal, ready to be sent."""
        assert silo.ready is not None
        assert self.manifest is not None
        self.train(silo)
        silo.last_round = self.manifest.round
        coordinates = propose(silo.memory.g(), self.manifest.per_silo, self.manifest.alpha, silo.rng)
        session = AgreementKey.generate(entropy_from(silo.rng))
        silo.proposed = silo.ready.propose(coordinates, session, entropy_from(silo.rng))
        silo.sessions[session.public] = session
        return silo.proposed

    def submit(self, silo: Silo) -> None:
        assert silo.proposed is not None
        consensus = self.round.consensus_for(silo.name)
        silo.submitted = silo.proposed.on_consensus(consensus, silo.memory.g(), silo.rng)
        silo.memory = silo.memory.submitted(Pending.of(silo.submitted))
        self.effects += self.round.receive(silo.submitted.message)

    def observe(self, silo: Silo) -> None:
        assert silo.ready is not None
        silo.last_round = self.round_number
        silo.observing = silo.ready.watch().on_consensus(self.round.consensus_for(silo.name))

    def confirm(self, silo: Silo) -> None:
        step = silo.submitted or silo.observing
        assert step is not None
        silo.confirmed = step.on_survivors(self.round.survivors())
        self.effects += self.round.receive(silo.confirmed.message)

    def reveal(self, silo: Silo, signatures: Signatures | None = None) -> None:
        assert silo.confirmed is not None
        silo.revealed = silo.confirmed.on_signatures(signatures if signatures is not None else self.round.confirmations())
        if self.round.phase is Phase.REVEAL:
            self.effects += self.round.receive(silo.revealed.message)

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
        result = self.round.result
        assert result is not None
        descent = None
        if result.outcome is Outcome.APPLIED:
            assert result.combined is not None
            self.model, descent = self.model.apply(
                result.indices, result.coordinates, result.combined.vector, self.run.downlink_bits
            )
        evidence = Evidence(result.survivors, result.confirmations, (), result.opened)
        update = Update(
            self.run.digest(), self.round_number, result.outcome, result.reason, self.model.state.name, evidence, descent
        )
        for silo in self.silos.values():
            silo.memory, _ = silo.memory.settle(update)
        return update
