"""The silo's daemon: joins, follows rounds one after the other, and survives whatever happens in between.

`run_round` is the protocol from a silo's side, top to bottom. What may be sent is decided by `fedrep.protocol.silo_round`; what
must be on disk before it is sent stands here, in the order of the lines.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import structlog

from fedrep.attacks import ATTACKS
from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.errors import CryptoError, FedrepError, InvalidInputError, ProtocolError, RefusedError
from fedrep.privacy import CoordinateRelease
from fedrep.protocol.error_memory import ErrorMemory, Fate, Pending
from fedrep.protocol.manifests import RoundManifest, RunManifest, SignedRoundManifest, SiloName, session_key_message
from fedrep.protocol.messages import Outcome, Signatures, Update
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_round import Confirmed, Membership, Observing, Proposed, Ready, Submitted, renounce
from fedrep.protocol.silo_rules import Policy, check_epsilon, check_run
from fedrep.secagg.keys import AgreementKey
from fedrep.sparsify import propose
from services.client.audit import Audit
from services.client.config import ClientSettings
from services.client.connection import Concluded, Connection, Joined
from services.client.peers import Peers, check_round_signature, check_run_signature
from services.client.reports import Reports
from services.client.state import Journal, StateFolder
from services.client.trainer import Trainer
from services.client.training import Trained, Training, TrainingFailedError
from services.identity.certificates import Credentials, TrustStore

log = structlog.get_logger(__name__)

POLL_SECONDS = 1.0
OVER = ("finished", "stopped")


class RunOverError(FedrepError):
    """The run ended; the daemon has nothing left to do."""

    default_reason = "RUN_OVER"


@dataclass(frozen=True, slots=True)
class Agreed:
    """A round this silo confirmed: what the server need not send again."""

    confirmed: Confirmed
    signatures: Signatures


class SiloDaemon:
    """One silo in one run. All persistent state goes through `StateFolder`; the caller holds the folder's lock."""

    def __init__(self, settings: ClientSettings, credentials: Credentials, trust: TrustStore, trainer: Trainer) -> None:
        self._settings = settings
        self._credentials = credentials
        self._trust = trust
        self._name = SiloName(credentials.identity.name)
        self._state = StateFolder(settings.state)
        self._audit = Audit(settings.state / "audit.jsonl")
        self.connection = Connection(
            settings.server,
            lambda: Credentials.load(settings.credentials),
            self._audit,
            server_name=settings.server_name,
            patience=settings.give_up_after,
        )
        self._peers = Peers(trust, self.connection)
        self._training = Training(trainer)
        self._trainer = trainer
        self._journal: Journal = self._state.journal()
        self._model: ModelState | None = self._state.model()
        self._memory, trainer_state = self._state.memory(trainer.layout.size)
        if trainer_state:
            trainer.load_state(trainer_state)
        self._sessions: dict[bytes, AgreementKey] = {}
        self._run: RunManifest | None = None
        self._server_certificate = b""
        self._failures = 0
        self.reports = Reports(settings, self.connection, self._state, self._name)

    @property
    def model(self) -> ModelState | None:
        """The model this silo holds."""
        return self._model

    async def run(self) -> None:
        """Until the run is over or the operator stops it."""
        joined = await self._join()
        signed, state, last = joined.round, joined.state, joined.last_round
        while state not in OVER:
            if signed is None or self.connection.lost:
                await asyncio.sleep(POLL_SECONDS if signed is None else 0)
                self.connection.lost = False
                joined = await self._join()
                signed, state, last = joined.round, joined.state, joined.last_round
                continue
            concluded = await self.run_round(signed)
            signed, state, last = concluded.next_round, concluded.state, concluded.update.round
        self.reports.phase(last, f"run {state}")

    async def leave(self) -> None:
        """Tell the server politely; the next roster goes on without this silo."""
        if self._run is not None:
            await self.connection.leave(self._run.digest())
        await self.connection.close()

    async def run_round(self, signed: SignedRoundManifest) -> Concluded:
        """One round: take part as far as rules, time and luck allow, then learn how it ended."""
        manifest = check_round_signature(signed, self._server_certificate, self._trust)
        agreed = None
        if self._name in manifest.names and manifest.round > self._journal.last_round:
            try:
                agreed = await self._take_part(manifest)
            except (RefusedError, ProtocolError, InvalidInputError, CryptoError) as error:
                await self._left_round(manifest, error)
        return await self._conclude(manifest, agreed)

    async def _take_part(self, manifest: RoundManifest) -> Agreed:
        """The steps of `silo_round`, each with what it needs on disk."""
        model = await self._model_for(manifest)
        ready = await self._enter(manifest, model)
        step = await self._propose(ready, model)
        self.reports.phase(manifest.round, "consensus")
        consensus = await self.connection.consensus(manifest.run, manifest.round)
        placed = any(place.silo == self._name for buffer in consensus.assignment for place in buffer)
        holder: Submitted | Observing
        if isinstance(step, Proposed) and placed:
            holder = step.on_consensus(consensus, self._to_send(), _generator())
            self._memory = self._memory.submitted(Pending.of(holder))
            self._state.save_memory(self._memory, self._trainer.state())
            await self.connection.submit(holder.message)
            await self.reports.submitted(manifest, holder.values.clip_rate)
        elif isinstance(step, Proposed):
            holder = step.observe(consensus)
        else:
            holder = step.watch().on_consensus(consensus)
        self.reports.phase(manifest.round, "survivors")
        confirmed = holder.on_survivors(await self.connection.survivors(manifest.run, manifest.round))
        signatures = await self.connection.confirm(confirmed.message)
        revealed = confirmed.on_signatures(signatures)
        self._save(replace(self._journal, revealed=(*self._journal.revealed, manifest.round)))
        try:
            await self.connection.reveal(revealed.message)
        except (ProtocolError, RefusedError) as error:  # the round closed as soon as enough holders had revealed
            log.debug("reveal_not_needed", round=manifest.round, why=str(error))
        return Agreed(confirmed, signatures)

    async def _enter(self, manifest: RoundManifest, model: ModelState) -> Ready:
        assert self._run is not None
        member = Membership(
            self._name,
            self._run,
            self._policy(),
            self._credentials.signing_key,
        )
        peers = await self._peers.of(manifest)
        ready = Ready.enter(member, manifest, peers, self._sessions, last_round=self._journal.last_round, model_hash=model.hash)
        self._forget_sessions_before(ready.session.public)
        return ready

    async def _propose(self, ready: Ready, model: ModelState) -> Proposed | Ready:
        """A proposal that was sent, or the unused step when there is nothing to propose (in time)."""
        manifest = ready.manifest
        if not self._within_hours():
            self._save(self._journal.entered(manifest.round))
            return ready
        if self._memory.needs_training(model.version):
            trained = await self._train(model, manifest)
            if trained is None:
                self._save(self._journal.entered(manifest.round))
                return ready
            self._memory = self._memory.trained(trained.version, trained.update)
        coordinates = self._coordinates(manifest, model)
        session = AgreementKey.generate()
        step = ready.propose(coordinates, session, secrets.token_bytes)
        self._sessions[session.public] = session
        self.reports.phase(manifest.round, "proposing")
        try:
            await self.connection.propose(step.message)
        except (ProtocolError, RefusedError) as error:
            log.warning("proposal_late", round=manifest.round, why=str(error))
        else:
            self._audit.sent("coordinates", 0, manifest.round, epsilon=self._journal.ledger.total, k=manifest.per_silo)
        return step

    def _coordinates(self, manifest: RoundManifest, model: ModelState) -> Any:
        """I_k, charged and on disk. The same set is sent again, free of charge, while nothing changed that it depends on."""
        key = (model.version, manifest.per_silo, manifest.alpha)
        last = self._journal.proposal
        if last is not None and tuple(last[:3]) == key:
            self._save(self._journal.entered(manifest.round))
            return decode_coordinates(bytes.fromhex(last[3]), manifest.parameters, manifest.per_silo)
        check_epsilon(manifest, self._journal.ledger, self._policy())
        coordinates = propose(self._memory.g(), manifest.per_silo, manifest.alpha, _generator())
        release = CoordinateRelease(manifest.round, manifest.parameters, manifest.per_silo, manifest.alpha)
        coded = encode_coordinates(coordinates, manifest.parameters).hex()
        self._save(replace(self._journal.entered(manifest.round).charged(release), proposal=(*key, coded)))
        return coordinates

    async def _train(self, model: ModelState, manifest: RoundManifest) -> Trained | None:
        self.reports.phase(manifest.round, "training")
        try:
            trained = await self._training.result(model, manifest.round, manifest.deadlines.propose)
        except TrainingFailedError as error:
            self._failures += 1
            await self.reports.problem(manifest, f"training failed: {error}")
            if self._failures >= self._settings.training_failures:
                raise FedrepError(f"training failed {self._failures} times in a row; last: {error}") from error
            return None
        if trained is not None:
            self._failures = 0
            self.reports.trained(trained)
        return trained

    def _to_send(self) -> Any:
        """g, or what a drill makes of it."""
        g = self._memory.g()
        drill = self._settings.drill
        if not drill.attack:
            return g
        if self._run is None or not self._run.drills:
            raise RefusedError(
                "this run does not allow attack drills; remove [drill] from the silo's settings", reason="NO_DRILLS"
            )
        return ATTACKS[drill.attack](g[None, :], 1, rng=_generator(), **drill.options)[0].astype(np.float32)

    async def _conclude(self, manifest: RoundManifest, agreed: Agreed | None) -> Concluded:
        """Outcome, settlement, next model. May come rounds later for a silo that was away."""
        self.reports.phase(manifest.round, "update")
        concluded = await self.connection.update(manifest.run, manifest.round, omit_agreement=agreed is not None)
        update = concluded.update
        if agreed is not None:
            update = replace(update, survivors=agreed.confirmed.survivors, confirmations=agreed.signatures)
        elif update.outcome is Outcome.SKIPPED:
            concluded = await self._renounce(manifest.round, concluded)
            update = concluded.update
        self._settle(update)
        await self._follow(update, agreed)
        await self._ask_about_old_rounds(update.round)
        await self.reports.round_over(manifest, update, self._model, self._trainer, self._journal.ledger, self._memory.given_up)
        return concluded

    async def _renounce(self, round_number: int, concluded: Concluded) -> Concluded:
        """Others may need this holder's word that it revealed nothing; it is on disk before it is given."""
        if self._run is None:
            return concluded
        journal = self._journal.entered(round_number)
        member = Membership(self._name, self._run, self._policy(), self._credentials.signing_key)
        try:
            statement = renounce(member, round_number, last_round=journal.last_round, revealed=journal.revealed)
        except RefusedError:
            return concluded
        if round_number not in journal.renounced:
            self._save(replace(journal, renounced=(*journal.renounced, round_number)))
        return await self.connection.update(statement.run, round_number, statement=statement)

    def _settle(self, update: Update) -> None:
        memory, fate = self._memory.settle(update)
        if fate is None or fate is Fate.UNDECIDED:
            return
        self._set_memory(memory)
        log.debug("settled", round=update.round, fate=fate.value)

    async def _ask_about_old_rounds(self, current: int) -> None:
        """Proof may come later; after a while the values are given up, and counted."""
        for pending in self._memory.pending:
            if pending.round >= current:
                continue
            if current - pending.round > self._settings.proof_rounds:
                self._set_memory(self._memory.give_up(pending.round))
                log.warning("values_given_up", round=pending.round)
                continue
            try:
                self._settle((await self.connection.update(pending.run, pending.round)).update)
            except (RefusedError, ProtocolError) as error:
                log.debug("no_answer_about_round", round=pending.round, why=str(error))

    def _set_memory(self, memory: ErrorMemory) -> None:
        """In memory and on disk; a local update not submitted yet lives in memory only."""
        self._memory = memory
        self._state.save_memory(memory, self._trainer.state())

    async def _follow(self, update: Update, agreed: Agreed | None) -> None:
        """The next model from the update if this silo holds the one before; else it is fetched when needed."""
        model = self._model
        if update.outcome is not Outcome.APPLIED or model is None or model.version + 1 != update.model_version:
            return
        known = agreed.confirmed.agreement.indices if agreed is not None else None
        indices = known if known is not None else decode_coordinates(update.coordinates, model.vector.size)
        try:
            self._model = model.follow(update, indices)
        except RefusedError as error:
            log.warning("model_diverged", why=str(error))
            self._model = None
            return
        self._state.save_model(self._model)

    async def _model_for(self, manifest: RoundManifest) -> ModelState:
        """The model the round starts from, fetched if this silo holds another."""
        if self._model is not None and self._model.hash == manifest.model_hash:
            return self._model
        self.reports.phase(manifest.round, "fetching the model")
        header, vector = await self.connection.model(manifest.run, manifest.model_version)
        model = replace(ModelState.initial(vector), version=header.version, chain=manifest.chain)
        if model.hash != manifest.model_hash:
            raise RefusedError("the server sent another model than the manifest names", reason="WRONG_MODEL")
        if vector.size != self._trainer.layout.size:
            raise RefusedError(f"the run's model has {vector.size} parameters, this silo's {self._trainer.layout.size}")
        self._model = model
        self._state.save_model(model)
        return model

    async def _join(self) -> Joined:
        """Announce a session key; a process that just started has none of those a manifest may list."""
        first = await self.connection.join(self._settings.run, b"", b"", self._model.version if self._model else None)
        run = check_run_signature(first.run, self._trust)
        check_run(run, self._policy(), self._name)
        if self._journal.run not in ("", run.digest().hex()):
            raise RefusedError(
                f"{self._settings.state} belongs to another run; use a state folder of its own for run {run.name!r}",
                reason="OTHER_RUN",
            )
        self._run, self._server_certificate = run, first.server_certificate
        self._save(replace(self._journal, run=run.digest().hex()))
        if not self._sessions:
            session = AgreementKey.generate()
            self._sessions[session.public] = session
        newest = next(reversed(self._sessions))
        signature = self._credentials.signing_key.sign(session_key_message(run.digest(), newest))
        joined = await self.connection.join(self._settings.run, newest, signature, self._model.version if self._model else None)
        self.reports.joined(run, joined)
        return joined

    async def _left_round(self, manifest: RoundManifest, error: FedrepError) -> None:
        log.warning("left_round", round=manifest.round, reason=error.reason, why=str(error))
        if error.reason == "SESSION_KEY_LOST":
            self._sessions.clear()
            await self._join()
        elif isinstance(error, RefusedError):
            await self.reports.problem(manifest, str(error))

    def _forget_sessions_before(self, listed: bytes) -> None:
        """A key is erased once a manifest lists its successor."""
        for public in list(self._sessions):
            if public == listed:
                return
            del self._sessions[public]

    def _policy(self) -> Policy:
        return self._settings.policy.rules(bytes.fromhex(self._trainer.layout.digest))

    def _within_hours(self) -> bool:
        hours = self._settings.policy.hours
        if hours is None:
            return True
        now = dt.datetime.now().hour
        start, end = hours
        return start <= now < end if start <= end else (now >= start or now < end)

    def _save(self, journal: Journal) -> None:
        self._state.save_journal(journal)
        self._journal = journal


def _generator() -> np.random.Generator:
    """A fresh generator from the system's randomness: obfuscation and rounding must not be predictable."""
    return np.random.default_rng(secrets.randbits(256))
