"""One cell, played: train, let the method combine, apply, and look at the model from time to time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrep.aggregators import AggregatorWarning
from fedrep.errors import FedrepError, NonFiniteError, SettingsError
from fedrep_lab.adversary import Adversary
from fedrep_lab.cell import Cell
from fedrep_lab.checkpoints import Checkpoints
from fedrep_lab.methods import METHODS
from fedrep_lab.methods.interface import ATTACK, ChoosesAhead, Matrix, Setting, Step, squares
from fedrep_lab.shards import Vector, load_dataset, rounds_of
from fedrep_lab.silos import Silos, build_silos

Progress = Callable[[int, int], None]


def play(
    cell: Cell,
    data_dir: Path | None,
    progress: Progress | None = None,
    device: str = "cpu",
    checkpoints: Checkpoints | None = None,
) -> dict[str, Any]:
    """The history of the training and what it comes to, ready for JSON."""
    if cell.method not in METHODS:
        raise SettingsError(f"There is no method {cell.method!r}; choose from {', '.join(METHODS)}.")
    cell.take_settings(METHODS[cell.method].takes, f"The method {cell.method}")
    started, busy = time.perf_counter(), time.process_time()
    silos = build_silos(cell, data_dir, device)
    dataset = load_dataset(cell.dataset, data_dir, cell.judged_on)
    training = Training(replace(cell, rounds=rounds_of(cell, dataset), epochs=0), silos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AggregatorWarning)  # counted below, round by round
        training.run(progress, checkpoints)
    per_epoch = len(dataset.train) / (cell.m * cell.batch_size * cell.interval)
    for point in training.history:
        point["epoch"] = round(point["round"] / per_epoch, 4)
    return {
        "parameters": silos.parameters,
        "metrics": training.metrics(),
        "history": training.history,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - busy, 2),
    }


class Training:
    def __init__(self, cell: Cell, silos: Silos) -> None:
        self._cell = cell
        self._silos = silos
        rng = np.random.default_rng([cell.seed, ATTACK])
        setting = Setting(cell, silos.parameters, silos.samples, Adversary(cell, rng))
        self.method = METHODS[cell.method](setting)
        self.model: Vector = silos.initial()
        self.history: list[dict[str, Any]] = []
        self.consensus: list[Any] = []
        self.diverged = False
        self._sums: dict[str, float] = {}
        self._least_kept = 1.0
        self._rounds = 0
        self._lengths = 0.0
        self._unsent: Matrix | None = None

    def run(self, progress: Progress | None = None, checkpoints: Checkpoints | None = None) -> None:
        rounds = self._cell.rounds
        due = {round(rounds * (n + 1) / self._cell.evaluations) for n in range(self._cell.evaluations)} | {rounds}
        done = checkpoints.restore(self) if checkpoints is not None else 0
        if not done:
            self._look(0)
        for number in range(done + 1, rounds + 1):
            if not self.advance(number):
                break
            if number in due:
                self._look(number)
            if progress is not None:
                progress(number, rounds)
            if checkpoints is not None and checkpoints.due():
                checkpoints.save(self, number)

    def state(self) -> dict[str, Any]:
        """All that the next round depends on; what the silos keep is theirs to say."""
        own = {name: value for name, value in vars(self).items() if name not in ("_cell", "_silos")}
        return {**own, "silos": self._silos.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._silos.load_state(state["silos"])
        vars(self).update({name: value for name, value in state.items() if name != "silos"})

    def advance(self, number: int) -> bool:
        """One round; False if training has left the finite numbers, which ends it."""
        try:
            updates = self._trained(number) if self._unsent is None else self._unsent
            lengths = squares(updates)  # one entry that is not finite makes its row's so too
            if not np.isfinite(lengths).all() and not np.isfinite(updates).all():
                raise NonFiniteError("a silo's update is not finite")
            self._lengths += float(np.sqrt(lengths[0]))
            step = self.method.step(updates, number)
            self._unsent = updates if step.skipped else None  # the same values again: nobody trains
            with np.errstate(over="ignore", invalid="ignore"):
                model = self._applied(step)
            if not np.isfinite(model).all():
                raise NonFiniteError("the model is not finite")
        except NonFiniteError:
            self.diverged = True
            return False
        self.model = model
        self._count(step)
        return True

    def _trained(self, number: int) -> Matrix:
        ahead = self.method.ahead(number, self.model) if isinstance(self.method, ChoosesAhead) else None
        return self._silos.updates(self.model, number, ahead)

    def metrics(self) -> dict[str, Any]:
        rounds = max(1, self._rounds)
        accuracies = [point["accuracy"] for point in self.history]
        means = {name: total / rounds for name, total in self._sums.items()}
        return {
            "best_accuracy": max(accuracies),
            "final_accuracy": accuracies[-1],
            "final_loss": self.history[-1]["loss"],
            "diverged": self.diverged,
            "rounds_played": self._rounds,
            "least_kept": self._least_kept,
            **means,
            **{f"peak_{name}": max(point[name] for point in self.history) for name in ("residual", "largest_residual")},
        }

    def _applied(self, step: Step) -> Vector:
        if step.indices is None:
            return self.model - step.values
        model = self.model.copy()
        model[step.indices] -= step.values
        return model

    def _count(self, step: Step) -> None:
        d = self._silos.parameters
        self._rounds += 1
        self._least_kept = min(self._least_kept, step.kept)
        inactive = float(any("had no effect" in note for note in step.notes))
        counted = {
            "gamma": step.transmitted / d,
            "gamma_down": step.received / d,
            "kept": step.kept,
            "rule_inactive": inactive,
            **step.measures,
        }
        for name, value in counted.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def _residual(self) -> dict[str, float]:
        """The error memory at the end, in units of a typical update: lengths, and the largest entry."""
        memory: Matrix | None = getattr(self.method, "memory", None)
        typical = self._lengths / max(1, self._rounds)
        if memory is None or typical <= 0.0:
            return {"residual": 0.0, "largest_residual": 0.0}
        honest = memory[: self._cell.honest]
        lengths = np.linalg.norm(honest.astype(np.float64), axis=1)
        return {"residual": float(lengths.mean() / typical), "largest_residual": float(np.abs(honest).max() / typical)}

    def _look(self, number: int) -> None:
        try:
            seen = self._silos.evaluate(self.model)
            accuracy, loss = float(seen.accuracy or 0.0), float(seen.loss)
        except FedrepError:
            accuracy, loss = 0.0, float("inf")
        point: dict[str, Any] = {"round": number, "accuracy": accuracy, "loss": loss if np.isfinite(loss) else None}
        point.update({name: round(value, 6) for name, value in self._residual().items()})
        self.history.append(point)
