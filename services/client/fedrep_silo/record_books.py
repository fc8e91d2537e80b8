"""What training on this silo's records has cost, over all runs: one file per data set, charged before a training starts.

Several daemons may train on the same data for different runs, so reading, deciding and writing happen under one lock. The file is
never purged with a run. Without `[privacy]` trainings are counted all the same: a later budget must know of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrep.errors import InvalidInputError, RefusedError, SettingsError
from fedrep.protocol.manifests import RecordPromise
from fedrep.record_privacy import Budget, RecordLedger, TrainingPrivacy
from fedrep_runtime.files import taking_turns, write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_trainers.settings import PrivacySettings
from fedrep_trainers.trainer import Allowance, PrivateTrainer, Trainer

# Where a trainer states its privacy and no budget names a delta.
USUAL_DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class Standing:
    """`epsilon` is None where no guarantee exists: something was trained that stated nothing."""

    epsilon: float | None
    delta: float
    budget: float | None
    trainings: int

    def figures(self) -> dict[str, Any]:
        """For people and programs alike; "none" is no number."""
        if self.epsilon is None:
            return {"record_epsilon": "none"}
        return {
            "record_epsilon": self.epsilon,
            "record_delta": self.delta,
            "record_budget": self.budget,
            "record_trainings": self.trainings,
        }


class RecordBooks:
    def __init__(self, folder: Path, settings: PrivacySettings | None) -> None:
        self._path = folder / "records.json"
        self._turns = folder / ".records.lock"
        self._settings = settings
        self._read: tuple[tuple[int, int, int], RecordLedger] | None = None
        self._told: tuple[RecordLedger, Standing] | None = None
        self._trainings = 0  # that this process has seen in the books

    @property
    def budget(self) -> Budget | None:
        return self._settings.budget if self._settings is not None else None

    @property
    def promise(self) -> RecordPromise | None:
        """What this silo can promise in a run that asks for it: what its books hold it to."""
        return RecordPromise(self.budget.epsilon, self.budget.delta) if self.budget is not None else None

    def check(self, trainer: Trainer) -> None:
        """Before anything is trained: a budget needs a trainer that says what it costs, and books that are whole."""
        if self.budget is None:
            return
        if not isinstance(trainer, PrivateTrainer):
            raise SettingsError(
                f"[privacy] asks for a trainer that states what its training costs, and {type(trainer).__name__} does not. Use "
                "TorchTrainer, give your trainer a method `privacy` (docs/trainer.md), or remove [privacy]"
            )
        self._refuse_unprotected(self.ledger())

    def require_trainings(self) -> None:
        """For a silo that has trained: books without a training were lost, or lie in a folder that is not there now."""
        if self.budget is not None and not self.ledger().trainings:
            raise self._lost("This silo has trained", "no training")

    def _lost(self, before: str, now: str) -> SettingsError:
        return SettingsError(
            f"{before}, and {self._path} knows of {now}, so the budget of [privacy] would start anew. Is the folder `ledger` the "
            "right one, and is its disk there? If the file is lost, restore it from a backup",
            reason="BOOKS_LOST",
        )

    def ledger(self) -> RecordLedger:
        ledger = self._as_it_is()
        if ledger.trainings < self._trainings:
            raise self._lost(f"This silo has seen {self._trainings} trainings in its books", f"{ledger.trainings}")
        self._trainings = ledger.trainings
        return ledger

    def replace(self, ledger: Mapping[str, Any]) -> None:
        """For simulations, whose books are as old as what is played again; those of a data set only grow."""
        self._trainings = 0
        self._path.unlink(missing_ok=True)
        if ledger:
            write_atomically(self._path, json.dumps(ledger).encode())

    def _as_it_is(self) -> RecordLedger:
        mark = self._mark()
        if mark is None:
            return RecordLedger()
        if self._read is not None and self._read[0] == mark:
            return self._read[1]
        try:
            ledger = RecordLedger.from_dict(parsed(self._path.read_bytes()))
        except (OSError, ValueError, InvalidInputError) as error:
            raise SettingsError(
                f"{self._path} cannot be read ({error}). It holds what training on this data set has cost: restore it from a "
                "backup; without it the budget would start anew"
            ) from error
        self._read = (mark, ledger)
        return ledger

    def _mark(self) -> tuple[int, int, int] | None:
        """Of the file as it is now: every charge replaces it. None while there is none."""
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return None
        return now.st_ino, now.st_mtime_ns, now.st_size

    def charge(self, run: str, trainer: Trainer, trainings: int) -> TrainingPrivacy | None:
        """Durable when this returns; whatever becomes of the training, it is paid for. Refused if the budget would not hold."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with taking_turns(self._turns):
            ledger = self.ledger()
            privacy = self.statement(ledger, run, trainer, trainings)
            if self.budget is not None:
                ledger = self._within_budget(ledger, run, privacy, self.budget)
            elif privacy is None and run in ledger.unprotected:
                return None  # without any guarantee once or a thousand times is the same
            write_atomically(self._path, json.dumps(ledger.charge(run, privacy).to_dict()).encode())
        return privacy

    def statement(self, ledger: RecordLedger, run: str, trainer: Trainer, trainings: int) -> TrainingPrivacy | None:
        """What the next training would cost; nothing is charged."""
        if not isinstance(trainer, PrivateTrainer):
            return None
        if self.budget is None:
            return trainer.privacy(None)
        self._refuse_unprotected(ledger)
        try:
            return trainer.privacy(Allowance(self.budget, ledger, run, trainings))
        except InvalidInputError as error:  # no noise makes another training fit
            raise RefusedError(str(error), reason="RECORD_BUDGET") from error

    def standing(self) -> Standing:
        ledger = self.ledger()
        if self._told is None or self._told[0] is not ledger:
            self._told = (ledger, self._standing(ledger))
        return self._told[1]

    def standing_as_told(self) -> Standing | None:
        """`standing`, if it has been worked out since the last charge: without waiting."""
        known, told = self._read, self._told
        return told[1] if known is not None and told is not None and told[0] is known[1] and known[0] == self._mark() else None

    def _standing(self, ledger: RecordLedger) -> Standing:
        budget = self.budget
        delta = budget.delta if budget is not None else USUAL_DELTA
        limit = budget.epsilon if budget is not None else None
        if ledger.unprotected or not ledger.charges:
            return Standing(None if ledger.unprotected else 0.0, delta, limit, ledger.trainings)
        from fedrep_trainers.record_accountant import spent  # takes a second to import: only for silos that state something

        return Standing(spent(ledger, delta), delta, limit, ledger.trainings)

    def _within_budget(self, ledger: RecordLedger, run: str, privacy: TrainingPrivacy | None, budget: Budget) -> RecordLedger:
        from fedrep_trainers.record_accountant import allows, opened

        ledger = opened(ledger, privacy, budget)
        if privacy is None or not allows(ledger, run, privacy, budget):
            raise RefusedError(
                f"after {ledger.trainings} trainings on this data set no further one fits its record budget of epsilon = "
                f"{budget.epsilon:g} at delta = {budget.delta:g}, so this silo trains no more. Its operator alone decides about "
                "`epsilon` in [privacy]",
                reason="RECORD_BUDGET",
            )
        return ledger

    def _refuse_unprotected(self, ledger: RecordLedger) -> None:
        if ledger.unprotected:
            raise RefusedError(
                "the books of this data set (records.json in `ledger`) count trainings that stated no privacy, so no epsilon "
                "covers it any more. Remove [privacy], or name another folder as `ledger`, whose figure then covers what is "
                "trained from there on, and nothing before",
                reason="RECORD_BUDGET",
            )
