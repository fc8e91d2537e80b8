"""The silo's daemon: joins, follows rounds one after the other, and survives whatever happens in between.

`run_round` is the protocol from a silo's side, top to bottom. What may be sent is decided by `fedrep.protocol.silo_round`; what
must be on disk before it is sent is in `Books`, and stands here in the order of the lines.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import structlog

from fedrep.errors import CryptoError, FedrepError, InvalidInputError, NotFoundError, ProtocolError, RefusedError
from fedrep.protocol.error_memory import Pending
from fedrep.protocol.manifests import RoundManifest, RunManifest, SignedRoundManifest, SiloName
from fedrep.protocol.messages import Outcome, Signatures, Statement, statement_message
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_round import Confirmed, Membership, Observing, Proposed, Ready, Submitted
from fedrep.protocol.silo_rules import check_epsilon, check_run
from fedrep.sparsify import gather, propose
from fedrep_identity.certificates import Credentials, TrustStore
from fedrep_silo.books import Books
from fedrep_silo.config import ClientSettings
from fedrep_silo.connection import REMINDER_SECONDS, Concluded, Connection, Joined, connect, said_by_server
from fedrep_silo.drill import Drill
from fedrep_silo.peers import Peers, check_round_signature, check_run_signature
from fedrep_silo.reports import Reports
from fedrep_silo.sessions import RosterWatch, Sessions
from fedrep_silo.state import StateFolder, spent_epsilon
from fedrep_silo.training import Training, TrainingFailedError
from fedrep_trainers.trainer import Trainer

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
FIRST_POLL_SECONDS = 0.1  # a round often starts just after one joined, and its clock runs from there
OVER = ("finished", "stopped")


@dataclass(frozen=True, slots=True)
class Agreed:
    """A round this silo confirmed: what the server need not send again."""

    confirmed: Confirmed
    signatures: Signatures


class SiloDaemon:
    """One silo in one run. All persistent state goes through `Books`; the caller holds the folder's lock."""

    def __init__(
        self,
        settings: ClientSettings,
        credentials: Credentials,
        trust: TrustStore,
        trainer: Trainer,
        *,
        state: StateFolder | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._trust = trust
        self._name = SiloName(credentials.identity.name)
        self._policy = settings.policy.rules(bytes.fromhex(trainer.layout.digest))
        self._drill = Drill.of(settings.drill)
        self.connection = connection if connection is not None else connect(settings)
        self._peers = Peers(trust, self.connection)
        self._training = Training(trainer)
        self._trainer = trainer
        self.books = Books(state if state is not None else StateFolder(settings.state), trainer)
        self._sessions = Sessions()
        self._roster = RosterWatch()
        self._run: RunManifest | None = None
        self._server_certificate = b""
        self._failures = 0
        self._stopping: FedrepError | None = None
        self._leaving = False
        self.speaking = False
        self.reports = Reports(settings, self.connection, self.books.folder, self._name, self._training)

    @property
    def model(self) -> ModelState | None:
        """The model this silo holds."""
        return self.books.model

    async def run(self) -> None:
        """Until the run is over, the operator stops it, or the silo has to stop: then the reason is raised."""
        joined = await self._join_when_possible()
        await self._look_back(joined)
        signed, state, pause, announced = joined.round, joined.state, FIRST_POLL_SECONDS, True
        while state not in OVER and not self._leaving:
            if signed is None or self.connection.lost or self._roster.overlooked:
                await asyncio.sleep(pause if signed is None else 0)
                pause = min(2 * pause, POLL_SECONDS)
                announced = announced and not (
                    self.connection.lost or self._roster.overlooked or self._sessions.announced_long_ago
                )
                self.connection.lost = False
                joined = await self._join_when_possible(announce=not announced)
                announced = True
                signed, state = joined.round, joined.state
                continue
            try:
                concluded = await self.run_round(signed)
            except (ProtocolError, RefusedError, InvalidInputError) as error:
                # A manifest nobody signed, or a server that lost its latest rounds: what it says now is heard after a pause.
                await self.reports.problem(signed.manifest, str(error), own=not said_by_server(error))
                signed, announced = None, False
                continue
            if self._stopping is not None:
                await self.leave()
                raise self._stopping
            signed, state, pause = concluded.next_round, concluded.state, FIRST_POLL_SECONDS
            announced = False  # a silo that was silent for a round counts as gone until it joins again
        self.reports.phase(None, "left" if self._leaving else f"run {state}")

    def stop(self) -> None:
        """Leave after the round this silo has promised to take part in; `speaking` says whether there is one."""
        self._leaving = True

    async def leave(self) -> None:
        """Tell the server politely; the next roster goes on without this silo."""
        if self._run is not None:
            await self.connection.leave(self._run.digest())
        await self.connection.close()

    async def run_round(self, signed: SignedRoundManifest) -> Concluded:
        """One round: take part as far as rules, time and luck allow, then learn how it ended."""
        manifest = check_round_signature(signed, self._server_certificate, self._trust)
        agreed = None
        if self._name not in manifest.names:
            self._roster.absent()
        elif manifest.round > self.books.journal.last_round:
            try:
                agreed = await self._take_part(manifest)
                self._roster.took_part()
            except (RefusedError, ProtocolError, InvalidInputError, CryptoError) as error:
                self._roster.left()
                await self._left_round(manifest, error)
        try:
            return await self._conclude(manifest, agreed)
        finally:
            self.speaking = False

    async def _take_part(self, manifest: RoundManifest) -> Agreed:
        """The steps of `silo_round`, each with what it needs on disk."""
        model = await self._model_for(manifest)
        step = await self._propose(await self._enter(manifest, model), model)
        self.reports.phase(manifest.round, "consensus")
        consensus = await self.connection.consensus(manifest.run, manifest.round)
        placed = any(place.silo == self._name for buffer in consensus.assignment for place in buffer)
        holder: Submitted | Observing
        if isinstance(step, Proposed) and placed:
            holder = step.on_consensus(consensus, self._drill.of_update(self.books.memory.g()), _generator())
            await self._submit(holder, manifest)
        elif isinstance(step, Proposed):
            holder = step.observe(consensus)
        else:
            holder = step.watch().on_consensus(consensus)
        self.reports.phase(manifest.round, "survivors")
        confirmed = holder.on_survivors(await self.connection.survivors(manifest.run, manifest.round))
        signatures = await self.connection.confirm(confirmed.message)
        revealed = confirmed.on_signatures(signatures)
        self.books.reveal(manifest.round)
        try:
            await self.connection.reveal(revealed.message)
        except (ProtocolError, RefusedError) as error:  # the round closed as soon as enough holders had revealed
            log.debug("reveal_not_needed", round=manifest.round, why=str(error))
        return Agreed(confirmed, signatures)

    async def _enter(self, manifest: RoundManifest, model: ModelState) -> Ready:
        assert self._run is not None
        member = Membership(self._name, self._run, self._policy, self._credentials.signing_key)
        peers = await self._peers.of(manifest)
        last_round = self.books.journal.last_round
        ready = Ready.enter(member, manifest, peers, self._sessions.keys, last_round=last_round, model_hash=model.hash)
        self._sessions.forget_before(ready.session.public)
        return ready

    async def _propose(self, ready: Ready, model: ModelState) -> Proposed | Ready:
        """A proposal that was sent, or the unused step of a silo that is only a holder in this round."""
        manifest = ready.manifest
        repeated = self.books.repeated_proposal(manifest, model)
        affordable = repeated is not None or await self._affordable(manifest)
        awake = self._settings.policy.trains_at(dt.datetime.now())
        if not (affordable and awake and await self._trained(model, manifest)):
            self.books.enter(manifest.round)
            return ready
        if repeated is not None:
            coordinates = repeated
            self.books.enter(manifest.round)
        else:
            coordinates = propose(self.books.memory.g(), manifest.per_silo, manifest.alpha, _generator())
            self.books.charge(manifest, model, coordinates)
        step = ready.propose(coordinates, self._sessions.new(), secrets.token_bytes)
        self.reports.phase(manifest.round, "proposing")
        self.speaking = True
        try:
            spent = spent_epsilon(self.books.journal.ledger)
            await self.connection.propose(step.message, coordinates=manifest.per_silo, epsilon_total=spent)
        except (ProtocolError, RefusedError) as error:
            log.info("proposal_late", round=manifest.round, why=str(error))
        return step

    async def _submit(self, holder: Submitted, manifest: RoundManifest) -> None:
        """A submission that comes too late leaves the silo a holder, and its values pending until that is proven."""
        pending = Pending.of(holder)
        if self._drill.attack:  # the residual goes on as if honest values had been sent, or the drill would feed on itself
            pending = replace(pending, sent=gather(self.books.memory.g(), pending.indices))
        self.books.submit(pending)
        self.reports.phase(manifest.round, "submitting")
        mates = [place.silo for place in holder.agreement.assignment[holder.place] if place.silo != self._name]
        try:
            await self.connection.submit(holder.message, mates=mates)
        except (ProtocolError, RefusedError) as error:
            log.info("submission_late", round=manifest.round, why=str(error))
            return
        await self.reports.submitted(manifest, holder.values.clip_rate)

    async def _affordable(self, manifest: RoundManifest) -> bool:
        """A silo whose budget is spent holds the others' shares in this round, then leaves."""
        try:
            check_epsilon(manifest, self.books.journal.ledger, self._policy)
        except RefusedError as error:
            self._stopping = error
            await self.reports.problem(manifest, str(error), own=True)
            return False
        return True

    async def _trained(self, model: ModelState, manifest: RoundManifest) -> bool:
        """Whether there is a g for this model version before the others agree without it."""
        if not self.books.memory.needs_training(model.version):
            return True
        self.reports.phase(manifest.round, "training")
        too_late = asyncio.create_task(self._until_consensus(manifest))
        try:
            trained = await self._training.result(model, manifest.round, too_late, self.books.state_to_train_from())
        except TrainingFailedError as error:
            self._failures += 1
            await self.reports.training_failed(manifest, error)
            if self._failures >= self._settings.training_failures:
                self._stopping = FedrepError(f"training failed {self._failures} times in a row; last: {error}")
            return False
        finally:
            too_late.cancel()
        if trained is None:
            log.info("training_not_ready", round=manifest.round)
            return False
        self._failures = 0
        self.books.trained(trained)
        self.reports.trained(trained)
        return True

    async def _until_consensus(self, manifest: RoundManifest) -> None:
        """Only the server knows when its deadline passes. Asking is a message of the round, so its number goes to disk first."""
        await asyncio.sleep(manifest.deadlines.propose / 2)
        self.books.enter(manifest.round)
        with suppress(FedrepError):
            await self.connection.consensus(manifest.run, manifest.round)

    async def _conclude(self, manifest: RoundManifest, agreed: Agreed | None) -> Concluded:
        """Outcome, settlement, next model. May come rounds later for a silo that was away."""
        self.reports.phase(manifest.round, "update")
        concluded = await self.connection.update(manifest.run, manifest.round, omit_agreement=agreed is not None)
        if agreed is not None:
            update = concluded.update
            evidence = replace(update.evidence, survivors=agreed.confirmed.survivors, confirmations=agreed.signatures)
            update = replace(update, evidence=evidence)
            concluded = replace(concluded, update=update)
        elif self._name in manifest.names:
            concluded = await self._renounce(concluded)
        update = concluded.update
        self.books.settle(update)
        self.books.follow(update, agreed.confirmed.agreement.indices if agreed is not None else None)
        await self._ask_about_old_rounds(update.round)
        await self.reports.round_over(manifest, update, self.books)
        return concluded

    async def _look_back(self, joined: Joined) -> None:
        """After a restart: how the round ended in which this silo last spoke, if that is over."""
        last = self.books.journal.last_round
        if self._run is None or last == 0 or (joined.round is not None and joined.round.manifest.round <= last):
            return
        try:
            concluded = await self._renounce(await self.connection.update(self._run.digest(), last))
        except (ProtocolError, RefusedError) as error:
            log.info("no_answer_about_round", round=last, why=str(error))
            return
        self.books.settle(concluded.update)
        self.books.follow(concluded.update, None)

    async def _renounce(self, concluded: Concluded) -> Concluded:
        """Others may need this holder's word that it revealed nothing; it is on disk before it is given."""
        number = concluded.update.round
        if self._run is None or concluded.update.outcome is not Outcome.SKIPPED or not self.books.may_renounce(number):
            return concluded
        self.books.renounce(number)
        run = self._run.digest()
        signature = self._credentials.signing_key.sign(statement_message(run, number, self._name))
        return await self.connection.update(run, number, statement=Statement(self._name, run, number, signature))

    async def _ask_about_old_rounds(self, current: int) -> None:
        """Proof may come later; after a while the values are given up, and counted."""
        for pending in self.books.memory.pending:
            if pending.round >= current:
                continue
            try:
                self.books.settle((await self.connection.update(pending.run, pending.round)).update)
            except (RefusedError, ProtocolError) as error:
                log.debug("no_answer_about_round", round=pending.round, why=str(error))
        for pending in self.books.memory.pending:
            if current - pending.round > self._settings.proof_rounds:
                self.books.give_up(pending.round)

    async def _model_for(self, manifest: RoundManifest) -> ModelState:
        """The model the round starts from, fetched if this silo holds another."""
        held = self.books.model
        if held is not None and (held.hash, held.version) == (manifest.model_hash, manifest.model_version):
            return held
        self.reports.phase(manifest.round, "fetching the model")
        header, vector = await self.connection.model(manifest.run, manifest.model_version)
        model = replace(ModelState.initial(vector), version=header.version, chain=manifest.chain)
        if (model.hash, model.version) != (manifest.model_hash, manifest.model_version):
            raise RefusedError("the server sent another model than the manifest names", reason="WRONG_MODEL")
        if vector.size != self._trainer.layout.size:
            raise RefusedError(f"the run's model has {vector.size} parameters, this silo's {self._trainer.layout.size}")
        self.books.keep_model(model)
        return model

    async def _join_when_possible(self, *, announce: bool = True) -> Joined:
        """A silo may be started before its run is created."""
        waiting_since, said = time.monotonic(), -REMINDER_SECONDS
        while True:
            try:
                return await self._join(announce=announce)
            except NotFoundError as error:
                waited = time.monotonic() - waiting_since
                if error.reason != "UNKNOWN_RUN" or waited > self._settings.give_up_after:
                    raise
                if waited - said >= REMINDER_SECONDS:
                    log.info("waiting_for_run", run=self._settings.run, why=str(error))
                    said = waited
                self.reports.phase(None, "waiting for the run")
                await asyncio.sleep(POLL_SECONDS)

    async def _join(self, *, announce: bool = True) -> Joined:
        """Announce a session key, or only ask for news; a process that just started has no key that a manifest may list."""
        version = self.books.model.version if self.books.model else None
        asked = await self.connection.join(self._settings.run, b"", b"", version)
        run = check_run_signature(asked.run, self._trust)
        try:
            check_run(run, self._policy, self._name)
            self._drill.check(run)
        except RefusedError as error:
            await self.reports.refused_run(run, asked.last_round, error)
            raise
        if not self.books.belongs_to(run.digest().hex()):
            raise RefusedError(
                f"{self._settings.state} belongs to another run; use a state folder of its own for run {run.name!r}",
                reason="OTHER_RUN",
            )
        self._run, self._server_certificate = run, asked.server_certificate
        if announce:
            self._credentials = Credentials.load(self._settings.credentials)  # the key may have been replaced meanwhile
            key, signature = self._sessions.announced(run.digest(), self._credentials.signing_key)
            asked = await self.connection.join(self._settings.run, key, signature, version)
            self._roster.joined()
        self.reports.joined(run, asked)
        return asked

    async def _left_round(self, manifest: RoundManifest, error: FedrepError) -> None:
        if error.reason == "SESSION_KEY_LOST":
            log.info("sitting_out", round=manifest.round, why=str(error))
            self._sessions = Sessions()
            await self._join()
        elif said_by_server(error):
            log.info("round_left", round=manifest.round, reason=error.reason, why=str(error))
        else:
            await self.reports.problem(manifest, str(error), own=True)


def _generator() -> np.random.Generator:
    """A fresh generator from the system's randomness: obfuscation and rounding must not be predictable."""
    return np.random.default_rng(secrets.randbits(256))
