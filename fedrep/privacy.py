"""What proposing coordinates costs in privacy (section 3.2, Theorem 2 and its appendix).

The mechanism turns a silo's top-k set into a proposal: each slot goes to a random coordinate with probability alpha.
Neighbours are top-k sets that differ in one element. `coordinate_epsilon` is exact; the paper's two bounds are here to
be compared with it. What happened is frozen data (`CoordinateRelease`); what it cost is computed from it (`Ledger`).

None stands for "no guarantee at all" (alpha = 0). It is never a number, not even infinity, so that nobody sums,
compares or prints it as one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedrep.errors import InvalidInputError

COVERS: Final = (
    "which coordinates a silo proposed, for one coordinate of its top-k set exchanged in every round; "
    "neither a training record, nor the opened sums, which can undo the obfuscation"
)
TOO_LARGE_TO_MEAN_MUCH: Final = 10.0
LONGEST_NUMBER: Final = 400  # digits: any number that a peer may claim can be shown


def coordinate_epsilon(d: int, k: int, alpha: float) -> float | None:
    """Exact epsilon of one proposal: -ln(1 - E[X | X <= k] / k), X ~ Binomial(d, 1 - alpha).

    An output that holds U of the top k has probability P(U) ~ sum_i C(U, i) q^i (d)_i / (k)_i, q = (1 - alpha) / alpha,
    and P(U + 1) / P(U) is largest at U = k - 1. None if alpha = 0, unless k = d, when only one output exists.
    """
    d, k, alpha = _checked(d, k, alpha)
    if k == d or alpha == 1.0:
        return 0.0
    if alpha == 0.0:
        return None
    return _exact(d, k, alpha)


def theorem2_epsilon(d: int, k: int, alpha: float) -> float | None:
    """Theorem 2's bound, ln((1 + alpha) k (d - k + 1) / (2 alpha)).

    Loose for large k. Too small for k = 1 and alpha < d / (3d - 2): the proof divides by S_0, which is 0 when U_2 = 0.
    """
    d, k, alpha = _checked(d, k, alpha)
    if alpha == 0.0:
        return None
    return math.log1p(alpha) - math.log(2.0) - math.log(alpha) + math.log(k) + math.log(d - k + 1)


def high_alpha_epsilon(d: int, k: int, alpha: float) -> float:
    """The appendix's bound for alpha >= 1/2, ln(1 + (1 - alpha) / alpha (2^k + 1) d^k): 0 at alpha = 1, huge below."""
    d, k, alpha = _checked(d, k, alpha)
    if alpha < 0.5:
        raise InvalidInputError(f"this bound holds for alpha from 0.5 to 1, not for {alpha}; use theorem2_epsilon")
    if alpha == 1.0:
        return 0.0
    exponent = _log_odds(alpha) + float(np.logaddexp(k * math.log(2.0), 0.0)) + k * math.log(d)
    return float(np.logaddexp(0.0, exponent))


def alpha_for_epsilon(d: int, k: int, target: float) -> float:
    """The smallest alpha (to about 15 digits) whose exact epsilon does not exceed `target`; never one that does."""
    d, k, _ = _checked(d, k, 1.0)
    if not target >= 0.0:
        raise InvalidInputError(f"an epsilon of {target} cannot be reached; give a target of 0 or more")
    if k == d:
        return 0.0
    # Bisection on the log-odds of alpha, where epsilon is close to linear; `high` always meets the target.
    low, high = -700.0, 36.0
    if _exact(d, k, _alpha(low)) <= target:
        return _alpha(low)
    if _exact(d, k, _alpha(high)) > target:
        return 1.0
    for _ in range(64):  # 736 / 2^64 is below the spacing of doubles
        middle = 0.5 * (low + high)
        if _exact(d, k, _alpha(middle)) <= target:
            high = middle
        else:
            low = middle
    return _alpha(high)


def alpha_for_budget(d: int, k: int, budget: float, rounds: int) -> float:
    """The smallest alpha with which `rounds` proposals together stay within `budget`."""
    if rounds < 1:
        raise InvalidInputError(f"{rounds} rounds cost nothing; give at least 1")
    share = budget / rounds
    alpha = alpha_for_epsilon(d, k, share)
    while rounds * (coordinate_epsilon(d, k, alpha) or 0.0) > budget:  # the division may have rounded up
        share = math.nextafter(share, 0.0)
        alpha = alpha_for_epsilon(d, k, share)
    return alpha


def meaningful(total: float | None) -> bool:
    """Whether a total says something about privacy; None is no guarantee at all."""
    return total is not None and total <= TOO_LARGE_TO_MEAN_MUCH


def shown(epsilon: float | None, digits: int = 3) -> str:
    """Epsilon for a person: rounded up, because a privacy loss shown too small is a false promise."""
    if epsilon is None:
        return "none"
    return str(Decimal(epsilon).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING, Context(prec=LONGEST_NUMBER)))


@dataclass(frozen=True, slots=True)
class CoordinateRelease:
    """One proposal that left the silo, or is about to."""

    round: int
    d: int
    k: int
    alpha: float

    def __post_init__(self) -> None:
        _checked(self.d, self.k, self.alpha)

    @property
    def epsilon(self) -> float | None:
        return coordinate_epsilon(self.d, self.k, self.alpha)


@dataclass(frozen=True, slots=True)
class Charge:
    """How many rounds were released with the same settings."""

    d: int
    k: int
    alpha: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """All releases of one run. It grows with changes of settings, not with rounds: small enough to save each round."""

    charges: tuple[Charge, ...] = ()
    last_round: int | None = None

    def charge(self, release: CoordinateRelease) -> Ledger:
        if self.last_round is not None and release.round <= self.last_round:
            raise InvalidInputError(
                f"round {release.round} cannot be charged after round {self.last_round}: rounds only go up, "
                "and a proposal that is sent again unchanged costs nothing"
            )
        settings = (release.d, release.k, release.alpha)
        if self.charges and (self.charges[-1].d, self.charges[-1].k, self.charges[-1].alpha) == settings:
            last = replace(self.charges[-1], rounds=self.charges[-1].rounds + 1)
            return Ledger((*self.charges[:-1], last), release.round)
        return Ledger((*self.charges, Charge(*settings, rounds=1)), release.round)

    @property
    def rounds(self) -> int:
        return sum(charge.rounds for charge in self.charges)

    @property
    def total(self) -> float | None:
        """Basic composition: epsilons add up. None as soon as one release had no guarantee."""
        parts: list[float] = []
        for charge in self.charges:
            epsilon = coordinate_epsilon(charge.d, charge.k, charge.alpha)
            if epsilon is None:
                return None
            parts.append(charge.rounds * epsilon)
        return math.fsum(parts)

    def allows(self, release: CoordinateRelease, budget: float | None, elsewhere: float | None = 0.0) -> bool:
        """Whether the total stays within the budget once `release` is charged. No budget allows everything.

        `elsewhere` is what other runs over the same data have cost; None if one of them had no guarantee.
        """
        if budget is None:
            return True
        total = sum_of(self.charge(release).total, elsewhere)
        return total is not None and total <= budget

    def to_dict(self) -> dict[str, Any]:
        return {
            "last_round": self.last_round,
            "charges": [{"d": c.d, "k": c.k, "alpha": c.alpha, "rounds": c.rounds} for c in self.charges],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        try:
            charges = tuple(
                Charge(*_checked(entry["d"], entry["k"], entry["alpha"]), rounds=operator.index(entry["rounds"]))
                for entry in data["charges"]
            )
            last_round = None if data["last_round"] is None else operator.index(data["last_round"])
        except (KeyError, TypeError) as error:
            raise InvalidInputError(f"this is not a saved privacy ledger: {error!r}") from error
        if any(charge.rounds < 1 for charge in charges) or (last_round is None) != (not charges):
            raise InvalidInputError("this privacy ledger is damaged: its rounds and charges do not fit together")
        return cls(charges, last_round)


def sum_of(*totals: float | None) -> float | None:
    """Of several ledgers of one data set. None as soon as one of them has no guarantee."""
    known = [total for total in totals if total is not None]
    return math.fsum(known) if len(known) == len(totals) else None


@lru_cache(maxsize=256)
def _exact(d: int, k: int, alpha: float) -> float:
    """-ln(1 - sum_i i w_i / (k sum_i w_i)) with w_i = C(d, i) q^i, i = 0..k.

    The logarithms of w_i are summed outwards from the largest one, so that the terms that matter carry no rounding
    error worth the name, whatever d and k.
    """
    i = np.arange(1, k + 1, dtype=np.float64)
    steps = np.log((d - i + 1.0) / i) + _log_odds(alpha)  # ln w_i - ln w_(i-1), decreasing in i
    peak = int(np.count_nonzero(steps > 0.0))
    log_w: npt.NDArray[np.float64] = np.zeros(k + 1)
    log_w[peak + 1 :] = np.cumsum(steps[peak:])
    log_w[:peak] = -np.cumsum(steps[:peak][::-1])[::-1]
    w = np.exp(log_w)
    total = math.fsum(w)
    share = math.fsum(w[1:] * i) / (k * total)
    if share < 0.5:
        return -math.log1p(-share)
    # Near 1 the difference cancels: sum (k - i) w_i instead, rescaled because w_(k-1) may be below the smallest double.
    log_rest = log_w[:-1] + np.log(np.arange(k, 0, -1, dtype=np.float64))
    top = float(log_rest.max())
    return math.log(k) + math.log(total) - math.log(math.fsum(np.exp(log_rest - top))) - top


def _log_odds(alpha: float) -> float:
    return math.log1p(-alpha) - math.log(alpha)


def _alpha(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))


def _checked(d: int, k: int, alpha: float) -> tuple[int, int, float]:
    d, k, alpha = operator.index(d), operator.index(k), float(alpha)
    if d < 1:
        raise InvalidInputError(f"a model of d = {d} parameters has nothing to propose; d must be at least 1")
    if not 1 <= k <= d:
        raise InvalidInputError(f"k = {k} coordinates cannot be proposed out of d = {d}; k must lie between 1 and d")
    if not 0.0 <= alpha <= 1.0:
        raise InvalidInputError(f"alpha = {alpha} is not a probability; it must lie between 0 and 1")
    return d, k, alpha
