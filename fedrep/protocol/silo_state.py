"""All that a silo must remember from one moment to the next, as frozen data. What it decides is in `silo_machine`.

    journal   round number, "revealed" and "renounced" rounds, epsilon ledger, last proposal: it only ever forbids
    memory    the residual and the values whose fate is open, with the trainer's state that belongs to them
    model     the model this silo holds

Each part is replaced whole and never in half, and in this order; a crash between two of them is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.errors import RefusedError
from fedrep.privacy import CoordinateRelease, Ledger
from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.manifests import RoundManifest
from fedrep.protocol.messages import SignedRollback, rollback_message
from fedrep.protocol.model_state import ModelState
from fedrep.protocol.silo_rules import may_state

TrainerState = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Journal:
    """`proposal` is the last I_k with what it was drawn for: (number of the training, k, alpha, coded coordinates as hex).

    `run` is the hash of the manifest this silo has agreed to last, `origin` that of the first before any amendment; `orders` are
    the rollbacks it has followed, each of which moves a model once. `c1` is that of `last_round`, as hex.
    """

    run: str = ""
    last_round: int = 0
    revealed: tuple[int, ...] = ()
    renounced: tuple[int, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    proposal: tuple[int, int, float, str] | None = None
    origin: str = ""
    orders: tuple[str, ...] = ()
    c1: str = ""

    @property
    def ledger_name(self) -> str:
        """A run's ledger goes on under one name, whatever its list of silos becomes."""
        return self.origin or self.run

    def entered(self, round_number: int, c1: bytes) -> Journal:
        """Before the first message of a round, in any role."""
        return self if round_number <= self.last_round else replace(self, last_round=round_number, c1=c1.hex())

    def charged(self, manifest: RoundManifest, training: int, coordinates: NDArray[np.int64]) -> Journal:
        """A new I_k is paid for, with its round, before it is sent."""
        release = CoordinateRelease(manifest.round, manifest.parameters, manifest.per_silo, manifest.alpha)
        coded = encode_coordinates(coordinates, manifest.parameters).hex()
        proposal = (training, manifest.per_silo, manifest.alpha, coded)
        return replace(self.entered(manifest.round, manifest.context()), ledger=self.ledger.charge(release), proposal=proposal)

    @property
    def last_training(self) -> int:
        """The number of the last training that was proposed; the next one gets a higher number, whatever was lost."""
        return self.proposal[0] if self.proposal is not None else 0

    def repeated_proposal(self, manifest: RoundManifest, training: int) -> NDArray[np.int64] | None:
        """The last I_k, if it was drawn from the same g: sending it again releases nothing new."""
        if self.proposal is None or self.proposal[:3] != (training, manifest.per_silo, manifest.alpha):
            return None
        return decode_coordinates(bytes.fromhex(self.proposal[3]), manifest.parameters, manifest.per_silo)

    def revealing(self, round_number: int) -> Journal:
        """Before RevealShares. Whoever renounced a round never gets there: the round counts as spoken in."""
        if round_number in self.renounced:
            raise RefusedError(f"this silo has renounced revealing anything in round {round_number}", reason="RENOUNCED")
        return replace(self, revealed=(*self.revealed, round_number))

    def following(self, order: SignedRollback) -> Journal:
        return self if _name_of(order) in self.orders else replace(self, orders=(*self.orders, _name_of(order)))

    def not_yet_followed(self, order: SignedRollback | None) -> SignedRollback | None:
        """A server may show an old order again."""
        return order if order is not None and _name_of(order) not in self.orders else None

    def may_renounce(self, round_number: int) -> bool:
        return may_state(round_number, last_round=max(self.last_round, round_number), revealed=self.revealed)

    def renouncing(self, round_number: int, c1: bytes) -> Journal:
        """Before the statement is sent; the round counts as spoken in, so nothing else follows in it."""
        if not self.may_renounce(round_number):
            raise RefusedError(f"this silo has revealed in round {round_number}, or may have forgotten it", reason="REVEALED")
        if round_number in self.renounced:
            return self
        entered = self.entered(round_number, c1)
        return replace(entered, renounced=(*entered.renounced, round_number))


def _name_of(order: SignedRollback) -> str:
    """By what was signed: a signature may be written in more than one way."""
    return rollback_message(order.run, order.version, order.model_hash).hex()


@dataclass(frozen=True, slots=True)
class SiloState:
    journal: Journal
    memory: ErrorMemory
    trainer: TrainerState
    model: ModelState | None = None

    @classmethod
    def new(cls, parameters: int, trainer: TrainerState) -> SiloState:
        return cls(Journal(), ErrorMemory(np.zeros(parameters, np.float32)), trainer)
