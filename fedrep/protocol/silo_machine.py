"""One silo in one run as an event machine: `receive(event, at) -> effects`, nothing else moves it.

Every decision of a silo is here or in the rules it calls: which run and round it takes part in, when it trains, what it sends,
what must be on disk before, what a restart may still do, when it leaves. Time and randomness are handed in; a restart is a new
machine over the state that was saved last. What happens next is `silo_table.TABLE`; the actions stand in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import CryptoError, FedrepError, InvalidInputError, ProtocolError, RefusedError
from fedrep.patched import dense
from fedrep.protocol.amendments import check_chain, first_of, followed_to
from fedrep.protocol.clip_range import range_bits
from fedrep.protocol.error_memory import Contribution, Fate, judge, opens
from fedrep.protocol.manifests import RecordPromise, RoundManifest, RunHash, RunManifest, SignedRoundManifest, SiloName
from fedrep.protocol.messages import (
    Consensus,
    Evidence,
    Outcome,
    SignedRollback,
    Statement,
    SurvivorSet,
    Update,
    statement_message,
)
from fedrep.protocol.model_state import ModelState, indices_of
from fedrep.protocol.public_choice import PublicChoice
from fedrep.protocol.silo_effects import (
    Accepted,
    Answer,
    Answered,
    Ask,
    Certificates,
    Concluded,
    Confirmations,
    Doing,
    Effect,
    Event,
    FailedTraining,
    FetchedModel,
    GetCertificates,
    GetConsensus,
    GetModel,
    GetSurvivors,
    GetUpdate,
    HasJoined,
    HasTrained,
    Join,
    Joined,
    LineLost,
    Moment,
    Problem,
    Question,
    Refusal,
    Remark,
    Report,
    Request,
    RoundOver,
    RunRefused,
    Save,
    Settled,
    Speech,
    Stop,
    StopAsked,
    TimePassed,
    Train,
    Trained,
    TrainingFailed,
    TrainingRefused,
    Wait,
    mates_of,
)
from fedrep.protocol.silo_identity import Conduct, SiloIdentity
from fedrep.protocol.silo_presence import RosterWatch, Sessions
from fedrep.protocol.silo_round import Confirmed, Membership, Observing, Proposed, Ready, Revealed, Submitted
from fedrep.protocol.silo_rules import PeerIdentity, check_epsilon, check_run
from fedrep.protocol.silo_state import Journal, SiloState
from fedrep.protocol.silo_table import IN_ROUND, TABLE, Phase
from fedrep.protocol.silo_trust import Chains, check_rollback, check_round_signature, check_run_signature
from fedrep.public_coordinates import only
from fedrep.sparsify import gather, propose

FIRST_POLL_SECONDS = 0.1  # a round often starts just after one joined, and its clock runs from there
POLL_SECONDS = 1.0
OVER = ("finished", "stopped")
NOTHING = np.empty(0, np.float32)

# What a rule of the silo's own raises. The server's refusals never do: they arrive as `Refusal`.
RULES = (RefusedError, ProtocolError, InvalidInputError, CryptoError)

Effects = list[Effect]


@dataclass
class Part:
    """The silo's part in the round it is in: the step it has reached, and what became known too early or need not be repeated."""

    manifest: RoundManifest
    ready: Ready | None = None
    step: Proposed | Submitted | Observing | Confirmed | Revealed | None = None
    consensus: Consensus | None = None
    survivors: SurvivorSet | None = None
    concluded: Concluded | None = None
    agreed: Evidence | None = None
    update: Update | None = None


class SiloMachine:
    """`state` is the truth once it is saved; everything else here is forgotten by a crash, and must not matter then."""

    def __init__(self, own: SiloIdentity, conduct: Conduct, state: SiloState) -> None:
        self.phase = Phase.OUTSIDE
        self.state = state
        self.part: Part | None = None
        self.speaking = False
        self._own = own
        self._conduct = conduct
        self._saved = Save(state)
        self._signing_key = own.signing_key()
        self._run: RunManifest | None = None
        self._runs: frozenset[RunHash] = frozenset()
        self._server_certificate = b""
        self._rollback: SignedRollback | None = None
        self._last_heard = 0
        self._sessions = Sessions(own.randomness.secrets)
        self._roster = RosterWatch()
        self._chains = Chains()
        self._open: list[Request] = []
        self._answered: Request | None = None
        self._wait: Wait | None = None
        self._pause = FIRST_POLL_SECONDS
        self._waiting_since: float | None = None
        self._asked_about = 0
        self._announced = self._looked_back = self._lost = self._leaving = False
        self._training: int | None = None
        self._finished: Trained | TrainingFailed | TrainingRefused | None = None
        self._contribution: Contribution | None = None
        self._trainer_after = state.trainer
        self._trainings = state.journal.last_training
        self._failures = 0
        self._stopping: FedrepError | None = None
        self._following: tuple[SignedRoundManifest | None, str] = (None, "")
        self._at = Moment()

    def receive(self, event: Event, at: Moment) -> Effects:
        """The table, and what holds in every phase. An answer nobody waits for any more changes nothing."""
        self._at = at
        content: Any = event
        match event:
            case LineLost():
                self._lost = True
                return []
            case StopAsked():
                self._leaving = True
                return self._end() if self.phase is Phase.IDLE else []
            case Trained() | TrainingFailed() | TrainingRefused():
                self._training = None
                if self.phase is not Phase.TRAINING:
                    self._finished = event  # for a later round from the same model
                    return []
            case TimePassed(wait):
                if wait is not self._wait:
                    return []
                self._wait = None
            case Answered(request, answer):
                if not any(request is each for each in self._open):
                    return []
                self._open = [each for each in self._open if each is not request]
                self._answered, content = request, self._checked(request, answer)
        row = TABLE.get((self.phase, type(content)))
        if row is None:
            return []
        before, action = self.phase, getattr(self, row.action)
        effects = self._under_rules(lambda: action(content))
        if self.phase not in row.to:
            raise AssertionError(f"{before.name} x {type(content).__name__} led to {self.phase.name}, which the table does not")
        return effects

    def _under_rules(self, action: Callable[[], Effects]) -> Effects:
        """A rule that refuses something ends the action; what was decided before it stands, and is saved like everything else."""
        saved = self._saved
        try:
            return action()
        except RULES as error:
            return [*([self._saved] if self._saved is not saved else []), *self._obey(error)]

    def _checked(self, request: Request, answer: Answer) -> Answer:
        """How another round ended than the one that was asked about is no answer, be it of this run or of one like it.

        What a silo signs about the end of a round is true by its journal, which is about this run's rounds alone.
        """
        if not isinstance(request, GetUpdate) or not isinstance(answer, Concluded):
            return answer
        update = answer.update
        if update.run in self._runs and update.round == request.round:
            return answer
        text = f"asked how round {request.round} ended, the server spoke of round {update.round} of run {update.run.hex()[:8]}"
        return Refusal(RefusedError(text, reason="WRONG_ANSWER"), said_by_server=False)

    # Joining the run.

    def _ask_for_news(self, _: object) -> Effects:
        held = self.state.model
        return self._ask(Phase.ASKING, Join(self._conduct.run_name, held.version if held is not None else None))

    def _consider_run(self, joined: Joined) -> Effects:
        pinned = self._own.policy.pinned_admins
        known = self.state.journal.run == joined.run.manifest.digest().hex()
        run = check_run_signature(joined.run, self._own.trust, pinned, known=known)
        if run.name != self._conduct.run_name:  # another folder of this silo may be in that one
            text = f"asked for run {self._conduct.run_name!r}, the server offers run {run.name!r}"
            raise RefusedError(text, reason="OTHER_RUN")
        try:
            check_run(run, self._own.policy, self._own.name, self._own.promise)
            self._own.drill.check(run)
        except RefusedError as error:
            return [Report(RunRefused(run, joined.last_round, error)), *self._end(error)]
        journal, name = self.state.journal, run.digest().hex()
        chain = (*(signed.manifest for signed in joined.predecessors), run)
        effects: Effects = []
        if not journal.run:  # a silo that comes back with a new folder still knows what it has spent
            origin = first_of(chain).digest().hex()
            effects = [self._save(journal=replace(journal, run=name, origin=origin, ledger=self._own.ledgers.of(origin)))]
        elif journal.run != name:
            check_chain(journal.run, chain, journal.last_round)
            effects = [self._save(journal=replace(journal, run=name, origin=journal.ledger_name))]
            self._announced = False  # session keys are signed over the run
        self._run, self._server_certificate, self._waiting_since = run, joined.server_certificate, None
        followed = followed_to(chain)
        self._runs = frozenset(manifest.digest() for manifest in followed)
        self._rollback = check_rollback(joined.rollback, followed, self._own.trust, pinned)
        if self._must_announce():
            return [*effects, *self._announce(Phase.ANNOUNCING)]
        return [*effects, Report(HasJoined(run, joined)), *self._go_on(joined.round, joined.state)]

    def _must_announce(self) -> bool:
        """Whether the server may not count this silo as present any more."""
        seen_long_ago = self._sessions.announced_long_ago(self._at.seconds)
        return not self._announced or self._lost or self._roster.overlooked or seen_long_ago

    def _announce(self, phase: Phase) -> Effects:
        assert self._run is not None
        self._signing_key = self._own.signing_key()
        promise = self._promise(self._run)
        key, signature = self._sessions.announced(self._run.digest(), self._signing_key, self._at.seconds, promise)
        held = self.state.model
        version = held.version if held is not None else None
        kept = self._sessions.pairs.own
        return self._say(phase, self._saved, Join(self._conduct.run_name, version, key, signature, promise, kept))

    def _promise(self, run: RunManifest) -> RecordPromise | None:
        """Given where the run asks for it: a silo's budget is nobody's business elsewhere."""
        return self._own.promise if run.asks_for_promise else None

    def _has_joined(self, joined: Joined) -> Effects:
        assert self._run is not None
        if joined.run.manifest != self._run:
            return self._idle(FIRST_POLL_SECONDS)  # the list of silos changed between the two calls
        self._roster.joined()
        self._announced, self._lost = True, False
        effects: Effects = [Report(HasJoined(self._run, joined))]
        last, first = self.state.journal.last_round, not self._looked_back
        self._looked_back = True
        over = joined.round is None or joined.round.manifest.round > last
        if first and last and over:
            self._following = (joined.round, joined.state)
            return [*effects, *self._ask(Phase.LOOKING_BACK, GetUpdate(self._run.digest(), last))]
        return [*effects, *self._go_on(joined.round, joined.state)]

    def _wait_for_run(self, refusal: Refusal) -> Effects:
        """A silo may be started before its run is created."""
        since = self._waiting_since = self._at.seconds if self._waiting_since is None else self._waiting_since
        if refusal.error.reason != "UNKNOWN_RUN" or self._at.seconds - since > self._conduct.give_up_after:
            return self._end(refusal.error)
        remark = Remark("waiting_for_run", str(refusal.error))
        return [Report(remark), Report(Doing("waiting for the run")), *self._idle(POLL_SECONDS)]

    def _look_back(self, concluded: Concluded) -> Effects:
        """After a restart: how the round ended in which this silo last spoke."""
        return self._renounce(concluded) or self._settle(replace(concluded, next_round=None))

    def _cannot_look_back(self, refusal: Refusal) -> Effects:
        remark = Remark("no_answer_about_round", str(refusal.error), self.state.journal.last_round)
        return [Report(remark), *self._go_on(*self._following)]

    # From one round to the next.

    def _go_on(self, signed: SignedRoundManifest | None, state: str) -> Effects:
        if state in OVER or self._leaving:
            return [Report(Doing("left" if self._leaving else f"run {state}")), *self._end()]
        if signed is None:
            pause, self._pause = self._pause, min(2 * self._pause, POLL_SECONDS)
            return self._idle(pause)
        if self._lost or self._roster.overlooked:
            return self._ask_for_news(None)
        return self._under_rules(lambda: self._start_round(signed))  # what the last round left to say is not lost over it

    def _idle(self, seconds: float) -> Effects:
        self.phase, self._wait = Phase.IDLE, Wait(seconds)
        return [self._wait]

    def _end(self, error: FedrepError | None = None, *, polite: bool = False) -> Effects:
        self.phase = Phase.ENDED
        return [Stop(error, polite)]

    def _start_round(self, signed: SignedRoundManifest) -> Effects:
        self.phase = Phase.IDLE  # a manifest nobody signed is no round to leave
        manifest = check_round_signature(signed, self._server_certificate, self._own.trust)
        assert self._run is not None
        if manifest.run != self._run.digest() and self._asked_about != manifest.round:
            self._asked_about = manifest.round
            return self._ask_for_news(None)  # an amended list has come into force
        if manifest.run not in self._runs or manifest.round > self._run.rounds:
            text = (
                f"the server's round {manifest.round} is none of run {self._run.name!r}, which ends with round {self._run.rounds}"
            )
            raise RefusedError(text, reason="OTHER_RUN")
        self.part = Part(manifest)
        if self._own.name not in manifest.names:
            self._roster.absent()
            return self._conclude()
        if manifest.round <= self.state.journal.last_round:
            return self._conclude()
        return self._get_ready()

    def _get_ready(self) -> Effects:
        """The model the round starts from, then everybody's certificates, then every rule about the manifest."""
        manifest, held = self._manifest, self.state.model
        if held is None or (held.hash, held.version) != (manifest.model_hash, manifest.model_version):
            if not self._may_fetch(held, manifest):
                return self._stop_over_model(manifest)
            fetching = Report(Doing("fetching the model", manifest.round))
            return [fetching, *self._ask(Phase.FETCHING, GetModel(manifest.run, manifest.model_version))]
        peers = self._chains.peers(manifest, self._own.trust)
        strangers = tuple(entry.fingerprint for entry in manifest.roster if entry.name not in peers)
        if strangers:
            return self._ask(Phase.MEETING, GetCertificates(manifest.run, strangers))
        return self._enter(held, peers)

    def _may_fetch(self, held: ModelState | None, manifest: RoundManifest) -> bool:
        """N5: only a silo that was away takes a model that its own updates did not lead to, or everyone on an admin's word.

        The run's first model has an admin's word: the manifest that the silo joined under names it.
        """
        assert self._run is not None
        order = self.state.journal.not_yet_followed(self._rollback)
        if order is not None and (order.version, order.model_hash) == (manifest.model_version, manifest.model_hash):
            return True
        if held is None:
            return manifest.model_version > 0 or manifest.model_hash == self._run.model_hash
        if order is not None and held.version < order.version < manifest.model_version:
            return True  # it stayed out of the rounds after the order; one that it has followed opens nothing a second time
        return manifest.model_version > held.version and manifest.round != self._last_heard + 1

    def _stop_over_model(self, manifest: RoundManifest) -> Effects:
        """An order may have been signed since this silo last joined: it asks once, and stops if there is none."""
        if self._asked_about != manifest.round:
            self._asked_about = manifest.round
            return self._ask_for_news(None)
        held = self.state.model
        where = f"where the updates of this silo lead (it holds version {held.version})" if held is not None else "the run's own"
        error = RefusedError(
            f"round {manifest.round} starts from model version {manifest.model_version}, which is not {where}, and no admin "
            "signed a rollback. The server's state may have been restored or changed: ask an admin of the federation; "
            "`fedrep run rollback` mends it",
            reason="MODEL_DIVERGED",
        )
        return [Report(Problem(manifest, error, own=True)), *self._end(error, polite=True)]

    def _keep_model(self, fetched: FetchedModel) -> Effects:
        manifest, parameters = self._manifest, self.state.memory.base.size
        model = replace(ModelState.initial(fetched.vector, manifest.model_hash), version=fetched.version, chain=manifest.chain)
        if (model.hash, model.version) != (manifest.model_hash, manifest.model_version):
            raise RefusedError("the server sent another model than the manifest names", reason="WRONG_MODEL")
        if model.vector.size != parameters:
            raise RefusedError(f"the run's model has {model.vector.size} parameters, this silo's {parameters}")
        # With the order that led here, or a round that is refused after this would leave the order to be shown again.
        return [self._save(model=model, journal=self._journal_at(model)), *self._get_ready()]

    def _journal_at(self, model: ModelState) -> Journal:
        """An order is past once a model of its version, or a later one, is held."""
        order, journal = self._rollback, self.state.journal
        return journal.following(order) if order is not None and order.version <= model.version else journal

    def _meet(self, certificates: Certificates) -> Effects:
        self._chains.learn(certificates.chains)
        held = self.state.model
        assert held is not None
        return self._enter(held, self._chains.peers(self._manifest, self._own.trust))

    def _enter(self, model: ModelState, peers: Mapping[SiloName, PeerIdentity]) -> Effects:
        assert self.part is not None
        assert self._run is not None
        self.phase = Phase.MEETING
        own, manifest = self._own, self._manifest
        ready = Ready.enter(
            Membership(own.name, self._run, own.policy, self._signing_key, self._promise(self._run)),
            manifest,
            peers,
            self._sessions.keys,
            last_round=self.state.journal.last_round,
            model_hash=model.hash,
            pairs=self._sessions.pairs,
            verified=self._sessions.verified(manifest.run, self._run.session_start(manifest.round)),
        )
        self._sessions.entered(self._sessions.pairs.own)
        self.part.ready = ready
        journal, pending = self._journal_at(model), self.state.memory.pending
        effects: Effects = [self._save(journal=journal)] if journal is not self.state.journal else []
        if pending is not None:  # the last chance of a proof: nothing is proposed before the fate of the last values is decided
            return [*effects, *self._ask(Phase.SETTLING, GetUpdate(pending.place.run, pending.place.round))]
        return [*effects, *self._decide_to_train(model)]

    def _settle_late(self, answer: Concluded | Refusal) -> Effects:
        held = self.state.model
        assert held is not None
        self.phase = Phase.MEETING
        fate = self._judge(answer.update.evidence) if isinstance(answer, Concluded) else []
        if self.state.memory.pending is not None:
            fate = self._decide_fate(Fate.GIVEN_UP)
        return [*fate, *self._decide_to_train(held)]

    # Training and proposing.

    def _decide_to_train(self, model: ModelState) -> Effects:
        """A silo whose budget is spent, or outside its hours, holds the others' shares in this round."""
        manifest = self._manifest
        if self._contribution is not None and self._contribution.version != model.version:
            self._contribution = None  # a late silo does not pile up stale updates
        if leaving := self._over_budget():
            return leaving
        if not self._own.policy.trains_at(self._at.hour):
            return self._abstain()
        if self._contribution is not None:
            return self._propose()
        self.phase, self._wait = Phase.TRAINING, Wait(manifest.deadlines.propose / 2)
        effects: Effects = [Report(Doing("training", manifest.round)), self._wait]
        finished, self._finished = self._finished, None
        if finished is not None and finished.version == model.version:
            return [*effects, *getattr(self, TABLE[Phase.TRAINING, type(finished)].action)(finished)]
        return [*effects, *self._train(model)]

    def _over_budget(self) -> Effects:
        """This silo abstains, and leaves after the round, if a new I_k would cost more than is left; nothing otherwise."""
        if self._own.public_start is not None or self._repeated_proposal() is not None:
            return []
        try:
            elsewhere = self._own.ledgers.elsewhere(self.state.journal.ledger_name)
            check_epsilon(self._manifest, self.state.journal.ledger, self._own.policy, elsewhere)
        except RefusedError as error:
            self._stopping = error
            return [Report(Problem(self._manifest, error, own=True)), *self._abstain()]
        return []

    def _repeated_proposal(self) -> NDArray[np.int64] | None:
        if self._contribution is None:
            return None
        return self.state.journal.repeated_proposal(self._manifest, self._contribution.training)

    def _public_choice(self) -> PublicChoice | None:
        start, held = self._own.public_start, self.state.model
        if start is None or held is None:
            return None
        assert self._run is not None
        return PublicChoice.of(self._run, self._manifest, self._own.name, held, start)

    def _train(self, model: ModelState) -> Effects:
        """One training at a time: one for an older model is waited for, and thrown away."""
        if self._training is not None:
            return []
        self._training = model.version
        assert self._run is not None
        number, run = self._manifest.round, self.state.journal.ledger_name
        # As many as an admin signed: by the number of a round that a server shows, it could have a budget spent at once.
        trainings = self._run.rounds - max(self._run.from_round, 1) + 1
        public = self._public_choice()
        return [Train(model, number, self.state.trainer, run, trainings, public.together if public is not None else None)]

    def _take_training(self, trained: Trained) -> Effects:
        held, manifest = self.state.model, self._manifest
        assert held is not None
        if trained.version != manifest.model_version:
            return self._train(held)
        public = self._public_choice()
        update = trained.update if public is None else only(dense(trained.update), public.together)
        if public is not None:  # on disk with the proposal; whoever dies before that trains again, and comes by here again
            self.state = replace(self.state, memory=self.state.memory.without_residual())
        try:
            contribution = self.state.memory.contribution(
                self._trainings + 1, trained.version, update, self._own.room(), manifest.per_silo
            )
        except InvalidInputError as error:  # of another size, or not finite: no update at all
            return self._count_failure(TrainingFailed(trained.version, str(error)))
        self._failures = 0
        self._trainings += 1
        self._contribution = contribution
        self._trainer_after = trained.state
        return [Report(HasTrained(replace(trained, update=NOTHING))), *self._propose()]  # the vector has become part of g

    def _count_failure(self, failed: TrainingFailed) -> Effects:
        held, manifest = self.state.model, self._manifest
        assert held is not None
        if failed.version != manifest.model_version:
            return self._train(held)
        self._failures += 1
        if self._failures >= self._conduct.training_failures:
            self._stopping = FedrepError(f"training failed {self._failures} times in a row; last: {failed.text}")
        return [Report(FailedTraining(manifest, failed.text)), *self._abstain()]

    def _stop_training(self, refused: TrainingRefused) -> Effects:
        """What training costs the records is spent: this silo still holds the others' shares in this round, and leaves."""
        self._stopping = refused.error
        return [Report(Problem(self._manifest, refused.error, own=True)), *self._abstain()]

    def _ask_while_training(self, _: object) -> Effects:
        """Only the server knows when its deadline passes. Asking is a message of the round, so its number goes to disk first."""
        save = self._save(journal=self.state.journal.entered(self._manifest.round, self._manifest.context()))
        return [save, *self._say(Phase.TRAINING, save, GetConsensus(self._manifest.run, self._manifest.round))]

    def _watch_consensus(self, consensus: Consensus) -> Effects:
        """The others agreed before this silo had trained: it goes on as a holder."""
        assert self.part is not None
        assert self.part.ready is not None
        late = Report(Remark("training_not_ready", "the others agreed first", self._manifest.round))
        self.part.step = self.part.ready.watch().on_consensus(consensus)
        return [late, *self._ask_for_survivors()]

    def _abstain(self) -> Effects:
        """Propose nothing, and say so: the others need not wait, and this silo stays a holder of their shares."""
        assert self.part is not None
        assert self.part.ready is not None
        save = self._save(journal=self.state.journal.entered(self._manifest.round, self._manifest.context()))
        return [save, *self._say(Phase.ABSTAINING, save, self.part.ready.abstain(self._sessions.new()))]

    def _has_abstained(self, _: Accepted | Refusal) -> Effects:
        if self._has_asked(GetConsensus):  # while it trained
            self.phase = Phase.AGREEING
            return []
        return self._ask_for_consensus()

    def _propose(self) -> Effects:
        assert self.part is not None
        assert self.part.ready is not None
        assert self._contribution is not None
        manifest, journal, own, contribution = self._manifest, self.state.journal, self._own, self._contribution
        public, coordinates = self._public_choice(), self._repeated_proposal()
        if public is not None:
            coordinates = public.own
        if coordinates is None:
            if leaving := self._over_budget():  # other runs over these data may have spent while this one trained
                return leaving
            largest = contribution.largest
            places = largest.places if largest is not None else None
            coordinates = propose(contribution.g, manifest.per_silo, manifest.alpha, own.randomness.decoys(), places)
            save = self._save(journal=journal.charged(manifest, contribution.training, coordinates))
        else:
            save = self._save(journal=journal.entered(manifest.round, manifest.context()))
        bits = range_bits(contribution.g, manifest.clip_range, manifest.per_silo, contribution.peak, contribution.largest)
        assert self._run is not None
        own.drill.share(self._run, manifest.round, contribution.g)
        step = self.part.step = self.part.ready.propose(coordinates, self._sessions.new(), own.randomness.secrets, bits)
        self.speaking = True
        proposing = [save, Report(Doing("proposing", manifest.round)), *self._say(Phase.PROPOSING, save, step.message)]
        return [*proposing, *self._ask_behind(Phase.PROPOSING, save, GetConsensus(manifest.run, manifest.round))]

    def _ask_behind(self, phase: Phase, save: Save, question: Speech) -> Effects:
        """What follows is asked for at once, behind what is still being said: a round costs four round trips, not nine."""
        return [] if self._has_asked(type(question)) else self._say(phase, save, question)

    def _has_asked(self, kind: type) -> bool:
        return any(isinstance(each, kind) for each in self._open)

    def _has_proposed(self, _: Accepted | Refusal) -> Effects:
        assert self.part is not None
        if self.part.consensus is not None:
            return self._agree(self.part.consensus)
        if self._has_asked(GetConsensus):
            self.phase = Phase.AGREEING
            return [Report(Doing("consensus", self._manifest.round))]
        return self._ask_for_consensus()

    def _keep_consensus(self, consensus: Consensus) -> Effects:
        assert self.part is not None
        self.part.consensus = consensus
        return []

    def _proposed_too_late(self, refusal: Refusal) -> Effects:
        """The silo can still be a holder, or have been heard all the same: the consensus will tell."""
        if isinstance(self._answered, GetConsensus):
            return []
        late = Report(Remark("proposal_late", str(refusal.error), self._manifest.round))
        return [late, *self._has_proposed(refusal)]

    # From the consensus to the reveal.

    def _ask_for_consensus(self) -> Effects:
        doing = Report(Doing("consensus", self._manifest.round))
        return [doing, *self._say(Phase.AGREEING, self._saved, GetConsensus(self._manifest.run, self._manifest.round))]

    def _agree(self, consensus: Consensus) -> Effects:
        assert self.part is not None
        assert self.part.ready is not None
        self.phase, step = Phase.AGREEING, self.part.step
        if not isinstance(step, Proposed):
            self.part.step = self.part.ready.watch().on_consensus(consensus)
            return self._ask_for_survivors()
        contribution = self._contribution
        assert contribution is not None
        assert self._run is not None
        crafted = self._own.drill.of_update(self._run, self._manifest.round, contribution.g)
        holder = self.part.step = step.on_consensus(consensus, crafted, self._own.randomness.rounding())
        if isinstance(holder, Observing):  # too few of its buffer proposed: the same g again, while the model stays
            return self._ask_for_survivors()
        self._contribution, honest = None, None
        if self._own.drill.attack:  # the residual goes on as if honest values had been sent, or the drill would feed on itself
            honest = gather(contribution.g, holder.agreement.indices)
        memory = self.state.memory.submitted(contribution, holder, honest)
        save = self._save(memory=memory, trainer=self._trainer_after)
        submitting = Report(Doing("submitting", self._manifest.round))
        mates = mates_of(consensus, self._own.name)
        said = [save, submitting, *self._say(Phase.SUBMITTING, save, holder.message, mates=mates)]
        return [*said, *self._ask_behind(Phase.SUBMITTING, save, GetSurvivors(self._manifest.run, self._manifest.round))]

    def _has_submitted(self, _: Accepted | Refusal) -> Effects:
        assert self.part is not None
        if self.part.survivors is not None:
            return self._confirm(self.part.survivors)
        if self._has_asked(GetSurvivors):
            self.phase = Phase.SURVIVING
            return [Report(Doing("survivors", self._manifest.round))]
        return self._ask_for_survivors()

    def _keep_survivors(self, survivors: SurvivorSet) -> Effects:
        assert self.part is not None
        self.part.survivors = survivors
        return []

    def _submitted_too_late(self, refusal: Refusal) -> Effects:
        """The silo is a holder, and its values are pending until their fate is proven."""
        if isinstance(self._answered, GetSurvivors):
            return []
        late = Report(Remark("submission_late", str(refusal.error), self._manifest.round))
        return [late, *self._has_submitted(refusal)]

    def _ask_for_survivors(self) -> Effects:
        doing = Report(Doing("survivors", self._manifest.round))
        return [doing, *self._say(Phase.SURVIVING, self._saved, GetSurvivors(self._manifest.run, self._manifest.round))]

    def _confirm(self, survivors: SurvivorSet) -> Effects:
        assert self.part is not None
        assert isinstance(self.part.step, Submitted | Observing)
        confirmed = self.part.step = self.part.step.on_survivors(survivors)
        return self._say(Phase.CONFIRMING, self._saved, confirmed.message)

    def _reveal(self, confirmations: Confirmations) -> Effects:
        assert self.part is not None
        assert isinstance(self.part.step, Confirmed)
        confirmed, revealed = self.part.step, self.part.step.on_signatures(confirmations.signatures, confirmations.macs)
        own = (self._own.name, confirmed.message.signature)
        self.part.step = revealed
        self.part.agreed = Evidence(confirmed.survivors, (*confirmations.signatures, own))
        journal, pending = self.state.journal.revealing(self._manifest.round), self.state.memory.pending
        effects: Effects = []
        if pending is not None and opens(pending.place, confirmed.survivors):
            # t holders signed this very U: whatever the server says from here on
            effects += self._decide_fate(Fate.OPENED, journal=journal)
        else:
            effects.append(self._save(journal=journal))
        effects += self._say(Phase.REVEALING, self._saved, revealed.message)
        return [*effects, *self._ask(Phase.REVEALING, self._question_about_end())]

    def _has_revealed(self, answer: Accepted | Refusal) -> Effects:
        """A refusal means that the round closed as soon as enough holders had revealed."""
        assert self.part is not None
        if isinstance(answer, Refusal) and isinstance(self._answered, GetUpdate):
            return []
        self._roster.took_part()
        if self.part.concluded is not None:
            self.phase = Phase.CONCLUDING
            return self._learn_outcome(self.part.concluded)
        if self._has_asked(GetUpdate):
            self.phase = Phase.CONCLUDING
            return [Report(Doing("update", self._manifest.round))]
        return self._conclude()

    def _keep_outcome(self, concluded: Concluded) -> Effects:
        assert self.part is not None
        self.part.concluded = concluded
        return []

    def _has_rejoined(self, _: Joined | Refusal) -> Effects:
        self._roster.joined()
        return self._conclude()

    def _leave_round(self, refusal: Refusal) -> Effects:
        self._roster.left()
        if not refusal.said_by_server:
            return [Report(Problem(self._manifest, refusal.error, own=True)), *self._conclude()]
        return [Report(Remark("round_left", str(refusal.error), self._manifest.round)), *self._conclude()]

    def _obey(self, error: FedrepError) -> Effects:
        """A rule of this silo's own refused something: it stops, leaves the round, or waits for what the server says next."""
        if self.phase in (Phase.ASKING, Phase.ANNOUNCING):
            return self._end(error)
        if self.phase not in IN_ROUND:
            return self._lose_track(Refusal(error, said_by_server=False))
        self._roster.left()
        if error.reason == "SESSION_KEY_LOST":
            self._sessions.forget_all()
            return [Report(Remark("sitting_out", str(error), self._manifest.round)), *self._announce(Phase.REJOINING)]
        return [Report(Problem(self._manifest, error, own=True)), *self._conclude()]

    # How the round ended.

    def _conclude(self, _: object = None) -> Effects:
        assert self.part is not None
        self._open, self._wait = [], None
        return [Report(Doing("update", self._manifest.round)), *self._ask(Phase.CONCLUDING, self._question_about_end())]

    def _question_about_end(self) -> GetUpdate:
        assert self.part is not None
        manifest = self._manifest
        return GetUpdate(manifest.run, manifest.round, omit_agreement=self.part.agreed is not None, roster=manifest.roster)

    def _lose_track(self, refusal: Refusal) -> Effects:
        """A manifest nobody signed, or a server that lost its latest rounds: what it says now is heard after a pause."""
        self.speaking = self._announced = False
        if self.part is None:
            return [Report(Remark("server_not_understood", str(refusal.error))), *self._idle(POLL_SECONDS)]
        problem = Problem(self._manifest, refusal.error, own=not refusal.said_by_server)
        return [Report(problem), *self._idle(POLL_SECONDS)]

    def _learn_outcome(self, concluded: Concluded) -> Effects:
        assert self.part is not None
        agreed = self.part.agreed
        if agreed is not None:
            evidence = replace(concluded.update.evidence, survivors=agreed.survivors, confirmations=agreed.confirmations)
            concluded = replace(concluded, update=replace(concluded.update, evidence=evidence))
        elif self._own.name in self._manifest.names:
            return self._renounce(concluded) or self._settle(concluded)
        return self._settle(concluded)

    def _renounce(self, concluded: Concluded) -> Effects:
        """Others may need this holder's word that it revealed nothing; it is on disk before it is given."""
        number, journal = concluded.update.round, self.state.journal
        c1 = self._known_c1()
        if concluded.update.outcome is not Outcome.SKIPPED or not c1 or not journal.may_renounce(number):
            return []
        save = self._save(journal=journal.renouncing(number, c1))
        run = concluded.update.run
        signature = self._signing_key.sign(statement_message(run, number, c1, self._own.name))
        statement = Statement(self._own.name, run, number, signature, c1)
        return [save, *self._say(Phase.RENOUNCING, save, GetUpdate(run, number, statement))]

    def _known_c1(self) -> bytes:
        """Of the round that is spoken of, if this journal is about it; nothing if this silo may have been in it without.

        A roster that lists a key of this process is no older than the process, and whatever the silo did since is in the journal.
        """
        entered = bytes.fromhex(self.state.journal.c1)
        if self.part is None or self._manifest.context() == entered:
            return entered
        entry = self._manifest.entry(self._own.name)
        return self._manifest.context() if entry is not None and self._sessions.holds(entry.session_key) else b""

    def _settle(self, concluded: Concluded) -> Effects:
        """What became of values that were sent, and the next model."""
        update = concluded.update
        if self.part is not None:
            self.part.update = update
            self._following = (concluded.next_round, concluded.state)
        pending = self.state.memory.pending
        about = pending is not None and (pending.place.run, pending.place.round) == (update.run, update.round)
        fate = self._judge(update.evidence) if about else []
        return [*fate, *self._follow(update), *self._end_round()]

    def _judge(self, evidence: Evidence) -> Effects:
        pending = self.state.memory.pending
        fate = Fate.UNKNOWN if pending is None else judge(pending.place, evidence)
        return [] if fate is Fate.UNKNOWN else self._decide_fate(fate)

    def _decide_fate(self, fate: Fate, **also: Any) -> Effects:
        """`also` holds other parts of the state, to be saved with it."""
        pending = self.state.memory.pending
        assert pending is not None
        if fate is Fate.CLOSED:
            self._contribution = pending.contribution  # the same g again, while the model stays
        return [self._save(memory=self.state.memory.settle(fate), **also), Report(Settled(pending.place.round, fate))]

    def _follow(self, update: Update) -> Effects:
        """The next model from the update if this silo holds the one before; else it is fetched when needed (N5)."""
        model = self.state.model
        if self._knew_the_start(update):
            self._last_heard = update.round
        if update.outcome is not Outcome.APPLIED or model is None or model.version + 1 != update.model.version:
            return []
        step = self.part.step if self.part is not None else None
        agreed = step.agreement if isinstance(step, Revealed) else None
        indices = agreed.indices if agreed is not None else indices_of(update, model.vector.size)
        try:
            coordinates = agreed.coordinates if agreed is not None else b""
            in_place = self._own.in_place and self._training is None and model.vector.flags.writeable
            if in_place:
                self._finished = None  # of use with this model only
            return [self._save(model=model.follow(update, indices, coordinates, in_place=in_place))]
        except RefusedError as error:
            self._stopping = error
            return [Report(Problem(self._manifest, error, own=True))] if self.part is not None else []

    def _knew_the_start(self, update: Update) -> bool:
        """Whether this silo held the model that the round started from; one that did not was away, and may fetch the next."""
        model, part = self.state.model, self.part
        if model is None:
            return False
        if part is not None:
            return part.manifest.model_version == model.version
        return update.model.version in (model.version, model.version + 1)

    def _end_round(self) -> Effects:
        part, self.part = self.part, None
        effects: Effects = []
        if part is not None and part.update is not None:
            self.speaking = self._announced = False  # a silo that was silent for a round counts as gone until it joins again
            effects = [Report(RoundOver(part.manifest, part.update, self.state))]
        if self._stopping is not None:
            return [*effects, *self._end(self._stopping, polite=True)]
        self._pause = FIRST_POLL_SECONDS
        return [*effects, *self._go_on(*self._following)]

    # The small steps that every action is made of.

    @property
    def _manifest(self) -> RoundManifest:
        assert self.part is not None
        return self.part.manifest

    def _save(self, **parts: Any) -> Save:
        self.state = replace(self.state, **parts)
        self._saved = Save(self.state)
        return self._saved

    def _say(self, phase: Phase, save: Save, message: Speech, **details: object) -> Effects:
        self.phase = phase
        self._open.append(message)
        return [save.send(message, **details)]

    def _ask(self, phase: Phase, question: Question) -> Effects:
        self.phase = phase
        self._open.append(question)
        return [Ask(question)]
