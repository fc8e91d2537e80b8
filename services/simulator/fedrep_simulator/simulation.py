"""One run from its first round to its last, with a look at the model in between, kept on disk as it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from fedrep.errors import FedrepError
from fedrep.privacy import Ledger
from fedrep.protocol.goals import Totals
from fedrep.protocol.messages import Outcome
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.run_progress import RunProgress
from fedrep.protocol.silo_effects import Trained
from fedrep.protocol.silo_state import SiloState
from fedrep_simulator.clear import ClearPlay
from fedrep_simulator.engines import Engine
from fedrep_simulator.folder import Row, SimulationFolder, Sitting
from fedrep_simulator.playing import Play, PlayedRound, Scene, SecurePlay, Standing
from fedrep_simulator.server import Written
from fedrep_simulator.terms import Terms
from fedrep_trainers.layout import Vector
from fedrep_trainers.trainer import Evaluation
from fedrep_trainers.user_errors import explained

SAVE_SECONDS = 5.0
COLUMNS = (
    *("round", "outcome", "reason", "accuracy", "loss", "train_loss", "coordinates", "survivors", "clip_range", "update_norm"),
    *("bytes_up", "bytes_down", "epsilon", "record_epsilon", "seconds"),
)

OnRound = Callable[[Row, int], None]


@dataclass(frozen=True)
class Outputs:
    """Who hears of a simulation: `on_round` of every row, `written` of everything the service would write."""

    folder: SimulationFolder | None = None
    on_round: OnRound = lambda _row, _rounds: None
    written: Written | None = None


class Simulation:
    """`play` goes on until the run is over, or can go on no longer, which is the `problem`. Rounds that are over are kept."""

    def __init__(self, terms: Terms, engine: Engine, outputs: Outputs = Outputs()) -> None:  # noqa: B008 - frozen
        self.terms = terms
        self._engine = engine
        self._outputs = outputs
        self.layout, self.initial = engine.layout, engine.initial()
        self.scene: Scene = terms.scene(self.layout, self.initial)
        self.sitting = self._resumed() or self._first(self.initial)
        engine.open_books({name: self.sitting.books.get(name, {}) for name in self.scene.run.silos})
        self.traffic = self.sitting.book()
        self.was_over = self.is_over
        self.problem: FedrepError | None = None
        self._saved_at = time.monotonic()

    def _resumed(self) -> Sitting | None:
        folder = self._outputs.folder
        return folder.load(self.scene.run.silos, self.scene.run.parameters) if folder is not None else None

    def _first(self, initial: Vector) -> Sitting:
        progress = RunProgress.first(self.scene.run, ServerModel.initial(initial))
        states = self._engine.states()
        fresh = {name: SiloState.new(initial.size, states[name]) for name in self.scene.run.silos}
        return Sitting(Standing(progress, fresh), (), {})

    def listen(self, written: Written) -> None:
        """Before `play`: be told of everything that the service would write."""
        self._outputs = replace(self._outputs, written=written)

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.sitting.rows

    @property
    def model(self) -> Vector:
        return self.sitting.standing.progress.model.state.vector

    @property
    def is_over(self) -> bool:
        return self.sitting.standing.progress.state.is_over

    @property
    def ended(self) -> str:
        """Why, in words."""
        return str(self.problem) if self.problem is not None else self.sitting.standing.progress.reason

    def play(self) -> None:
        if self.is_over:
            return
        play = self._begin()
        try:
            while not self.is_over:
                self._play_round(play)
        except FedrepError as error:
            self.problem = error
            with suppress(FedrepError):  # it may be what failed
                self._measure_last(self.rows, self.model)
        finally:
            self._save()

    def _begin(self) -> Play:
        written = self._outputs.written or (lambda _: None)
        way = ClearPlay if self.terms.fast else SecurePlay
        return way(self.scene, self.sitting.standing, self._engine, self.traffic, written)

    def _play_round(self, play: Play) -> None:
        started = time.monotonic()
        played = play.play_round()
        row = self._row(played)
        row["epsilon"] = most_spent(play.ledgers)
        rows = (*self.rows, row)
        play.conclude(_totals(rows))
        progress = play.standing.progress
        if progress.state.is_over:
            self._measure_last(rows, progress.model.state.vector)
        up, down = (sum(pair) for pair in zip((0, 0), *self.sitting.traffic.values(), strict=True))
        row["bytes_up"], row["bytes_down"] = play.traffic.total.up - up, play.traffic.total.down - down
        row["seconds"] = round(time.monotonic() - started, 3)
        traffic = {name: (own.up, own.down) for name, own in play.traffic.silos.items()}
        costs = self._engine.costs()
        if costs:
            row["record_epsilon"] = _most(cost.epsilon for cost in costs.values())
        self.sitting = Sitting(play.standing, rows, traffic, {name: cost.ledger for name, cost in costs.items()})
        self._outputs.on_round(row, self.scene.run.rounds)
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        if self._outputs.folder is not None and self.rows:
            self._outputs.folder.save(self.sitting)
        self._saved_at = time.monotonic()

    def _row(self, played: PlayedRound) -> Row:
        closed = played.closed
        losses = [
            result.loss
            for name, result in played.trained.items()
            if isinstance(result, Trained) and name not in self.scene.coalition.members
        ]
        return {
            "round": closed.update.round,
            "outcome": closed.update.outcome.value,
            "reason": closed.update.reason,
            **self._measured(played),
            "train_loss": _finite(fmean(losses)) if losses else None,
            "coordinates": int(closed.result.indices.size),
            "survivors": len(closed.result.survivor_names),
            "clip_range": closed.manifest.clip_range if closed.manifest is not None else None,
            "update_norm": _finite(closed.update_norm),
            "bytes_up": 0,
            "bytes_down": 0,
            "epsilon": None,
            "seconds": 0.0,
        }

    def _measured(self, played: PlayedRound) -> Row:
        number, run = played.closed.update.round, self.terms.run
        due = number % run.evaluation_interval == 0 or number == run.rounds
        if not due or played.closed.update.outcome is not Outcome.APPLIED:
            return {"accuracy": None, "loss": None}
        return measured(self._engine, played.closed.progress.model.state.vector)

    def _measure_last(self, rows: Sequence[Row], model: Vector) -> None:
        """The model that is left is measured, whichever round it came from."""
        applied = [row for row in rows if row["outcome"] == Outcome.APPLIED.value]
        if applied and applied[-1]["accuracy"] is None and applied[-1]["loss"] is None:
            applied[-1].update(measured(self._engine, model))


def measured(engine: Engine, model: Vector) -> Row:
    """None where a model has gone so wrong that nothing can be measured."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return measured_row(engine.evaluate(model))
    except FedrepError:
        return {"accuracy": None, "loss": None}
    except Exception as error:  # user code may raise anything
        raise FedrepError(f"evaluate() of the trainer failed: {explained(error)}") from error


def measured_row(seen: Evaluation) -> Row:
    """The trainer's own figures never take the name of a column that there is."""
    figures = {f"metric_{name}" if name in COLUMNS else name: _finite(value) for name, value in seen.metrics.items()}
    return {**figures, "accuracy": _finite(seen.accuracy), "loss": _finite(seen.loss)}


def most_spent(ledgers: Iterable[Ledger]) -> float | None:
    """What the proposals of the silo that spent most have cost; None once there was no guarantee."""
    return _most(ledger.total for ledger in ledgers)


def _most(epsilons: Iterable[float | None]) -> float | None:
    """None, which is no guarantee, is more than any number."""
    known = list(epsilons)
    return None if any(epsilon is None for epsilon in known) else max((epsilon for epsilon in known if epsilon), default=0.0)


def _totals(rows: tuple[Row, ...]) -> Totals:
    seen = [row["accuracy"] for row in rows if row.get("accuracy") is not None]
    return Totals(len(rows), max(seen, default=None), rows[-1]["epsilon"] if rows else 0.0)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
