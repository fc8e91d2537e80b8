"""What the trainings of a `RecordLedger` add up to, and how much noise a budget asks for: dp-accounting does the sums.

DP-SGD steps are composed in Renyi differential privacy. One order, fixed in the ledger before anything was trained, decides
whether another training fits the budget: that is a privacy filter, valid also when settings change from run to run after looking
at results (Feldman and Zrnic, NeurIPS 2021, theorem 3.1; choosing the best order afterwards would not be). While all trainings
are alike, what has been spent may be shown at the best order. Statements (epsilon, delta) of other trainers add up as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.record_privacy import Budget, RecordLedger, SampledGaussian, Stated, TrainingPrivacy

# Whole orders only: the library's series for others does not converge everywhere.
ORDERS: tuple[float, ...] = (*map(float, range(2, 65)), 80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0)
MOST_NOISE = 1e6
MOST_TIGHT = (
    100.0  # the loss distribution's memory grows with epsilon, and beyond this one no guarantee is left to be told closely
)


def spent(ledger: RecordLedger, delta: float) -> float | None:
    """Epsilon of everything charged so far. None: no guarantee, or none at this delta."""
    if ledger.unprotected:
        return None
    steps = _sampled(ledger)
    epsilon, rest = _stated(ledger, delta)
    if not steps:
        return epsilon if rest >= 0.0 else None
    if rest <= 0.0:
        return None
    alike = len(steps) == 1
    orders = ORDERS if alike or ledger.order is None else (ledger.order,)
    return epsilon + _epsilon(orders, steps, rest)


def tight(ledger: RecordLedger, delta: float) -> float | None:
    """The same from the privacy loss distribution: closer, and a statement only while all trainings are alike, else None.

    None too where that distribution is too large to be worked out, or too coarse for so small a delta.
    """
    steps, loose = _sampled(ledger), spent(ledger, delta)
    if len(steps) != 1 or not all(isinstance(charge.privacy, SampledGaussian) for charge in ledger.charges):
        return None
    if loose is None or loose > MOST_TIGHT:
        return None
    (noise, rate), count = next(iter(steps.items()))
    accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), count)
    epsilon = float(accountant.get_epsilon(delta))
    return epsilon if math.isfinite(epsilon) else None


def allows(ledger: RecordLedger, run: str, privacy: TrainingPrivacy | None, budget: Budget) -> bool:
    """Whether the budget still holds once another such training is charged."""
    after = ledger.charge(run, privacy)
    if after.unprotected:
        return False
    steps = _sampled(after)
    epsilon, rest = _stated(after, budget.delta)
    if not steps:
        return rest >= 0.0 and epsilon <= budget.epsilon
    if after.order is None:
        raise InvalidInputError("this ledger has no Renyi order yet; `opened` fixes it before the first training")
    return rest > 0.0 and epsilon + _epsilon((after.order,), steps, rest) <= budget.epsilon


def opened(ledger: RecordLedger, privacy: TrainingPrivacy | None, budget: Budget) -> RecordLedger:
    """With its order fixed, if this is the first training by DP-SGD: the order under which most such trainings fit the budget."""
    if ledger.order is not None or not isinstance(privacy, SampledGaussian):
        return ledger
    epsilon, rest = _stated(ledger, budget.delta)
    fits = [_fitting(order, privacy, budget.epsilon - epsilon, rest) for order in ORDERS] if rest > 0.0 else [0]
    return replace(ledger, order=ORDERS[int(np.argmax(fits))])


def fitting(ledger: RecordLedger, run: str, privacy: TrainingPrivacy | None, budget: Budget) -> int:
    """How many more trainings like this one the budget allows."""
    ledger = opened(ledger, privacy, budget)
    if privacy is None or not allows(ledger, run, privacy, budget):
        return 0
    low, high = 1, 2
    while high < 10**9 and _allows_many(ledger, run, privacy, budget, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _allows_many(ledger, run, privacy, budget, middle) else (low, middle)
    return low


def noise_for(budget: Budget, rate: float, steps: int, trainings: int, ledger: RecordLedger | None = None) -> float:
    """The least noise (rounded up to four digits) with which `trainings` more trainings fit the budget after what is charged."""
    ledger = ledger if ledger is not None else RecordLedger()
    epsilon, rest = _stated(ledger, budget.delta)
    if ledger.unprotected or rest <= 0.0 or epsilon >= budget.epsilon:
        raise InvalidInputError("nothing of the record budget is left: no amount of noise makes another training fit it")
    taken = _sampled(ledger)
    orders = ORDERS if ledger.order is None else (ledger.order,)

    def fits(noise: float) -> bool:
        counts = dict(taken)
        counts[(noise, rate)] = counts.get((noise, rate), 0) + steps * trainings
        return _epsilon(orders, counts, rest) <= budget.epsilon - epsilon

    low, high = 1e-2, 1.0
    while not fits(high):
        low, high = high, 2.0 * high
        if high > MOST_NOISE:
            raise InvalidInputError(
                f"no noise below {MOST_NOISE:g} lets {trainings} more trainings fit what is left of epsilon = {budget.epsilon:g}"
            )
    while high / low > 1.00005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return _rounded_up(high)


def _allows_many(ledger: RecordLedger, run: str, privacy: TrainingPrivacy, budget: Budget, count: int) -> bool:
    charged = ledger.charge(run, privacy)
    last = charged.charges[-1]
    before = replace(last, trainings=last.trainings + count - 2)  # `allows` charges the last one
    return allows(replace(charged, charges=(*charged.charges[:-1], before)), run, privacy, budget)


def _fitting(order: float, privacy: SampledGaussian, epsilon: float, delta: float) -> float:
    """Trainings that fit at one order, not rounded: the cost at an order is linear in their number."""
    allowance = 2.0 * epsilon - float(
        compute_epsilon([order], [epsilon], delta)[0]
    )  # epsilon is linear in the cost, plus a constant
    return allowance / (float(step_cost(privacy.noise, privacy.rate)[ORDERS.index(order)]) * privacy.steps)


def _sampled(ledger: RecordLedger) -> dict[tuple[float, float], int]:
    """DP-SGD steps by (noise, rate)."""
    steps: dict[tuple[float, float], int] = {}
    for charge in ledger.charges:
        if isinstance(charge.privacy, SampledGaussian):
            key = (charge.privacy.noise, charge.privacy.rate)
            steps[key] = steps.get(key, 0) + charge.privacy.steps * charge.trainings
    return steps


def _stated(ledger: RecordLedger, delta: float) -> tuple[float, float]:
    """Epsilon of trainers' own statements, and what their deltas leave of `delta`."""
    said = [(charge.privacy, charge.trainings) for charge in ledger.charges if isinstance(charge.privacy, Stated)]
    epsilon = math.fsum(privacy.epsilon * count for privacy, count in said)
    return epsilon, delta - math.fsum(privacy.delta * count for privacy, count in said)


def _epsilon(orders: Sequence[float], steps: dict[tuple[float, float], int], delta: float) -> float:
    places = [ORDERS.index(order) for order in orders]
    cost = sum((count * step_cost(noise, rate)[places] for (noise, rate), count in steps.items()), np.zeros(len(places)))
    epsilon, _ = compute_epsilon(list(orders), list(cost), delta)
    return float(epsilon)


@lru_cache(maxsize=1024)
def step_cost(noise: float, rate: float) -> NDArray[np.float64]:
    """Renyi divergence of one step at every order."""
    accountant = RdpAccountant(list(ORDERS), NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)))
    return np.asarray(accountant.rdp, dtype=np.float64)


def _rounded_up(noise: float) -> float:
    digits = 3 - math.floor(math.log10(noise))
    return math.ceil(noise * 10.0**digits) / 10.0**digits
