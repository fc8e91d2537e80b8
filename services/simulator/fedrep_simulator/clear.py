"""`--fast`: a round without any cryptography. What leaves a trace in the model is calculated as machines do, on the same draws.

No keys, shares, masks, signatures or messages: values are added up in the clear, in the same ring, so sums are the same to the
bit. Everybody plays by the rules of the protocol here, attackers included; what they lie about are values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import encode_coordinates
from fedrep.communication import bits_per_round
from fedrep.errors import FedrepError, InvalidInputError, RefusedError
from fedrep.patched import dense
from fedrep.privacy import Ledger
from fedrep.protocol.announcement import Dice, announce
from fedrep.protocol.attendance import Attendance, RoundReport
from fedrep.protocol.clip_range import RangeBits, range_bits
from fedrep.protocol.error_memory import Contribution, Fate, Pending, Place
from fedrep.protocol.goals import Totals
from fedrep.protocol.manifests import RosterEntry, RoundManifest, RunHash, SiloName
from fedrep.protocol.messages import Assigned, Outcome, Survivor, SurvivorSet
from fedrep.protocol.opening import Combined, combine_buffers, why_skipped
from fedrep.protocol.public_choice import PublicChoice
from fedrep.protocol.round_closing import close_round
from fedrep.protocol.round_effects import Noted, RoundResult
from fedrep.protocol.run_effects import CommitRound, KeepState
from fedrep.protocol.run_progress import RunState
from fedrep.protocol.seats import seats
from fedrep.protocol.silo_effects import Train, Trained, TrainingRefused
from fedrep.protocol.silo_rules import check_epsilon, check_run
from fedrep.protocol.silo_state import SiloState, TrainerState
from fedrep.protocol.thresholds import buffers_needed, openable_buffers
from fedrep.public_coordinates import only
from fedrep.quantize import RingFormat, open_mean, quantize
from fedrep.sparsify import gather, propose, union
from fedrep_simulator.desks import Result
from fedrep_simulator.engines import Engine
from fedrep_simulator.playing import PlayedRound, Scene, Standing, refuse_hopeless
from fedrep_simulator.seeds import SiloDice, seed_bytes
from fedrep_simulator.server import Written
from fedrep_simulator.traffic import Traffic, TrafficBook

# Where values lay decides what proves their fate. Here every fate is known, and nothing is proven.
_NOWHERE = Place(RunHash(b""), 0, SiloName(""), 0, b"", b"", 0, 0, 0, {})

Coordinates = NDArray[np.int64]


@dataclass(frozen=True)
class Offer:
    """A silo's part in the round: g, and what it proposes of it."""

    contribution: Contribution
    coordinates: Coordinates
    bits: RangeBits
    trainer: TrainerState


class ClearSilo:
    def __init__(self, scene: Scene, name: SiloName, state: SiloState) -> None:
        self.name = name
        self.state = state
        self.stopped: FedrepError | None = None
        self._scene = scene
        self._kept: Offer | None = None
        self._number = 0
        self._dice = SiloDice(scene.seed, name, lambda: self._number)
        self._drill = scene.coalition.drill(name)

    def enter(self, manifest: RoundManifest) -> Train | None:
        """What to train, if anything: the same g is proposed again while the model stays."""
        self._number = manifest.round
        model = self.state.model
        assert model is not None
        if self._kept is not None and self._kept.contribution.version != model.version:
            self._kept = None
        if self._kept is not None:
            return None
        public, run = self._public(manifest), self._scene.run
        try:
            if public is None:
                check_epsilon(manifest, self.state.journal.ledger, self._scene.policy, 0.0)
        except RefusedError as error:
            self.stopped = error
            return None
        left = max(1, run.rounds - manifest.round + 1)
        together = public.together if public is not None else None
        return Train(model, manifest.round, self.state.trainer, run.digest().hex(), left, together)

    def _public(self, manifest: RoundManifest) -> PublicChoice | None:
        start, model = self._scene.public_start, self.state.model
        if start is None or model is None:
            return None
        return PublicChoice.of(self._scene.run, manifest, self.name, model, start)

    def offer(self, manifest: RoundManifest, trained: Result | None) -> Offer | None:
        """None for a silo that abstains."""
        if self._kept is not None:
            bits = range_bits(self._kept.contribution.g, manifest.clip_range, manifest.per_silo)
            self._kept = replace(self._kept, bits=bits)
            self._drill.share(self._scene.run, manifest.round, self._kept.contribution.g)
            return self._kept
        if isinstance(trained, TrainingRefused):
            self.stopped = trained.error
        if not isinstance(trained, Trained):
            return None
        journal, public, update = self.state.journal, self._public(manifest), dense(trained.update)
        if public is not None:
            self.state = replace(self.state, memory=self.state.memory.without_residual())
            update = only(update, public.together)
        try:
            contribution = self.state.memory.contribution(journal.last_training + 1, trained.version, update)
        except InvalidInputError:
            return None
        if public is not None:
            coordinates = public.own
        else:
            coordinates = propose(contribution.g, manifest.per_silo, manifest.alpha, self._dice.draw())
            self.state = replace(self.state, journal=journal.charged(manifest, contribution.training, coordinates))
        bits = range_bits(contribution.g, manifest.clip_range, manifest.per_silo, contribution.peak)
        self._drill.share(self._scene.run, manifest.round, contribution.g)
        self._kept = Offer(contribution, coordinates, bits, trained.state)
        return self._kept

    def submit(self, manifest: RoundManifest, indices: Coordinates) -> NDArray[np.unsignedinteger]:
        """The levels it adds to its buffer's sum, which will be opened."""
        offer, self._kept = self._kept, None
        assert offer is not None
        contribution, memory = offer.contribution, self.state.memory
        ring = RingFormat(manifest.ring_bits, manifest.value_bits)
        crafted = self._drill.of_update(self._scene.run, manifest.round, contribution.g)
        values = quantize(gather(crafted, indices), manifest.clip_range, ring, self._dice.draw())
        sent = gather(contribution.g, indices) if self._drill.attack else values.dequantized
        pending = Pending(_NOWHERE, contribution, manifest.clip_range, indices, sent)
        self.state = replace(self.state, memory=replace(memory, pending=pending).settle(Fate.OPENED), trainer=offer.trainer)
        levels: NDArray[np.unsignedinteger] = values.levels
        return levels


class ClearPlay:
    """Nobody joins or leaves here, but who watches is told what the service would write: states and rounds."""

    def __init__(
        self, scene: Scene, standing: Standing, engine: Engine, traffic: TrafficBook, written: Written = lambda _: None
    ) -> None:
        check_run(scene.run, scene.policy, scene.run.silos[0], scene.promise)
        self.traffic = traffic
        self._scene = scene
        self._engine = engine
        self._written = written
        self._progress = replace(standing.progress, attendance=_everyone(standing.silos, standing.progress.last_round))
        self._become(RunState.RUNNING, "")
        self._dice = Dice(seed_bytes(scene.seed, "server"))
        self._silos = {name: ClearSilo(scene, name, state) for name, state in standing.silos.items()}
        self._learn_model()

    def _learn_model(self) -> None:
        for silo in self._silos.values():
            silo.state = replace(silo.state, model=self._progress.model.state)

    @property
    def standing(self) -> Standing:
        return Standing(self._progress, {name: silo.state for name, silo in self._silos.items()})

    @property
    def ledgers(self) -> Iterable[Ledger]:
        return [silo.state.journal.ledger for silo in self._silos.values()]

    def play_round(self) -> PlayedRound:
        manifest = self._announced()
        silos = [self._silos[name] for name in manifest.names]
        orders = {silo.name: train for silo in silos if (train := silo.enter(manifest)) is not None}
        trained = self._engine.train(orders)
        refuse_hopeless(trained, manifest.round)
        offers = {silo.name: offer for silo in silos if (offer := silo.offer(manifest, trained.get(silo.name))) is not None}
        outcome = self._opened(manifest, offers)
        closed = close_round(self._scene.run, manifest, outcome, self._progress)
        self._progress = closed.progress
        self._learn_model()
        self._count_bytes(manifest, outcome)
        self._written(CommitRound(closed, (closed.line(),)))
        return PlayedRound(closed, trained)

    def conclude(self, totals: Totals) -> None:
        reason = self._scene.goals.reached(totals, self._progress.last_round)
        if reason is not None:
            self._become(RunState.FINISHED, reason)

    def _become(self, state: RunState, reason: str) -> None:
        self._progress = replace(self._progress, state=state, reason=reason)
        text = f"run is {state.value}" + (f": {reason}" if reason else "")
        self._written(KeepState(self._progress, Noted("state", text, severity="info")))

    def _announced(self) -> RoundManifest:
        present = [name for name, silo in self._silos.items() if silo.stopped is None]
        run, before = self._scene.run, self._progress
        if len(present) < run.quorum:
            why = next((f". {name}: {silo.stopped}" for name, silo in self._silos.items() if silo.stopped), "")
            raise FedrepError(f"{len(present)} silos are left, and a round needs {run.quorum}{why}")
        roster = tuple(RosterEntry(name, b"", b"", b"") for name in sorted(present, key=str.encode))
        return announce(run, before.model.state.name, before.clip_range, before.last_round + 1, roster)

    def _opened(self, manifest: RoundManifest, offers: Mapping[SiloName, Offer]) -> RoundResult:
        """As `ServerRound` goes from the consensus to the outcome when everybody who proposed stays."""
        run = self._scene.run
        assignment = tuple(tuple(name for name in seat if name in offers) for seat in seats(run, manifest.round))
        openable = openable_buffers(assignment, run.min_survivors, run.byzantine)
        if not openable:
            needed = buffers_needed(run.byzantine)
            reason = f"{len(offers)} silos proposed: fewer than {needed} buffers have {run.min_survivors} of them"
            return self._result(manifest, offers, assignment, SurvivorSet(()), union([]), reason, None)
        if reason := why_skipped(run, len(openable)):
            text = f"{len(offers)} silos proposed: {reason}"
            return self._result(manifest, offers, assignment, SurvivorSet(()), union([]), text, None)
        indices = union(offer.coordinates for offer in offers.values())
        ring = RingFormat(manifest.ring_bits, manifest.value_bits)
        means = {}
        for number in sorted(openable):
            total = np.zeros(indices.size, ring.dtype)
            for name in assignment[number]:
                total += self._silos[name].submit(manifest, indices)
            means[number] = open_mean(total, len(assignment[number]), manifest.clip_range, ring)
        survivors = SurvivorSet(
            tuple(
                tuple(Survivor(name, b"") for name in buffer) if number in openable else ()
                for number, buffer in enumerate(assignment)
            )
        )
        rng = self._dice.generator("aggregate", manifest.round)
        try:
            combined = combine_buffers(means, survivors, run.aggregator, run.aggregator_settings, run.byzantine, rng)
        except FedrepError as error:
            text = f"the aggregator refused: {error}"
            return self._result(manifest, offers, assignment, survivors, indices, text, None)
        return self._result(manifest, offers, assignment, survivors, indices, "", combined)

    def _result(
        self,
        manifest: RoundManifest,
        offers: Mapping[SiloName, Offer],
        assignment: tuple[tuple[SiloName, ...], ...],
        survivors: SurvivorSet,
        indices: Coordinates,
        reason: str,
        combined: Combined | None,
    ) -> RoundResult:
        everyone, proposers = frozenset(manifest.names), frozenset(offers)
        nobody: frozenset[SiloName] = frozenset()
        report = RoundReport(manifest.names, everyone, survivors.names(), nobody, nobody, {}, everyone - proposers)
        coded = {name: encode_coordinates(offer.coordinates, manifest.parameters) for name, offer in offers.items()}
        return RoundResult(
            Outcome.SKIPPED if combined is None else Outcome.APPLIED,
            reason,
            indices,
            encode_coordinates(indices, manifest.parameters),
            survivors,
            (),
            () if combined is None else tuple(sorted(combined.distances)),
            combined,
            report,
            tuple(tuple(Assigned(name, b"") for name in buffer) for buffer in assignment),
            {},
            {name: hashlib.sha256(data).digest() for name, data in coded.items()},
            {name: offer.bits for name, offer in offers.items()},
        )

    def _count_bytes(self, manifest: RoundManifest, result: RoundResult) -> None:
        """No messages, no bytes: what `fedrep plan` reckons for a round with so many coordinates."""
        m, d, run = len(manifest.roster), manifest.parameters, self._scene.run
        longest = max(len(name.encode()) for name in manifest.names)
        gamma = result.indices.size / d if result.indices.size else None
        one = bits_per_round(
            d, manifest.per_silo * m, m, run.buffer_size, run.ring_bits, gamma, run.downlink_bits, name_bytes=longest
        )
        for name in manifest.names:
            own = self.traffic.silos.setdefault(name, Traffic())
            own.up += one.up // 8
            own.down += one.down // 8


def _everyone(silos: Iterable[SiloName], last_round: int) -> Attendance:
    attendance = Attendance()
    for name in silos:
        attendance = attendance.join(RosterEntry(name, b"", b"", b""), last_round)
    return attendance
