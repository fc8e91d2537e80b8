"""What a silo tells: its operator a calm line per round, its status file, and the server as much as `report` allows.

Figures are not masked, so the operator decides: "none" sends no figures, "counts" (the default) epsilon and samples, "all" also
losses and accuracy to three digits, and timings. Nothing says how values lie, and the text of a training error never leaves.
Refused manifests and drills are always reported.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from fedrep.errors import FedrepError
from fedrep.privacy import sum_of
from fedrep.protocol.error_memory import Fate
from fedrep.protocol.manifests import RoundManifest, RunManifest
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_effects import (
    Doing,
    FailedTraining,
    HasJoined,
    HasTrained,
    Joined,
    News,
    Problem,
    Remark,
    RoundOver,
    RunRefused,
    Settled,
    Trained,
)
from fedrep.protocol.silo_state import SiloState
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import REMINDER_SECONDS, Connection
from fedrep_silo.ledgers import LedgerFolder
from fedrep_silo.record_books import RecordBooks, Standing
from fedrep_silo.state import StateFolder, spent_epsilon
from fedrep_silo.status_file import note_server
from fedrep_silo.training import Training, in_thread

log = structlog.get_logger(__name__)

LONGEST_PROBLEM = 500
STATUS_SECONDS = 0.5


class Reports:
    def __init__(
        self,
        settings: SiloSettings,
        connection: Connection,
        state: StateFolder,
        ledgers: LedgerFolder,
        books: RecordBooks,
        name: str,
        training: Training,
    ) -> None:
        self._ledgers = ledgers
        self._books = books
        self._settings = settings
        self._connection = connection
        self._state = state
        self._training = training
        self._trained: Trained | None = None
        self._sent_before = 0
        self._remarked = ("", 0.0)
        self._evaluate_every = 1
        self._sending: asyncio.Task[None] | None = None
        self.rounds_over = 0
        self._showing: asyncio.TimerHandle | None = None
        self.status: dict[str, Any] = {"silo": name, "run": settings.run, "server": settings.server, "phase": "starting"}

    async def tell(self, news: News) -> None:
        """What leaves the machine for people: status file, log, and the server as far as the operator allows."""
        match news:
            case Doing(what, round_number):
                self.phase(round_number, what)
            case Remark(event, why, round_number):
                self._remark(event, why, round_number)
            case HasJoined(run, joined):
                self._joined(run, joined)
            case HasTrained(trained):
                self._trained = trained
            case RunRefused(run, last_round, error):
                await self._refused_run(run, last_round, error)
            case Problem(manifest, error, own):
                await self._problem(manifest, error, own=own)
            case FailedTraining(manifest, text):
                await self._training_failed(manifest, text)
            case Settled(round_number, fate):
                say = log.warning if fate is Fate.GIVEN_UP else log.debug
                say("values_settled", round=round_number, fate=fate.value)
            case RoundOver(manifest, update, state):
                await self._round_over(manifest, update, state)

    def phase(self, round_number: int | None, phase: str) -> None:
        self.status |= {"phase": phase, "at": time.time()}
        if round_number is not None:
            self.status["round"] = round_number
        self._show_status()

    def heard_of_server(self, why: str) -> None:
        note_server(self.status, why)
        self._show_status()

    def _show_status(self) -> None:
        """Several phases of a round pass within a blink: the file follows at most so often, and always in the end."""
        if self._showing is None:
            self._state.save_status(self.status)
            self._showing = asyncio.get_running_loop().call_later(STATUS_SECONDS, self._show_again, dict(self.status))

    def _show_again(self, shown: dict[str, Any]) -> None:
        self._showing = None
        if self.status != shown:
            self._show_status()

    def close(self) -> None:
        """What was said last is in the file when the daemon ends."""
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
            self._state.save_status(self.status)

    def _remark(self, event: str, why: str, round_number: int | None) -> None:
        """A line that comes with every question at most once a minute: a silo that waits asks every second."""
        now = time.monotonic()
        if event == self._remarked[0] and now - self._remarked[1] < REMINDER_SECONDS:
            return
        self._remarked = (event, now) if event in ("waiting_for_run", "server_not_understood") else ("", now)
        known = {"round": round_number} if round_number is not None else {"run": self._settings.run}
        say = log.warning if event == "server_not_understood" else log.info
        say(event, why=why, **known)

    def _joined(self, run: RunManifest, joined: Joined) -> None:
        self._evaluate_every = self._settings.evaluate_every or joined.evaluation_interval
        again = self.status.get("run_hash") == run.digest().hex() and self.status.get("state") == joined.state
        self.status |= {"state": joined.state, "run_hash": run.digest().hex(), "last_round": joined.last_round}
        self.phase(None, "joined")
        if not again:  # a silo between rounds asks every second
            log.info("joined", run=run.name, state=joined.state, model_version=joined.model.version)

    async def _refused_run(self, run: RunManifest, last_round: int, error: FedrepError) -> None:
        """What this silo's policy forbids, the consortium should see."""
        log.error("run_refused", run=run.name, why=str(error))
        self.status |= {"problem": str(error)}
        self.phase(None, "refused")
        await self._send(_problem(run.digest(), last_round, self._told(error)))

    async def _problem(self, manifest: RoundManifest, error: FedrepError, *, own: bool) -> None:
        """`own` is a rule or policy of this silo; what the server said itself it need not hear again."""
        log.error("problem", round=manifest.round, why=str(error))
        self.status |= {"problem": str(error)}
        if own:
            await self._send(_problem(manifest.run, manifest.round, self._told(error)))

    def _told(self, error: FedrepError) -> str:
        """The texts of own rules name limits and what was spent, which are figures too."""
        return str(error) if self._settings.report != "none" else f"refused ({error.reason}); the silo's log says more"

    async def _training_failed(self, manifest: RoundManifest, why: str) -> None:
        """The text of user code's errors may quote data: it stays in the silo's log and status."""
        log.error("training_failed", round=manifest.round, why=why)
        self.status |= {"problem": f"training failed: {why}"}
        await self._send(_problem(manifest.run, manifest.round, "training failed; the silo's log says why"))

    async def _round_over(self, manifest: RoundManifest, update: Update, state: SiloState) -> None:
        ledger = state.journal.ledger
        spent = sum_of(ledger.total, self._ledgers.elsewhere(state.journal.ledger_name))
        told = self._books.standing_as_told()
        records = told if told is not None else await asyncio.to_thread(self._books.standing)
        request = pb.ReportMetricsRequest(
            run=manifest.run, round=manifest.round, model_version=update.model.version, drill=self._settings.drill.attack
        )
        if self._settings.report != "none":
            self._add_counts(request, spent)
            _add_records(request, records)
        if self._settings.report == "all":
            await self._add_figures(request, state.model, update)
        if self._settings.report != "none" or self._settings.drill.attack:
            await self._send(request)
        budget = self._settings.policy.epsilon_budget
        loss = self._trained.loss if self._trained is not None else None
        sent, self._sent_before = self._connection.sent - self._sent_before, self._connection.sent
        self.status |= {
            "last_round": update.round,
            "outcome": update.outcome.value,
            "reason": update.reason,
            "model_version": update.model.version,
            "train_loss": loss,
            "bytes_sent": sent,
            "epsilon_total": spent_epsilon(ledger),
            "epsilon_data_set": "none" if spent is None else spent,
            "epsilon_left": None if budget is None or spent is None else budget - spent,
            "fate_open": state.memory.pending is not None,
            **records.figures(),
            "given_up": state.memory.given_up,
            "clipped_mass": state.memory.clipped_mass,
        }
        self.rounds_over += 1
        self.phase(update.round, "between rounds")
        log.info(
            "round",
            round=update.round,
            outcome=update.outcome.value,
            why=update.reason or None,
            loss=round(loss, 4) if loss is not None else None,
            bytes_sent=sent,
            epsilon=self.status["epsilon_total"],
            record_epsilon=self.status["record_epsilon"],
        )
        self._trained = None

    def _add_counts(self, request: pb.ReportMetricsRequest, spent: float | None) -> None:
        """Nothing about values: what depends on them is an answer to whoever chose the model they come from.

        "None" is said: the server knows of this run alone, and would show what was spent in it as the whole.
        """
        if spent is None:
            request.epsilon_none = True
        else:
            request.epsilon_total = spent
        if self._settings.policy.epsilon_budget is not None:
            request.epsilon_budget = self._settings.policy.epsilon_budget
        if self._settings.privacy is None and self._trained is not None:
            request.samples = self._trained.samples  # how many were drawn is an answer about records

    async def _add_figures(self, request: pb.ReportMetricsRequest, model: ModelState | None, update: Update) -> None:
        if self._trained is not None:
            request.train_loss, request.train_seconds = _coarse(self._trained.loss), self._trained.seconds
        due = update.outcome is Outcome.APPLIED and update.round % self._evaluate_every == 0
        if model is None or not due or self._training.busy:
            return
        try:
            evaluation = await in_thread(lambda: self._training.trainer.evaluate(model.vector), self._training.trainer)
        except Exception as error:  # user code may raise anything; a figure less is no reason to stop
            log.error("evaluation_failed", round=update.round, why=f"{type(error).__name__}: {error}")
            return
        request.loss = _coarse(evaluation.loss)
        if evaluation.accuracy is not None:
            request.accuracy = _coarse(evaluation.accuracy)

    async def _send(self, request: pb.ReportMetricsRequest) -> None:
        """The round goes on meanwhile; only the next figures wait for these, so that none overtakes another."""
        await self.settle()
        self._sending = asyncio.create_task(self._deliver(request))

    async def _deliver(self, request: pb.ReportMetricsRequest) -> None:
        """Figures are a courtesy: a server that does not want them must not stop the silo."""
        try:
            await self._connection.report(request)
        except FedrepError as error:
            log.debug("report_refused", why=str(error))
        except Exception as error:  # a full disk, for one: without its line in the audit it stays here
            log.warning("report_not_sent", why=f"{type(error).__name__}: {error}")

    async def settle(self) -> None:
        """Until what was reported has arrived, or the server is out of reach for good."""
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    def abandon(self) -> None:
        if self._sending is not None:
            self._sending.cancel()


def _add_records(request: pb.ReportMetricsRequest, standing: Standing) -> None:
    """What training has cost this data set's records; "none" is said, since silence means that the operator reports nothing.

    Without a budget it is none too, though a trainer may state what it costs: `[privacy]` alone keeps other figures back.
    """
    if standing.epsilon is None or standing.budget is None:
        request.record_none = True
        return
    request.record_epsilon, request.record_delta = standing.epsilon, standing.delta
    request.record_budget = standing.budget


def _coarse(figure: float) -> float:
    """Three digits: on a model that the server chose, every further digit answers a question about the data."""
    return float(f"{figure:.3g}")


def _problem(run: bytes, round_number: int, text: str) -> pb.ReportMetricsRequest:
    return pb.ReportMetricsRequest(run=run, round=round_number, problem=text[:LONGEST_PROBLEM])
