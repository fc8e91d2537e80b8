"""What a silo tells: its operator a calm line per round, its status file, and the server as much as `report` allows."""

from __future__ import annotations

import time
from typing import Any

import structlog

from fedrep.errors import FedrepError
from fedrep.privacy import Ledger
from fedrep.protocol.manifests import RoundManifest, RunManifest
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState
from fedrep.wire.v1 import federation_pb2 as pb
from services.client.config import ClientSettings
from services.client.connection import Connection, Joined
from services.client.state import StateFolder
from services.client.trainer import Trainer
from services.client.training import Trained

log = structlog.get_logger(__name__)


class Reports:
    def __init__(self, settings: ClientSettings, connection: Connection, state: StateFolder, name: str) -> None:
        self._settings = settings
        self._connection = connection
        self._state = state
        self._trained: Trained | None = None
        self._clip_rate: float | None = None
        self.status: dict[str, Any] = {"silo": name, "run": settings.run, "server": settings.server, "phase": "starting"}

    def phase(self, round_number: int, phase: str) -> None:
        self.status |= {"round": round_number, "phase": phase, "at": time.time()}
        self._state.save_status(self.status)

    def joined(self, run: RunManifest, joined: Joined) -> None:
        self.status |= {"phase": "joined", "state": joined.state, "run_hash": run.digest().hex(), "at": time.time()}
        self._state.save_status(self.status)
        log.info("joined", run=run.name, state=joined.state, model_version=joined.model_version)

    def trained(self, trained: Trained) -> None:
        self._trained = trained

    async def submitted(self, manifest: RoundManifest, clip_rate: float) -> None:
        """The clip rate goes out before the round ends: the next range depends on it."""
        self._clip_rate = clip_rate
        if self._settings.report != "none":
            request = pb.ReportMetricsRequest(run=manifest.run, round=manifest.round, clip_rate=clip_rate)
            await self._send(request)

    async def problem(self, manifest: RoundManifest, text: str) -> None:
        log.error("problem", round=manifest.round, why=text)
        self.status |= {"problem": text}
        await self._send(pb.ReportMetricsRequest(run=manifest.run, round=manifest.round, problem=text[:500]))

    async def round_over(
        self,
        manifest: RoundManifest,
        update: Update,
        model: ModelState | None,
        trainer: Trainer,
        ledger: Ledger,
        given_up: int,
    ) -> None:
        request = pb.ReportMetricsRequest(
            run=manifest.run, round=manifest.round, model_version=update.model_version, drill=self._settings.drill.attack
        )
        if self._settings.report != "none":
            self._add_counts(request, ledger, given_up)
        if self._settings.report == "all":
            self._add_figures(request, model, trainer, update)
        await self._send(request)
        budget = self._settings.policy.epsilon_budget
        left = None if budget is None or ledger.total is None else budget - ledger.total
        self.status |= {
            "last_round": update.round,
            "outcome": update.outcome.value,
            "model_version": update.model_version,
            "train_loss": self._trained.loss if self._trained is not None else None,
            "epsilon_total": ledger.total,
            "epsilon_left": left,
            "given_up": given_up,
        }
        self.phase(update.round, "between rounds")
        log.info(
            "round",
            round=update.round,
            outcome=update.outcome.value,
            why=update.reason or None,
            loss=round(self._trained.loss, 4) if self._trained is not None else None,
            epsilon=ledger.total,
        )
        self._trained, self._clip_rate = None, None

    def _add_counts(self, request: pb.ReportMetricsRequest, ledger: Ledger, given_up: int) -> None:
        request.given_up = given_up
        if ledger.total is not None:
            request.epsilon_total = ledger.total
        if self._settings.policy.epsilon_budget is not None:
            request.epsilon_budget = self._settings.policy.epsilon_budget
        if self._clip_rate is not None:
            request.clip_rate = self._clip_rate
        if self._trained is not None:
            request.samples = self._trained.samples

    def _add_figures(self, request: pb.ReportMetricsRequest, model: ModelState | None, trainer: Trainer, update: Update) -> None:
        if self._trained is not None:
            request.train_loss, request.train_seconds = self._trained.loss, self._trained.seconds
        due = update.outcome is Outcome.APPLIED and update.round % self._settings.evaluate_every == 0
        if model is not None and due:
            evaluation = trainer.evaluate(model.vector)
            request.loss = evaluation.loss
            if evaluation.accuracy is not None:
                request.accuracy = evaluation.accuracy

    async def _send(self, request: pb.ReportMetricsRequest) -> None:
        """Figures are a courtesy: a server that does not want them must not stop the silo."""
        try:
            await self._connection.report(request)
        except FedrepError as error:
            log.debug("report_refused", why=str(error))
