"""What training on a record costs in privacy: what happened, as frozen data. What it adds up to is an accountant's business.

Neighbours are data sets in which one record is replaced by one of zero gradient; the number of records is public. Every training
that is about to start is charged, on one ledger for all runs over a data set, whether or not its result is ever sent.

None stands for "no guarantee at all", as in `privacy`: it is never a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fedrep.errors import InvalidInputError

COVERS: Final = (
    "everything that leaves this silo, for one training record, whatever server, mates and holders do; "
    "neither whether and when the silo answers, nor its evaluation data, nor the rounding of floating-point noise"
)


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """One training by DP-SGD: `steps` Poisson batches at `rate`, each record clipped to C, Gaussian noise of `noise` times C."""

    noise: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise) and self.noise > 0.0):
            raise InvalidInputError(f"noise = {self.noise} hides nothing; it must be above 0")
        if not 0.0 < self.rate <= 1.0:
            raise InvalidInputError(f"a sampling rate of {self.rate} is no probability; it must lie above 0 and at most at 1")
        if self.steps < 1:
            raise InvalidInputError(f"a training of {self.steps} steps is none; it has at least 1")


@dataclass(frozen=True, slots=True)
class Stated:
    """One training that is (epsilon, delta)-private by its trainer's own word."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0.0):
            raise InvalidInputError(f"epsilon = {self.epsilon} is no statement; it must be 0 or more")
        if not 0.0 <= self.delta < 1.0:
            raise InvalidInputError(f"delta = {self.delta} is no statement; it must lie between 0 and 1")


TrainingPrivacy = SampledGaussian | Stated


@dataclass(frozen=True, slots=True)
class Budget:
    """What the records of a data set may cost at most, over everything that is ever trained on it."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class RecordCharge:
    """How many trainings of one run started with the same statement; None for trainings that stated nothing."""

    run: str
    privacy: TrainingPrivacy | None
    trainings: int


@dataclass(frozen=True, slots=True)
class RecordLedger:
    """All trainings ever started on one data set, in order. `order` is the Renyi order that decides when to stop, chosen once,
    before anything was trained: a later choice could follow what training has shown.
    """

    charges: tuple[RecordCharge, ...] = ()
    order: float | None = None

    def charge(self, run: str, privacy: TrainingPrivacy | None) -> RecordLedger:
        last = self.charges[-1] if self.charges else None
        if last is not None and (last.run, last.privacy) == (run, privacy):
            return replace(self, charges=(*self.charges[:-1], replace(last, trainings=last.trainings + 1)))
        return replace(self, charges=(*self.charges, RecordCharge(run, privacy, 1)))

    @property
    def trainings(self) -> int:
        return sum(charge.trainings for charge in self.charges)

    @property
    def unprotected(self) -> tuple[str, ...]:
        """Runs in which something was trained without a guarantee."""
        return tuple(dict.fromkeys(charge.run for charge in self.charges if charge.privacy is None))

    def last_of(self, run: str) -> TrainingPrivacy | None:
        """What the latest training of this run stated: a run goes on with the noise it began with."""
        return next((charge.privacy for charge in reversed(self.charges) if charge.run == run), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "charges": [
                {"run": charge.run, "trainings": charge.trainings, **_statement(charge.privacy)} for charge in self.charges
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordLedger:
        try:
            charges = tuple(RecordCharge(str(e["run"]), _privacy(e), int(e["trainings"])) for e in data["charges"])
            order = None if data["order"] is None else float(data["order"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this is not a saved ledger of records: {error!r}") from error
        if any(charge.trainings < 1 for charge in charges) or (order is not None and not order > 1.0):
            raise InvalidInputError("this ledger of records is damaged: a charge counts no training, or its order is no order")
        return cls(charges, order)


def _statement(privacy: TrainingPrivacy | None) -> dict[str, float]:
    match privacy:
        case SampledGaussian(noise, rate, steps):
            return {"noise": noise, "rate": rate, "steps": steps}
        case Stated(epsilon, delta):
            return {"epsilon": epsilon, "delta": delta}
        case None:
            return {}


def _privacy(entry: Mapping[str, Any]) -> TrainingPrivacy | None:
    if "noise" in entry:
        return SampledGaussian(float(entry["noise"]), float(entry["rate"]), int(entry["steps"]))
    if "epsilon" in entry:
        return Stated(float(entry["epsilon"]), float(entry["delta"]))
    return None
