"""A silo's trainer with its books: what its records have cost, in a folder of the simulation's own and no data set's ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrep.protocol.silo_effects import Train, Trained, TrainingFailed, TrainingRefused
from fedrep_silo.audit import Audit
from fedrep_silo.record_books import RecordBooks
from fedrep_silo.training import Training
from fedrep_trainers.settings import PrivacySettings
from fedrep_trainers.trainer import Trainer

Result = Trained | TrainingFailed | TrainingRefused


@dataclass(frozen=True)
class RecordCost:
    """`epsilon` is what the silo's records have cost so far; `ledger` is how that came together, as JSON."""

    epsilon: float | None
    delta: float
    ledger: Mapping[str, Any]


class Desk:
    def __init__(self, trainer: Trainer, folder: Path, privacy: PrivacySettings | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._books = RecordBooks(folder, privacy)
        self._books.check(trainer)
        self.layout = trainer.layout
        self.first_state = trainer.state()
        self._training = Training(trainer, self.first_state, self._books, Audit(folder / "audit.jsonl"))

    async def carry_out(self, order: Train) -> Result:
        return await self._training.carry_out(order)

    def open_books(self, ledger: Mapping[str, Any]) -> None:
        """As they were when the simulation was interrupted; an empty ledger begins anew."""
        self._books.replace(ledger)

    def cost(self) -> RecordCost:
        standing = self._books.standing()
        return RecordCost(standing.epsilon, standing.delta, self._books.ledger().to_dict())
