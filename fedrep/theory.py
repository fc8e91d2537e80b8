"""The paper's constants and bounds (sections 3 and 4, appendix B), as printed, with a note where a proof slips.

Symbols: d parameters, k = K/m coordinates per silo, m silos, delta the fraction of Byzantine ones, alpha the obfuscation,
c the constant of the robust aggregator (Definition 1), I local steps, eta the learning rate, D the bound on gradients,
sigma^2 on their variance, B on their bias between silos, L the smoothness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedrep.errors import InvalidInputError


def consensus_dimension(d: int, k: int, m: int, alpha: float, delta: float = 0.0) -> float:
    """d'_cons of Proposition 2: E|x - C(x)|^2 <= (1 - d'_cons / d) |x|^2 for every honest silo's x.

    The first part counts the decoys of the other (1 - delta) m - 1 honest silos that happen to be useful.
    """
    if not 1 <= k <= d:
        raise InvalidInputError(f"k = {k} coordinates cannot be proposed out of d = {d}; k must lie between 1 and d")
    if m < 1 or not 0.0 <= delta < 0.5:
        raise InvalidInputError(f"the bound needs at least one silo and delta in [0, 1/2), not m = {m}, delta = {delta}")
    if not 0.0 <= alpha <= 1.0:
        raise InvalidInputError(f"alpha = {alpha} is not a probability; it must lie between 0 and 1")
    others = max(0.0, (1.0 - delta) * m - 1.0)
    exponent = -alpha * k * others / d
    return -d * math.expm1(exponent) + k * math.exp(exponent)


def memory_constant(d: int, k: int, m: int, alpha: float, delta: float = 0.0) -> float:
    """H = d / d'_cons: how much longer a value may wait in the error memory than without sparsification."""
    return d / consensus_dimension(d, k, m, alpha, delta)


def dissimilarity(
    difference: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    both: ArrayLike,
    only_first: ArrayLike,
    only_second: ArrayLike,
) -> float:
    """Theorem 1: E|C(v) - C(w)|^2 from the second moments of v - w, v and w and from where they are kept, by coordinate.

    Exact if the choice of coordinates is independent of the values, or the values are fixed. For random values and a
    choice that looks at them (top-k) it is not: the proof replaces E[v_j^2; j kept] by E[v_j^2] Pr[j kept].
    """
    return float(
        np.dot(np.asarray(difference, dtype=np.float64), np.asarray(both, dtype=np.float64))
        + np.dot(np.asarray(first, dtype=np.float64), np.asarray(only_first, dtype=np.float64))
        + np.dot(np.asarray(second, dtype=np.float64), np.asarray(only_second, dtype=np.float64))
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """What is assumed about the loss and its gradients (Assumptions 2 to 6)."""

    smoothness: float  # L
    gradient: float  # D
    variance: float  # sigma^2
    bias: float = 0.0  # B, between silos
    gap: float = 0.0  # F(w^0) - F*

    def __post_init__(self) -> None:
        values = (self.smoothness, self.gradient, self.variance, self.bias, self.gap)
        if not all(math.isfinite(value) and value >= 0.0 for value in values):
            raise InvalidInputError(f"the constants of a problem are finite and not negative, unlike these: {self}")

    @property
    def second_moment(self) -> float:
        return self.gradient**2 + self.variance


@dataclass(frozen=True, slots=True)
class Robustness:
    """The secure robust aggregator (Assumption 1) over sparsified vectors: Definition 1's c and delta, Lemma 1's H."""

    c: float
    delta: float
    memory: float  # H

    @property
    def error_factor(self) -> float:
        """8 c delta (4 H^2 + 1), which multiplies the squared step in Lemma 2."""
        return 8.0 * self.c * self.delta * (4.0 * self.memory**2 + 1.0)


def memory_bound(memory: float, problem: Problem, eta: float, local_steps: int = 1) -> float:
    """Lemma 1: E|u_k|^2 <= 4 H^2 I^2 (D^2 + sigma^2) eta^2."""
    return 4.0 * memory**2 * local_steps**2 * problem.second_moment * eta**2


def aggregation_error_bound(robust: Robustness, problem: Problem, eta: float, local_steps: int = 1) -> float:
    """Lemma 2: E|e|^2 <= 8 c delta I^2 (4 H^2 + 1) (D^2 + sigma^2) eta^2."""
    return robust.error_factor * local_steps**2 * problem.second_moment * eta**2


@dataclass(frozen=True, slots=True)
class ConvergenceBound:
    """2 gap / (rate T) + eta gamma1 + eta^2 gamma2 + Delta, a bound on the mean squared gradient over T rounds."""

    gap: float
    rate: float  # eta I, or eta_A
    eta: float
    gamma1: float
    gamma2: float
    floor: float  # Delta: what stays however long the training lasts

    def after(self, rounds: int) -> float:
        start = 2.0 * self.gap / (self.rate * rounds)
        return start + self.eta * self.gamma1 + self.eta**2 * self.gamma2 + self.floor


def local_sgd_bound(robust: Robustness, problem: Problem, eta: float, local_steps: int = 1) -> ConvergenceBound:
    """Theorem 3.

    As printed. In its proof DL becomes 4 L^2 on the way to gamma1, so the term 2 (1 - 1/I) L D should read
    (1 - 1/I) D sqrt(D^2 + sigma^2) / 2; it vanishes for I = 1, and the other terms are not affected.
    """
    L, D, steps, moment = problem.smoothness, problem.gradient, local_steps, problem.second_moment
    gamma1 = (
        2.0
        * steps
        * L
        * (
            2.0 * (1.0 - 1.0 / steps) * L * D
            + 2.0 * robust.memory * D * math.sqrt(moment)
            + moment
            + robust.error_factor * moment
        )
    )
    gamma2 = 8.0 * robust.memory**2 * steps**2 * L**2 * moment
    floor = 2.0 * problem.bias * D + 2.0 * math.sqrt(robust.error_factor * moment) * D
    return ConvergenceBound(problem.gap, eta * steps, eta, gamma1, gamma2, floor)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Assumption 7: (w - w') / eta_A estimates the gradient with bias at most A1 and second moment at most A2^2."""

    eta: float  # eta_A
    a1: float
    a2: float


def sgd(problem: Problem, eta: float) -> Algorithm:
    """Vanilla SGD: an unbiased estimate."""
    return Algorithm(eta, 0.0, math.sqrt(problem.second_moment))


def local_momentum_sgd(problem: Problem, eta: float, local_steps: int, beta: float) -> Algorithm:
    """Proposition 3. As printed; its proof drops a factor eta before L, so for eta > 1 the last term is too small."""
    if not 0.0 <= beta < 1.0 or local_steps < 1:
        raise InvalidInputError(f"local momentum needs beta in [0, 1) and at least one step, not {beta} and {local_steps}")
    steps, root = local_steps, math.sqrt(problem.second_moment)
    drift = (
        (steps - 1) / 2.0
        + beta**2 * (1.0 - beta ** (steps - 1)) / (steps * (1.0 - beta) ** 2)
        - beta * (steps - 1) / (steps * (1.0 - beta))
    )
    carried = beta * (1.0 - beta**steps) / (steps * (1.0 - beta))
    return Algorithm(eta * steps, carried * problem.gradient + root + drift * problem.smoothness * root, root)


def general_bound(robust: Robustness, problem: Problem, algorithm: Algorithm) -> ConvergenceBound:
    """Theorem 4, for any local training that satisfies Assumption 7."""
    L, D, a2, H = problem.smoothness, problem.gradient, algorithm.a2, robust.memory
    gamma1 = 2.0 * a2**2 * L + 4.0 * H * a2 * D * L + 2.0 * robust.error_factor * a2**2 * L
    gamma2 = 8.0 * H**2 * a2**2 * L**2
    floor = 2.0 * algorithm.a1 * D + 2.0 * problem.bias * D + 2.0 * math.sqrt(robust.error_factor) * a2 * D
    return ConvergenceBound(problem.gap, algorithm.eta, algorithm.eta, gamma1, gamma2, floor)
