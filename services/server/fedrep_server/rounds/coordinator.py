"""All runs of this server: created, found, resumed after a restart, and what the two services ask about them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import structlog

from fedrep.errors import (
    ConflictError,
    CryptoError,
    FedrepError,
    InvalidInputError,
    NotFoundError,
    OutOfPhaseError,
    SettingsError,
)
from fedrep.protocol.announcement import Dice
from fedrep.protocol.best import Best
from fedrep.protocol.goals import Goals
from fedrep.protocol.manifests import RunManifest, SignedRunManifest, SiloName, run_manifest_message
from fedrep.protocol.messages import SignedRollback
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.preflight import preflight
from fedrep.protocol.run_events import Restarted
from fedrep.protocol.run_progress import RunProgress, RunState
from fedrep.protocol.server_rules import check_rollback_signature
from fedrep.protocol.server_run import ServerRun
from fedrep.wire import codec
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2 as observer
from fedrep_identity.certificates import Credentials, PeerCertificate
from fedrep_server.config import ServerSettings
from fedrep_server.rounds.interpreter import RoundListener
from fedrep_server.rounds.model_store import MEND, UNUSABLE, ModelStore, StoredModel, another_model
from fedrep_server.rounds.records import FLOAT_BYTES, RunRecords
from fedrep_server.rounds.report_desk import ReportDesk
from fedrep_server.rounds.run_driver import RunDriver
from fedrep_server.rounds.seal import Seal
from fedrep_server.rounds.waiting import carried_through
from fedrep_server.rounds.watchers import Watchers
from fedrep_server.store import NewEvent, NewModel, Report, Store, StoredRun

log = structlog.get_logger(__name__)

SEEN_SECONDS = 10.0
MOST_PROBLEMS = 5


class Coordinator:
    def __init__(
        self,
        settings: ServerSettings,
        store: Store,
        models: ModelStore,
        credentials: Credentials,
        listeners: Sequence[RoundListener] = (),
    ) -> None:
        self.settings = settings
        self.store = store
        self.models = models
        self.watchers = Watchers()
        self.server_certificate = credentials.chain
        self._listeners = listeners
        self._seal = Seal(settings.credentials, credentials)
        self._drivers: dict[str, RunDriver] = {}
        self._by_hash: dict[bytes, RunDriver] = {}
        self._certificates: dict[bytes, bytes] = {}
        self._desk = ReportDesk(store)
        self._reported: dict[tuple[str, str], pb.ReportMetricsRequest] = {}
        self._seen: dict[tuple[str, str], tuple[str, float, float]] = {}
        self._problems: dict[tuple[str, str], tuple[int, int]] = {}
        self._creating = asyncio.Lock()

    @property
    def drivers(self) -> tuple[RunDriver, ...]:
        return tuple(self._drivers.values())

    async def resume_runs(self) -> None:
        """After a start: every run that is not over goes on from its last applied round, if it has its model."""
        for name in await asyncio.to_thread(self.store.deleted_runs):
            await asyncio.to_thread(self.models.prune, name, frozenset())
        for stored in reversed(await asyncio.to_thread(self.store.runs)):
            driver = await asyncio.to_thread(self._restored, stored)
            self._add(driver)
            log.info("run_resumed", run=stored.name, state=driver.state.value, last_round=driver.last_round)

    def _restored(self, stored: StoredRun) -> RunDriver:
        signed = codec.signed_run_from_wire(pb.SignedRunManifest.FromString(stored.manifest))
        options = observer.RunOptions.FromString(stored.options)
        records = self._records(signed, options, stored.progress.buffer_seed)
        progress, damage = _read(records, stored)
        driver = self._driver(signed, records, progress)
        driver.damage = damage
        if not damage:
            records.prune_models(stored)
        records.settle(driver.machine, Restarted(stored.open_round))
        if damage:
            log.error("model_unusable", run=stored.name, version=stored.progress.model_version, problem=damage)
            records.note("problem", damage, round_number=driver.last_round, severity="alert")
        return driver

    async def create_run(self, signed: SignedRunManifest, options: observer.RunOptions, vector: bytes | bytearray) -> None:
        """After a rehearsal that found nothing."""
        await self._create(signed, options, await asyncio.to_thread(_initial_model, signed, vector))

    @carried_through
    async def _create(self, signed: SignedRunManifest, options: observer.RunOptions, model: ServerModel) -> None:
        """To its end once it has begun: a run on disk that nobody finds would only be in the way of the next try."""
        async with self._creating:
            if signed.manifest.name in self._drivers:
                raise _name_taken(signed.manifest.name)
            driver = await asyncio.to_thread(self._created, signed, options, model)
            self._add(driver)
        self.watchers.changed(signed.manifest.name)
        log.info("run_created", run=signed.manifest.name, admin=signed.admin)

    def rehearse(self, signed: SignedRunManifest, admin: PeerCertificate) -> list[str]:
        """Problems, if any: everything that can be said before the model arrives. Nothing is created."""
        _check_admin(signed, admin)
        if signed.manifest.name in self._drivers:
            raise _name_taken(signed.manifest.name)
        return preflight(signed.manifest)

    def _created(self, signed: SignedRunManifest, options: observer.RunOptions, model: ServerModel) -> RunDriver:
        """The model's file is written when nobody else has the name: it would take the place of the other's."""
        manifest, state, seed = signed.manifest, model.state, secrets.token_bytes(32)
        before = self._created_before(manifest)
        if before is not None:
            return before
        progress = RunProgress.first(manifest, model)
        driver = self._driver(signed, self._records(signed, options, seed), progress)
        self.models.put(manifest.name, 0, state.vector, model.residual, state.hash, state.chain)
        now = time.time()
        stored = StoredRun(
            manifest.name,
            manifest.digest(),
            codec.signed_run_to_wire(signed).SerializeToString(),
            options.SerializeToString(),
            progress.state.value,
            progress.reason,
            now,
            driver.records.columns(progress),
        )
        created = NewEvent(now, "state", f"run created by {signed.admin}: {progress.reason}")
        try:
            self.store.create_run(stored, NewModel(0, state.hash, state.chain, FLOAT_BYTES * state.vector.size), [created])
        except ConflictError:
            before = self._created_before(manifest)
            if before is None:
                raise
            return before
        return driver

    def _created_before(self, manifest: RunManifest) -> RunDriver | None:
        """The very same run, if the word of its creation was lost."""
        try:
            there = self.store.run(manifest.name)
        except NotFoundError:
            return None
        if there.deleted_at is not None:
            raise _name_spent(manifest.name)
        if there.run != manifest.digest():
            raise _name_taken(manifest.name)
        return self._restored(there)

    def _records(self, signed: SignedRunManifest, options: observer.RunOptions, seed: bytes) -> RunRecords:
        return RunRecords(
            signed.manifest.name,
            signed.manifest.digest(),
            options,
            seed,
            self.store,
            self.models,
            options.keep_models or self.settings.retention.models,
            self.watchers.changed_from_thread,
            self.settings.retention.updates,
        )

    def _driver(self, signed: SignedRunManifest, records: RunRecords, progress: RunProgress) -> RunDriver:
        rules, options = signed.manifest, records.options
        goals = Goals(rules.rounds, options.target_accuracy, options.epsilon_budget)
        machine = ServerRun(rules, progress, Dice(records.buffer_seed), self._seal.sign, goals, in_place=True)
        return RunDriver(signed, machine, records, self.settings, self._listeners)

    def _add(self, driver: RunDriver) -> None:
        self._drivers[driver.manifest.name] = driver
        self._by_hash.update((signed.manifest.digest(), driver) for signed in (*driver.chain, driver.amendment) if signed)

    async def shut_down(self) -> None:
        await asyncio.gather(*(driver.shut_down(self.settings.grace_seconds) for driver in self.drivers))

    def count_traffic(self, run: str, silo: str, up: int, down: int, waiting: bool = False) -> None:
        """`waiting`: the call does nothing but wait. While no round is open it belongs to none, only to the run."""
        driver = self._drivers.get(run)
        if driver is not None:
            (driver.idle_traffic if waiting and driver.machine.open is None else driver.traffic).add(silo, up, down)

    def run_named(self, name: str, may_know: Callable[[RunDriver], bool] = lambda _: True) -> RunDriver:
        """`may_know`: of which runs whoever asks may hear the names when this one is not there."""
        driver = self._drivers.get(name)
        if driver is None:
            known = ", ".join(sorted(other for other, found in self._drivers.items() if may_know(found))) or "none yet"
            raise NotFoundError(f"there is no run named {name!r} here; known runs: {known}", reason="UNKNOWN_RUN")
        return driver

    def run_hashed(self, run: bytes) -> RunDriver:
        driver = self._by_hash.get(run)
        if driver is None:
            raise NotFoundError("no run here has this manifest; join again to learn the current one", reason="UNKNOWN_RUN")
        return driver

    async def seen(self, driver: RunDriver, peer: PeerCertificate, software_version: str) -> None:
        """On disk when something changed; that the silo is still there, only every ten seconds."""
        expires, now = peer.not_after.timestamp(), time.time()
        run, name, version = driver.manifest.name, peer.identity.name, software_version[:64]
        known = self._seen.get((run, name))
        if known is not None and known[:2] == (version, expires) and now < known[2] + SEEN_SECONDS:
            return
        await asyncio.to_thread(self.store.touch_silo, run, name, version, expires, now)
        self._seen[run, name] = version, expires, now

    def remember_certificate(self, peer: PeerCertificate) -> None:
        self._certificates[peer.fingerprint] = peer.chain

    def certificate(self, fingerprint: bytes) -> bytes:
        """The PEM chain, or nothing for a fingerprint nobody joined with."""
        return self._certificates.get(fingerprint, b"")

    async def model(self, driver: RunDriver, version: int) -> StoredModel:
        model = driver.model
        held = StoredModel(version, model.state.vector, model.residual, model.state.hash, model.state.chain)
        if version == model.state.version and not model.tenure.is_over:
            return held
        kept = await asyncio.to_thread(driver.records.model, version)
        if version == model.state.version and kept.hash != model.state.hash:
            raise another_model(driver.manifest.name, version)
        return kept

    async def report(self, driver: RunDriver, peer: PeerCertificate, request: pb.ReportMetricsRequest) -> None:
        """A silo's or the evaluator's own figures. Absent fields stay absent."""
        newest = driver.open.number if driver.open is not None else driver.last_round
        if request.round > newest:
            raise InvalidInputError(f"round {request.round} has not started; nothing can be reported about it")
        reporter = (driver.manifest.name, peer.identity.name)
        if self._reported.get(reporter) == request:
            return  # the answer was lost; an event for it stands in the log already
        metrics = {field.name: value for field, value in request.ListFields() if field.name not in ("run", "round")}
        name, role = driver.manifest.name, peer.identity.role.value
        if role == "evaluator":
            metrics["model_version"] = request.model_version  # 0, the initial model, does not count as set
            best = Best.named(driver.records.options.best)
            metrics["score"] = best.score(metrics.get("accuracy"), metrics.get("loss"), metrics.get("metrics", {}))
        await self._desk.add(name, Report(request.round, peer.identity.name, role, metrics))
        self._reported[reporter] = request
        if request.problem:
            driver.notes.say(SiloName(peer.identity.name), request.round, request.problem)
            if self._is_worth_a_line(reporter, request.round):
                text = f"{peer.identity.name}: {request.problem}"
                await driver.note("problem", text, peer.identity.name, request.round, "warning")
        elif role == "evaluator":
            await driver.note("metrics", _figures_text(request), peer.identity.name, request.round)
        self.watchers.changed(name)

    def _is_worth_a_line(self, reporter: tuple[str, str], number: int) -> bool:
        """A silo's row shows its latest problem in any case; a few lines per round are enough for the log."""
        latest, count = self._problems.get(reporter, (number, 0))
        if number < latest or (number == latest and count >= MOST_PROBLEMS):
            return False
        self._problems[reporter] = number, (count + 1 if number == latest else 1)
        return True

    async def amend(self, driver: RunDriver, signed: SignedRunManifest, admin: PeerCertificate) -> None:
        """The run is found by the new hash, once it counts, and by all the older ones."""
        _check_admin(signed, admin)
        problems = await asyncio.to_thread(preflight, signed.manifest)
        if problems:
            raise SettingsError("the amended run cannot work: " + "; ".join(problems), reason="PREFLIGHT")
        await self._take_amendment(driver, signed)

    @carried_through
    async def _take_amendment(self, driver: RunDriver, signed: SignedRunManifest) -> None:
        """Both or neither: silos whose list is in force under a hash that nobody finds could only wait for a restart."""
        await driver.amend(signed)
        self._add(driver)

    @carried_through
    async def delete_run(self, driver: RunDriver) -> None:
        """For good, and only when it is over. The database first: models that are left by a crash go at the next start."""
        if driver.state not in (RunState.FINISHED, RunState.STOPPED):
            raise OutOfPhaseError(
                f"the run is {driver.state.value}; stop it first (fedrep run stop), and export the model you want to keep",
                reason="RUN_NOT_OVER",
            )
        name = driver.manifest.name
        await asyncio.to_thread(self.store.delete_run, name, time.time())
        self._drivers.pop(name, None)
        self._by_hash = {run: found for run, found in self._by_hash.items() if found is not driver}
        for known in (self._seen, self._reported, self._problems):
            for key in [key for key in known if key[0] == name]:
                del known[key]
        await asyncio.to_thread(self.models.prune, name, frozenset())
        self.watchers.changed(name)
        log.info("run_deleted", run=name)

    async def roll_back(self, driver: RunDriver, version: int, order: SignedRollback, admin: PeerCertificate) -> None:
        """Silos are shown the certificate that was verified here, whatever came with the order."""
        check_rollback_signature(order, admin.verify_key)
        order = replace(order, admin=admin.identity.name, certificate=admin.chain)
        await driver.roll_back(await asyncio.to_thread(driver.records.model, version), order)


def _read(records: RunRecords, stored: StoredRun) -> tuple[RunProgress, str]:
    """A model that cannot be used is one run's trouble, and no reason for the others to wait. The text says what is wrong."""
    try:
        return records.read(stored), ""
    except FedrepError as error:
        if error.reason not in UNUSABLE:
            raise
        advice = "" if MEND in str(error) else f" {MEND}"
        return records.read_without_model(stored), f"no round opens without the model. {error}{advice}"


def _name_spent(name: str) -> ConflictError:
    return ConflictError(
        f"a run named {name!r} was deleted here, and what its silos have spent is kept under that name; choose another",
        reason="NAME_TAKEN",
    )


def _name_taken(name: str) -> ConflictError:
    return ConflictError(f"there is already a run named {name!r} here; choose another name", reason="NAME_TAKEN")


def _check_admin(signed: SignedRunManifest, admin: PeerCertificate) -> None:
    """The manifest is signed by the very admin who creates the run."""
    if signed.admin != admin.identity.name:
        raise CryptoError("the manifest names another admin than the one who sends it", reason="WRONG_ADMIN")
    try:
        admin.verify_key.verify(signed.signature, run_manifest_message(signed.manifest))
    except CryptoError as error:
        raise CryptoError("the run manifest is not validly signed by this admin", reason="BAD_SIGNATURE") from error


def _figures_text(request: pb.ReportMetricsRequest) -> str:
    named = {name: getattr(request, name) for name in ("accuracy", "loss") if request.HasField(name)} | dict(request.metrics)
    figures = ", ".join(f"{name} {value:.4f}" for name, value in named.items())
    return f"{figures or 'no figure'} after round {request.round}"


def _initial_model(signed: SignedRunManifest, data: bytes | bytearray) -> ServerModel:
    if len(data) != FLOAT_BYTES * signed.manifest.parameters:
        raise InvalidInputError("the model has another number of parameters than the manifest says", reason="WRONG_MODEL")
    model = ServerModel.initial(np.frombuffer(data, "<f4").astype(np.float32, copy=False), signed.manifest.model_hash)
    if model.state.hash != signed.manifest.model_hash:
        raise InvalidInputError("the model is not the one whose hash the manifest was signed with", reason="WRONG_MODEL")
    if not np.isfinite(model.state.vector).all():
        raise InvalidInputError("the initial model holds NaN or infinity", reason="NOT_FINITE")
    return model
