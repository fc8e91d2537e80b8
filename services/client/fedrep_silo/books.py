"""What the silo has on disk, and the only ways in which it changes: each method writes first, then believes it.

The trainer's state on disk is the one that belongs to the residual on disk. A local update that was not submitted lives in
memory only, together with the trainer's state after it; a restarted silo trains it again from the state before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.errors import InvalidInputError, RefusedError, SettingsError
from fedrep.privacy import CoordinateRelease
from fedrep.protocol.error_memory import ErrorMemory, Fate, Pending
from fedrep.protocol.manifests import RoundManifest
from fedrep.protocol.messages import Outcome, Update
from fedrep.protocol.model_state import ModelState, indices_of
from fedrep.protocol.silo_rules import may_state
from fedrep_silo.state import Journal, StateFolder
from fedrep_silo.training import Trained
from fedrep_trainers.trainer import Trainer, TrainerState

log = structlog.get_logger(__name__)


class Books:
    def __init__(self, folder: StateFolder, trainer: Trainer) -> None:
        self.folder = folder
        self.journal: Journal = folder.journal()
        self.model: ModelState | None = folder.model()
        self.memory, kept = folder.memory(trainer.layout.size)
        if kept:
            _give_back(trainer, kept, folder)
        self.trainer_state: TrainerState = trainer.state()
        self._after_training: TrainerState | None = None

    def belongs_to(self, run: str) -> bool:
        """Whether this folder is free or already the run's; from now on it is."""
        if self.journal.run not in ("", run):
            return False
        if self.journal.run != run:
            self._write(replace(self.journal, run=run))
        return True

    def enter(self, round_number: int) -> None:
        """Before the first message of a round, in any role."""
        self._write(self.journal.entered(round_number))

    def repeated_proposal(self, manifest: RoundManifest, model: ModelState) -> NDArray[np.int64] | None:
        """The last I_k, if nothing changed that it depends on: sending it again releases nothing new."""
        last = self.journal.proposal
        if last is None or tuple(last[:3]) != (model.version, manifest.per_silo, manifest.alpha):
            return None
        return decode_coordinates(bytes.fromhex(last[3]), manifest.parameters, manifest.per_silo)

    def charge(self, manifest: RoundManifest, model: ModelState, coordinates: NDArray[np.int64]) -> None:
        """A new I_k is paid for, and on disk with its round, before it is sent."""
        release = CoordinateRelease(manifest.round, manifest.parameters, manifest.per_silo, manifest.alpha)
        coded = encode_coordinates(coordinates, manifest.parameters).hex()
        proposal = (model.version, manifest.per_silo, manifest.alpha, coded)
        self._write(replace(self.journal.entered(manifest.round).charged(release), proposal=proposal))

    def trained(self, trained: Trained) -> None:
        """In memory only; see above."""
        self.memory = self.memory.trained(trained.version, trained.update)
        self._after_training = trained.state

    def submit(self, pending: Pending) -> None:
        """u and pending, and the trainer's state that goes with them, in one write."""
        if self._after_training is not None and self.memory.update is not None:
            self.trainer_state = self._after_training
        self._after_training = None
        self._remember(self.memory.submitted(pending))

    def settle(self, update: Update) -> Fate | None:
        memory, fate = self.memory.settle(update)
        if fate is not None and fate is not Fate.UNDECIDED:
            self._remember(memory)
            say = log.warning if fate is Fate.GIVEN_UP else log.debug
            say("values_settled", round=update.round, fate=fate.value)
        return fate

    def give_up(self, round_number: int) -> None:
        self._remember(self.memory.give_up(round_number))
        log.warning("values_given_up", round=round_number)

    def reveal(self, round_number: int) -> None:
        """Before RevealShares. A silo that renounced never gets here: the round is in its journal already."""
        if round_number in self.journal.renounced:
            raise RefusedError(f"this silo has renounced revealing anything in round {round_number}", reason="RENOUNCED")
        self._write(replace(self.journal, revealed=(*self.journal.revealed, round_number)))

    def may_renounce(self, round_number: int) -> bool:
        entered = self.journal.entered(round_number)
        return may_state(round_number, last_round=entered.last_round, revealed=entered.revealed)

    def renounce(self, round_number: int) -> None:
        """Before the statement is sent; the round counts as spoken in, so nothing else follows in it."""
        if not self.may_renounce(round_number):
            raise RefusedError(f"this silo has revealed in round {round_number}, or may have forgotten it", reason="REVEALED")
        if round_number not in self.journal.renounced:
            entered = self.journal.entered(round_number)
            self._write(replace(entered, renounced=(*entered.renounced, round_number)))

    def keep_model(self, model: ModelState) -> None:
        self.folder.save_model(model)
        self.model = model

    def follow(self, update: Update, known: NDArray[np.int64] | None) -> None:
        """The next model from the update if this silo holds the one before; else it is fetched when needed."""
        model = self.model
        if update.outcome is not Outcome.APPLIED or model is None or model.version + 1 != update.model.version:
            return
        try:
            following = model.follow(update, known if known is not None else indices_of(update, model.vector.size))
        except (RefusedError, InvalidInputError) as error:
            log.warning("model_fetched_again", why=str(error))
            self.model = None
            return
        self.keep_model(following)

    def state_to_train_from(self) -> TrainerState | None:
        """What the trainer must be put back to: its last training, if any, was never submitted."""
        return self.trainer_state if self._after_training is not None else None

    def _remember(self, memory: ErrorMemory) -> None:
        self.folder.save_memory(memory, self.trainer_state)
        self.memory = memory

    def _write(self, journal: Journal) -> None:
        self.folder.save_journal(journal)
        self.journal = journal


def _give_back(trainer: Trainer, kept: TrainerState, folder: StateFolder) -> None:
    try:
        trainer.load_state(kept)
    except Exception as error:  # user code may raise anything
        raise SettingsError(
            f"the trainer does not take back its state from {folder.folder} ({type(error).__name__}: {error}). If model or "
            "optimizer were changed on purpose, start with an empty state folder: fedrep client leave --purge"
        ) from error
