"""The paper's statements against simulations of what they are about."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.sparsify import propose, scatter, union
from fedrep.theory import (
    Algorithm,
    Problem,
    Robustness,
    aggregation_error_bound,
    consensus_dimension,
    dissimilarity,
    general_bound,
    local_momentum_sgd,
    local_sgd_bound,
    memory_bound,
    memory_constant,
    sgd,
)

Vector = NDArray[np.float64]


def kept(vector: Vector, indices: NDArray[np.int64]) -> Vector:
    result: Vector = scatter(vector[indices], indices, vector.size)
    return result


def proposal_probabilities(vector: Vector, k: int, alpha: float) -> Vector:
    """Pr[j in I_k] of section 3.2 for a fixed update, from r ~ Binomial(k, alpha)."""
    d = vector.size
    r = np.arange(k + 1)
    weights = np.array([math.comb(k, i) * alpha**i * (1 - alpha) ** (k - i) for i in r])
    decoy = float(weights @ (r / (d - k + r)))
    top = float(weights @ ((k - r) / k + r / k * (r / (d - k + r))))
    result = np.full(d, decoy)
    result[np.argsort(-np.abs(vector))[:k]] = top
    return result


def within_error(samples: list[float], expected: float) -> bool:
    spread = float(np.std(samples)) / math.sqrt(len(samples))
    return abs(float(np.mean(samples)) - expected) < 4.5 * spread


@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_theorem_1_gives_the_dissimilarity_of_separately_sparsified_vectors(alpha: float) -> None:
    rng = np.random.default_rng(1)
    d, k, fewer = 30, 6, 3
    v = rng.normal(size=d)
    w = v + 0.2 * rng.normal(size=d)
    p, q = proposal_probabilities(v, k, alpha), proposal_probabilities(w, fewer, alpha)
    expected = dissimilarity((v - w) ** 2, v**2, w**2, p * q, p * (1 - q), q * (1 - p))
    measured = [
        float(np.sum((kept(v, propose(v, k, alpha, rng)) - kept(w, propose(w, fewer, alpha, rng))) ** 2)) for _ in range(4000)
    ]
    assert within_error(measured, expected)


def test_theorem_1_for_a_consensus_set_leaves_only_the_distance_between_the_vectors() -> None:
    rng = np.random.default_rng(2)
    d, k, alpha = 30, 6, 0.5
    v = rng.normal(size=d)
    w = v + 0.2 * rng.normal(size=d)
    p, q = proposal_probabilities(v, k, alpha), proposal_probabilities(w, k, alpha)
    nowhere = np.zeros(d)
    expected = dissimilarity((v - w) ** 2, v**2, w**2, 1 - (1 - p) * (1 - q), nowhere, nowhere)
    measured = []
    for _ in range(4000):
        consensus = union([propose(v, k, alpha, rng), propose(w, k, alpha, rng)])
        measured.append(float(np.sum((kept(v, consensus) - kept(w, consensus)) ** 2)))
    assert within_error(measured, expected)


def test_theorem_1_does_not_hold_for_random_values_and_a_choice_that_looks_at_them() -> None:
    rng = np.random.default_rng(3)
    d, k = 30, 3
    ones = np.ones(d)
    p = k / d
    predicted = dissimilarity(2 * ones, ones, ones, ones * p * p, ones * p * (1 - p), ones * p * (1 - p))
    measured = []
    for _ in range(500):
        v, w = rng.normal(size=d), rng.normal(size=d)
        measured.append(float(np.sum((kept(v, propose(v, k, 0.0, rng)) - kept(w, propose(w, k, 0.0, rng))) ** 2)))
    assert np.mean(measured) > 2.0 * predicted


@given(st.integers(0, 2**32), st.integers(2, 40), st.floats(0, 1), st.data())
def test_proposition_1_consensus_sparsification_never_enlarges_a_distance(
    seed: int, d: int, alpha: float, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    k = data.draw(st.integers(1, d))
    vectors = rng.normal(size=(4, d)) * 10.0 ** rng.integers(-3, 4, size=(4, 1))
    byzantine = np.sort(rng.choice(d, size=k, replace=False))
    consensus = union([*(propose(vector, k, alpha, rng) for vector in vectors), byzantine])
    for i in range(4):
        for j in range(i):
            apart = np.linalg.norm(kept(vectors[i], consensus) - kept(vectors[j], consensus))
            assert apart <= np.linalg.norm(vectors[i] - vectors[j]) * (1 + 1e-12)


def lost_fraction(vectors: Vector, k: int, alpha: float, byzantine: int, rng: np.random.Generator) -> float:
    """|x - C(x)|^2 / |x|^2 of the first silo; the Byzantine ones repeat its proposal, which helps it least."""
    proposals = [propose(vector, k, alpha, rng) for vector in vectors[: len(vectors) - byzantine]]
    x = vectors[0]
    return 1.0 - float(np.sum(kept(x, union(proposals)) ** 2) / np.sum(x**2))


@pytest.mark.parametrize("kind", ["flat", "same", "apart"])
@pytest.mark.parametrize(("d", "k", "m", "byzantine"), [(60, 3, 10, 0), (60, 3, 10, 4), (40, 10, 4, 1)])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_proposition_2_consensus_sparsification_contracts_at_least_as_promised(
    d: int, k: int, m: int, byzantine: int, alpha: float, kind: str
) -> None:
    rng = np.random.default_rng(4)
    vectors = {"flat": np.ones((m, d)), "same": np.tile(rng.normal(size=d), (m, 1)), "apart": rng.normal(size=(m, d))}
    lost = [lost_fraction(vectors[kind], k, alpha, byzantine, rng) for _ in range(400)]
    promised = 1.0 - consensus_dimension(d, k, m, alpha, byzantine / m) / d
    assert np.mean(lost) <= promised + 4 * np.std(lost) / math.sqrt(len(lost)) + 1e-12


@pytest.mark.parametrize("alpha", [0.0, 1.0])  # between them, a dropped top coordinate may come back from another silo
def test_proposition_2_is_nearly_reached_by_silos_that_all_send_the_same_flat_vector(alpha: float) -> None:
    rng = np.random.default_rng(5)
    d, k, m, byzantine = 400, 2, 20, 5
    lost = [lost_fraction(np.ones((m, d)), k, alpha, byzantine, rng) for _ in range(400)]
    promised = 1.0 - consensus_dimension(d, k, m, alpha, byzantine / m) / d
    assert np.mean(lost) == pytest.approx(promised, abs=2e-3)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("steady", [True, False])
def test_lemma_1_bounds_the_measured_error_memory(alpha: float, steady: bool) -> None:
    rng = np.random.default_rng(6)
    d, k, m, rounds, eta, steps = 60, 2, 6, 150, 0.1, 2
    gradient = np.ones(d) / math.sqrt(d)  # norm D = 1
    problem = Problem(smoothness=1.0, gradient=1.0, variance=0.0 if steady else 0.5)
    memory = np.zeros((m, d))
    largest = 0.0
    for _ in range(rounds):
        noise = rng.normal(size=(m, d)) * math.sqrt(problem.variance / d)
        g = memory + eta * steps * (gradient + noise)
        consensus = union([propose(row, k, alpha, rng) for row in g])
        memory = g.copy()
        memory[:, consensus] = 0.0
        largest = max(largest, float(np.mean(np.sum(memory**2, axis=1))))
    H = memory_constant(d, k, m, alpha)
    assert largest <= memory_bound(H, problem, eta, steps)
    # The bound is about something: without the factor H it would be broken.
    assert largest > memory_bound(1.0, problem, eta, steps)


def test_the_consensus_dimension_lies_between_k_and_d_and_grows_with_alpha_and_honest_silos() -> None:
    assert consensus_dimension(1000, 7, 32, 0.0) == pytest.approx(7.0)
    assert consensus_dimension(1000, 1000, 4, 0.5) == pytest.approx(1000.0)
    assert memory_constant(1000, 10, 5, 0.0) == pytest.approx(100.0)
    rising = [consensus_dimension(1000, 7, 32, alpha) for alpha in (0.0, 0.5, 0.95, 1.0)]
    assert rising == sorted(rising)
    assert consensus_dimension(1000, 7, 32, 0.5, 0.4) < consensus_dimension(1000, 7, 32, 0.5, 0.0)


@pytest.mark.parametrize(
    ("d", "k", "m", "alpha", "delta"),
    [(10, 0, 4, 0.5, 0.0), (10, 11, 4, 0.5, 0.0), (10, 2, 0, 0.5, 0.0), (10, 2, 4, 1.5, 0.0), (10, 2, 4, 0.5, 0.5)],
)
def test_impossible_settings_are_refused(d: int, k: int, m: int, alpha: float, delta: float) -> None:
    with pytest.raises(InvalidInputError):
        consensus_dimension(d, k, m, alpha, delta)


def test_lemma_2_and_theorem_3_reproduce_a_calculation_by_hand() -> None:
    problem = Problem(smoothness=2.0, gradient=3.0, variance=7.0, bias=0.5, gap=10.0)  # D^2 + sigma^2 = 16
    robust = Robustness(c=2.0, delta=0.25, memory=1.5)  # 4 H^2 + 1 = 10, 8 c delta (...) = 40
    assert aggregation_error_bound(robust, problem, eta=0.1, local_steps=2) == pytest.approx(40 * 4 * 16 * 0.01)
    bound = local_sgd_bound(robust, problem, eta=0.1, local_steps=2)
    assert bound.gamma1 == pytest.approx(2 * 2 * 2 * (2 * 0.5 * 2 * 3 + 2 * 1.5 * 3 * 4 + 16 + 40 * 16))
    assert bound.gamma2 == pytest.approx(8 * 1.5**2 * 4 * 4 * 16)
    assert bound.floor == pytest.approx(2 * 0.5 * 3 + 4 * math.sqrt(2 * 2 * 0.25 * 10 * 16) * 3)
    expected = 2 * 10 / (0.1 * 2 * 50) + 0.1 * bound.gamma1 + 0.01 * bound.gamma2 + bound.floor
    assert bound.after(50) == pytest.approx(expected)


def test_theorems_3_and_4_agree_for_plain_sgd() -> None:
    problem = Problem(smoothness=2.0, gradient=3.0, variance=7.0, bias=0.5, gap=10.0)
    robust = Robustness(c=2.0, delta=0.25, memory=1.5)
    special, general = local_sgd_bound(robust, problem, 0.1), general_bound(robust, problem, sgd(problem, 0.1))
    for field in ("gamma1", "gamma2", "floor", "rate"):
        assert getattr(special, field) == pytest.approx(getattr(general, field))
    assert special.after(7) == pytest.approx(general.after(7))


def test_the_extra_error_vanishes_without_attackers_and_with_equal_silos_and_counts_the_bias_of_training() -> None:
    problem = Problem(smoothness=1.0, gradient=2.0, variance=1.0, gap=1.0)
    calm = Robustness(c=3.0, delta=0.0, memory=5.0)
    assert local_sgd_bound(calm, problem, 0.1).floor == 0.0
    assert general_bound(calm, problem, Algorithm(0.1, 0.3, 1.0)).floor == pytest.approx(2 * 0.3 * 2.0)


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_proposition_3_is_the_sum_it_was_derived_from(steps: int, beta: float) -> None:
    problem = Problem(smoothness=2.0, gradient=3.0, variance=7.0)
    algorithm = local_momentum_sgd(problem, 0.1, steps, beta)
    start = beta * (1 - beta**steps) / (1 - beta) * (4.0 + 3.0)
    later = sum((1 - beta ** (steps - j)) * (4.0 + j * 2.0 * 4.0) for j in range(steps))
    assert algorithm.a1 == pytest.approx((start + later) / steps)
    assert algorithm.a2 == pytest.approx(4.0)
    assert algorithm.eta == pytest.approx(0.1 * steps)


def test_impossible_constants_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="not negative"):
        Problem(smoothness=-1.0, gradient=1.0, variance=1.0)
    with pytest.raises(InvalidInputError, match="beta"):
        local_momentum_sgd(Problem(1.0, 1.0, 1.0), 0.1, 2, 1.0)
