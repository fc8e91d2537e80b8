"""The evaluator: holds test data, contributes nothing, follows the model, reports accuracy and loss, keeps the best model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog
from safetensors.numpy import save

from fedrep.coding import decode_coordinates
from fedrep.errors import FedrepError, ProtocolError, RefusedError
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState
from fedrep.wire.v1 import federation_pb2 as pb
from services.client.audit import Audit
from services.client.config import ClientSettings
from services.client.connection import Connection, Joined
from services.client.daemon import OVER, POLL_SECONDS
from services.client.peers import check_run_signature
from services.client.trainer import ModelExporter, Trainer
from services.identity.certificates import Credentials, TrustStore
from services.runtime.files import write_atomically

log = structlog.get_logger(__name__)


class Evaluator:
    def __init__(self, settings: ClientSettings, trust: TrustStore, trainer: Trainer) -> None:
        settings.state.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._trust = trust
        self._trainer = trainer
        self.connection = Connection(
            settings.server,
            lambda: Credentials.load(settings.credentials),
            Audit(settings.state / "audit.jsonl"),
            server_name=settings.server_name,
            patience=settings.give_up_after,
        )
        self._model: ModelState | None = None
        self._best = -1.0
        self._evaluated: int | None = None

    async def run(self) -> None:
        while True:
            joined = await self.connection.join(self._settings.run, b"", b"", self._model.version if self._model else None)
            run = check_run_signature(joined.run, self._trust).digest()
            await self._catch_up(run, joined)
            if joined.state in OVER:
                return
            if joined.round is None:
                await asyncio.sleep(POLL_SECONDS)
                continue
            await self._follow_rounds(run, joined.round.manifest.round)

    async def leave(self) -> None:
        await self.connection.close()

    async def _follow_rounds(self, run: bytes, round_number: int) -> None:
        """Round after round, as long as each update names the next one."""
        while True:
            try:
                concluded = await self.connection.update(run, round_number)
            except (RefusedError, ProtocolError) as error:
                log.debug("update_refused", round=round_number, why=str(error))
                return
            await self._take(run, concluded.update)
            if concluded.next_round is None or concluded.state in OVER:
                return
            round_number = concluded.next_round.manifest.round

    async def _take(self, run: bytes, update: Update) -> None:
        model = self._model
        if update.outcome is not Outcome.APPLIED:
            return
        if model is None or model.version + 1 != update.model_version:
            await self._fetch(run, update.model_version)
        else:
            self._model = model.follow(update, decode_coordinates(update.coordinates, model.vector.size))
        if update.round % self._settings.evaluate_every == 0:
            await self._evaluate(run, update.round)

    async def _catch_up(self, run: bytes, joined: Joined) -> None:
        if self._model is None or self._model.version != joined.model_version:
            await self._fetch(run, joined.model_version)
            await self._evaluate(run, joined.last_round)

    async def _fetch(self, run: bytes, version: int) -> None:
        header, vector = await self.connection.model(run, version)
        self._model = replace(ModelState.initial(vector), version=header.version, chain=header.chain)

    async def _evaluate(self, run: bytes, round_number: int) -> None:
        assert self._model is not None
        if self._evaluated == self._model.version:
            return
        self._evaluated = self._model.version
        result = await asyncio.to_thread(self._trainer.evaluate, self._model.vector)
        log.info("evaluated", round=round_number, accuracy=result.accuracy, loss=round(result.loss, 4))
        request = pb.ReportMetricsRequest(
            run=run,
            round=round_number,
            model_version=self._model.version,
            loss=result.loss,
            accuracy=result.accuracy,
            samples=result.samples,
        )
        await self.connection.report(request)
        if result.accuracy is not None and result.accuracy > self._best:
            self._best = result.accuracy
            self._keep_best()

    def _keep_best(self) -> None:
        """With batch-norm statistics where the trainer can give them; a model it cannot export is kept as plain parameters."""
        assert self._model is not None
        tensors = None
        if isinstance(self._trainer, ModelExporter):
            try:
                tensors = self._trainer.export(self._model.vector)
            except FedrepError as error:
                log.warning("model_not_exported", why=str(error))
        metadata = {"fedrep.version": str(self._model.version), "fedrep.accuracy": f"{self._best:.6f}"}
        data = save(tensors if tensors is not None else {"model": self._model.vector}, metadata)
        write_atomically(self._settings.state / "best.safetensors", data, 0o644)
