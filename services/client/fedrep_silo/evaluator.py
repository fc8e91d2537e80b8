"""The evaluator: holds test data, contributes nothing, follows the model, reports accuracy and loss, keeps the best model."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace

import structlog
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedrep.errors import FedrepError, InvalidInputError, NotFoundError, ProtocolError, RefusedError
from fedrep.protocol.best import Best
from fedrep.protocol.messages import ModelName, Outcome, Update
from fedrep.protocol.model_state import ModelState, indices_of
from fedrep.protocol.silo_effects import Join, Joined
from fedrep.protocol.silo_machine import OVER, POLL_SECONDS
from fedrep.protocol.silo_trust import check_run_signature
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_identity.certificates import TrustStore
from fedrep_runtime.files import write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_runtime.trackers import Trackers, check_trackers
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import REMINDER_SECONDS, connect
from fedrep_silo.state import StateFolder
from fedrep_silo.status_file import note_server
from fedrep_silo.training import in_thread
from fedrep_silo.trust import FederationTrust
from fedrep_trainers.trainer import Evaluation, ModelExporter, Trainer
from fedrep_trainers.user_errors import explained

log = structlog.get_logger(__name__)


class Evaluator:
    def __init__(self, settings: SiloSettings, trust: TrustStore, trainer: Trainer) -> None:
        self._settings = settings
        self._trust = trust
        self._trainer = trainer
        self.connection = connect(settings)
        self._state = StateFolder(settings.state)
        check_trackers(settings.tracking)
        self._trackers = Trackers(settings.tracking, settings.run, {"server": settings.server})
        self._best_file = settings.state / "best.safetensors"
        self._best = self._best_so_far()
        self._model: ModelState | None = None
        self._evaluated: int | None = None
        self._evaluated_in = 0
        self._interval = 1
        self._decides = Best()
        self.speaking = False  # an evaluator can leave at any moment
        self._leaving = False
        self._waiting_since: float | None = None
        self._reminded: float | None = None
        self.status: dict[str, object] = {"run": settings.run, "server": settings.server, "phase": "starting"}
        self.connection.heard_of_server = self._heard_of_server

    @property
    def model(self) -> ModelState | None:
        return self._model

    async def run(self) -> None:
        while not self._leaving:
            version = self._model.version if self._model else None
            try:
                joined = await self.connection.join(Join(self._settings.run, version))
                # Known: it keeps no state, and the rules of a run bind silos.
                manifest = check_run_signature(joined.run, FederationTrust(self._trust), known=True)
                if manifest.name != self._settings.run:
                    raise RefusedError(f"asked for run {self._settings.run!r}, the server offers run {manifest.name!r}")
                run = manifest.digest()
                self._interval = self._settings.evaluate_every or joined.evaluation_interval
                self._decides = Best.named(joined.best)
                await self._catch_up(run, joined)
            except NotFoundError as error:  # the run is still to be created, or the model moved on while it was asked for
                self._note_waiting(error)
                await asyncio.sleep(POLL_SECONDS)
                continue
            self._waiting_since = None
            if joined.state in OVER:
                await self._evaluate(run, joined.last_round)
                self._show(joined.last_round, f"run {joined.state}")
                await in_thread(self._trackers.close)
                return
            if joined.round is None:
                await asyncio.sleep(POLL_SECONDS)
                continue
            await self._follow_rounds(run, joined.round.manifest.round)

    def _note_waiting(self, error: NotFoundError) -> None:
        """Once a minute; an error once the operator's patience is over."""
        now = time.monotonic()
        self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        if now - self._waiting_since > self._settings.give_up_after:
            raise error
        self._show(0, "waiting for the run")
        if self._reminded is None or now - self._reminded >= REMINDER_SECONDS:
            self._reminded = now
            log.info("waiting_for_run", run=self._settings.run, why=str(error))

    def stop(self) -> None:
        self._leaving = True

    async def leave(self) -> None:
        await in_thread(self._trackers.close)
        await self.connection.close()

    async def _follow_rounds(self, run: bytes, round_number: int) -> None:
        """Round after round, as long as each update names the next one."""
        while not self._leaving:
            self._show(round_number, "waiting for the update")
            try:
                concluded = await self.connection.update(run, round_number)
                if concluded.update.round != round_number:
                    raise RefusedError(f"the server spoke of round {concluded.update.round}")
                await self._take(run, concluded.update)
            except (RefusedError, ProtocolError, InvalidInputError) as error:
                log.info("update_refused", round=round_number, why=str(error))
                self._model = None
                await asyncio.sleep(POLL_SECONDS)
                return
            if concluded.next_round is None or concluded.state in OVER:
                return
            round_number = concluded.next_round.manifest.round

    async def _take(self, run: bytes, update: Update) -> None:
        model = self._model
        if update.outcome is not Outcome.APPLIED:
            return
        if model is None or model.version + 1 != update.model.version:
            await self._fetch(run, update.model)
        else:
            self._model = model.follow(update, indices_of(update, model.vector.size))
        if self._is_due(update.round):
            await self._evaluate(run, update.round)

    async def _catch_up(self, run: bytes, joined: Joined) -> None:
        if self._model is None or self._model.version != joined.model.version:
            await self._fetch(run, joined.model)
            if self._is_due(joined.last_round):
                await self._evaluate(run, joined.last_round)

    def _is_due(self, round_number: int) -> bool:
        """Once per interval, also where the round at its end was skipped or went by unseen."""
        return self._evaluated is None or round_number // self._interval > self._evaluated_in // self._interval

    async def _fetch(self, run: bytes, name: ModelName) -> None:
        version, vector = await self.connection.model(run, name.version)
        model = replace(ModelState.initial(vector, name.hash), version=version, chain=name.chain)
        if (model.version, model.hash) != (name.version, name.hash):
            raise RefusedError("the server sent another model than it names", reason="WRONG_MODEL")
        self._model = model

    async def _evaluate(self, run: bytes, round_number: int) -> None:
        model = self._model
        if model is None or self._evaluated == model.version:
            return
        self._show(round_number, "evaluating")
        self._evaluated, self._evaluated_in = model.version, round_number
        try:
            result = await in_thread(lambda: self._trainer.evaluate(model.vector), self._trainer)
        except Exception as error:  # user code may raise anything; the next version is tried
            problem = f"evaluation failed: {explained(error)}"
            log.error("evaluation_failed", round=round_number, why=problem)
            self.status["problem"] = problem
            return
        self.status |= {"accuracy": result.accuracy, "loss": result.loss, "metrics": dict(result.metrics), "problem": None}
        log.info("evaluated", round=round_number, accuracy=result.accuracy, loss=round(result.loss, 4), **_logged(result.metrics))
        request = pb.ReportMetricsRequest(
            run=run,
            round=round_number,
            model_version=model.version,
            loss=result.loss,
            accuracy=result.accuracy,
            samples=result.samples,
            metrics=result.metrics,
        )
        figures = {"accuracy": result.accuracy, "loss": result.loss, **result.metrics}
        await in_thread(lambda: self._trackers.log(figures, round_number))
        try:
            await self.connection.report(request)
        except FedrepError as error:
            log.warning("report_refused", why=str(error))
        if self._score(result) > self._best:
            # Statistics are estimated anew, which takes a while.
            await in_thread(lambda: self._keep_best(model, result), self._trainer)

    def _keep_best(self, model: ModelState, result: Evaluation) -> None:
        """With batch-norm statistics where the trainer can give them; a model it cannot export is kept as plain parameters."""
        tensors = None
        if isinstance(self._trainer, ModelExporter):
            try:
                tensors = self._trainer.export(model.vector)
            except FedrepError as error:
                log.warning("model_not_exported", why=str(error))
        notes = {"version": model.version, "accuracy": result.accuracy, "loss": result.loss, "score": self._score(result)}
        data = save(tensors if tensors is not None else {"model": model.vector}, {"fedrep": json.dumps(notes)})
        write_atomically(self._best_file, data, 0o644)
        self._best = self._score(result)

    def _score(self, result: Evaluation) -> float:
        score = self._decides.score(result.accuracy, result.loss, result.metrics)
        return -math.inf if score is None else score

    def _best_so_far(self) -> float:
        """A restart does not forget how good the best model was."""
        if not self._best_file.exists():
            return -math.inf
        try:
            with safe_open(self._best_file, "np") as file:
                return float(parsed(file.metadata()["fedrep"])["score"])
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("best_model_unreadable", file=str(self._best_file), why=str(error))
            return -math.inf

    def _heard_of_server(self, why: str) -> None:
        note_server(self.status, why)
        self._state.save_status(self.status)

    def _show(self, round_number: int, phase: str) -> None:
        self.status |= {"round": round_number, "phase": phase}
        self._state.save_status(self.status)


def _logged(metrics: Mapping[str, float]) -> dict[str, float]:
    """Under names of their own, for a figure may be called as a part of the log's line is."""
    return {f"metric.{name}": round(value, 4) for name, value in metrics.items()}
