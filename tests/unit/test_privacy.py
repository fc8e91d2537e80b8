"""The exact epsilon against an enumeration of all outputs, the paper's bounds against it, the inverse, the ledger."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.errors import InvalidInputError
from fedrep.privacy import (
    Charge,
    CoordinateRelease,
    Ledger,
    alpha_for_budget,
    alpha_for_epsilon,
    coordinate_epsilon,
    high_alpha_epsilon,
    shown,
    theorem2_epsilon,
)

ALPHAS = [Fraction(1, 100), Fraction(1, 5), Fraction(1, 2), Fraction(4, 5), Fraction(99, 100)]


def output_probabilities(top: tuple[int, ...], d: int, alpha: Fraction) -> dict[frozenset[int], Fraction]:
    """Section 3.2 step by step: r of the k slots, which of the top are kept, which of the rest are drawn."""
    k = len(top)
    result: dict[frozenset[int], Fraction] = defaultdict(Fraction)
    for r in range(k + 1):
        chance_r = math.comb(k, r) * alpha**r * (1 - alpha) ** (k - r)
        for kept in combinations(top, k - r):
            rest = [j for j in range(d) if j not in kept]
            each = chance_r / math.comb(k, r) / math.comb(len(rest), r)
            for drawn in combinations(rest, r):
                result[frozenset(kept + drawn)] += each
    return result


def enumerated_epsilon(d: int, k: int, alpha: Fraction) -> float:
    first = output_probabilities(tuple(range(k)), d, alpha)
    second = output_probabilities(tuple(range(1, k + 1)), d, alpha)
    assert sum(first.values()) == 1
    assert first.keys() == second.keys()
    ratio = max(first[output] / second[output] for output in first)
    return math.log(ratio.numerator) - math.log(ratio.denominator)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("d", "k"), [(d, k) for d in range(2, 8) for k in range(1, d)] + [(8, 1), (8, 3), (8, 7)])
def test_exact_epsilon_is_the_largest_log_ratio_over_all_outputs(d: int, k: int, alpha: Fraction) -> None:
    exact = coordinate_epsilon(d, k, float(alpha))
    assert exact is not None
    assert abs(exact - enumerated_epsilon(d, k, alpha)) < 1e-12


@pytest.mark.parametrize(
    ("d", "k", "alpha", "exact", "theorem"),
    [
        (100, 1, 0.2, 5.994, 5.704),
        (100, 2, 0.5, 4.596, 5.694),
        (1000, 5, 0.8, 5.505, 8.631),
        (272474, 425, 0.5, 12.512, 18.971),
        (272474, 425, 0.95, 9.539, 18.592),
        (272474, 425, 0.99, 7.752, 18.571),
    ],
)
def test_published_check_values(d: int, k: int, alpha: float, exact: float, theorem: float) -> None:
    assert coordinate_epsilon(d, k, alpha) == pytest.approx(exact, abs=5.1e-4)
    assert theorem2_epsilon(d, k, alpha) == pytest.approx(theorem, abs=5.1e-4)


@pytest.mark.parametrize("d", [2, 5, 8])
def test_theorem_2_is_violated_for_one_coordinate_exactly_below_d_over_3d_minus_2(d: int) -> None:
    threshold = Fraction(d, 3 * d - 2)
    for alpha, violated in [(threshold * Fraction(9, 10), True), (threshold + (1 - threshold) / 10, False)]:
        bound = theorem2_epsilon(d, 1, float(alpha))
        assert bound is not None
        assert (enumerated_epsilon(d, 1, alpha) > bound + 1e-9) is violated


@given(st.integers(2, 10**6), st.data())
def test_theorem_2_holds_from_two_coordinates_on(d: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, min(d, 300)))
    alpha = data.draw(st.floats(1e-6, 1.0))
    exact, bound = coordinate_epsilon(d, k, alpha), theorem2_epsilon(d, k, alpha)
    assert exact is not None
    assert bound is not None
    assert exact <= bound + 1e-9


@given(st.integers(2, 1000), st.data())
def test_the_bound_for_alpha_from_one_half_holds_and_vanishes_at_one(d: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(d, 100)))
    alpha = data.draw(st.floats(0.5, 1.0))
    exact = coordinate_epsilon(d, k, alpha)
    assert exact is not None
    assert exact <= high_alpha_epsilon(d, k, alpha) + 1e-12
    assert high_alpha_epsilon(d, k, 1.0) == 0.0


def test_the_bound_for_alpha_from_one_half_is_refused_below() -> None:
    with pytest.raises(InvalidInputError, match=r"0\.5 to 1"):
        high_alpha_epsilon(100, 2, 0.49)


def test_no_obfuscation_is_no_guarantee_and_never_a_number() -> None:
    assert coordinate_epsilon(100, 2, 0.0) is None
    assert theorem2_epsilon(100, 2, 0.0) is None
    assert shown(None) == "none"


def test_total_obfuscation_and_a_single_possible_output_cost_nothing() -> None:
    assert coordinate_epsilon(100, 7, 1.0) == 0.0
    for alpha in (0.0, 0.3, 1.0):
        assert coordinate_epsilon(7, 7, alpha) == 0.0


@pytest.mark.parametrize(
    ("d", "k", "alpha"), [(0, 1, 0.5), (5, 0, 0.5), (5, 6, 0.5), (5, 2, -0.1), (5, 2, 1.1), (5, 2, math.nan)]
)
def test_impossible_settings_are_refused(d: int, k: int, alpha: float) -> None:
    for function in (coordinate_epsilon, theorem2_epsilon, high_alpha_epsilon):
        with pytest.raises(InvalidInputError):
            function(d, k, alpha)
    with pytest.raises(InvalidInputError):
        CoordinateRelease(1, d, k, alpha)


@given(st.integers(2, 5_000_000), st.data())
def test_epsilon_is_finite_positive_and_falls_with_alpha(d: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(d - 1, 2000)))
    low, high = sorted(data.draw(st.lists(st.floats(1e-12, 1 - 1e-12), min_size=2, max_size=2)))
    more, less = coordinate_epsilon(d, k, low), coordinate_epsilon(d, k, high)
    assert more is not None
    assert less is not None
    assert 0.0 < less <= more * (1 + 1e-12) < math.inf


def test_extreme_alphas_follow_the_asymptotes() -> None:
    d, k = 272474, 425
    # alpha -> 0: ln((d - k + 1) q); alpha -> 1: d (1 - alpha) / k.
    assert coordinate_epsilon(d, k, 1e-300) == pytest.approx(math.log(d - k + 1) + 300 * math.log(10), rel=1e-12)
    assert coordinate_epsilon(d, k, 1 - 2**-53) == pytest.approx(d * 2**-53 / k, rel=1e-6)


@given(st.integers(2, 300_000), st.data())
def test_alpha_for_a_target_never_exceeds_it_and_is_tight(d: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(d - 1, 60)))
    target = data.draw(st.floats(1e-6, 40.0))
    alpha = alpha_for_epsilon(d, k, target)
    reached, just_below = coordinate_epsilon(d, k, alpha), coordinate_epsilon(d, k, alpha * (1 - 1e-12))
    assert reached is not None
    assert just_below is not None
    assert reached <= target < just_below


def test_alpha_for_a_target_at_the_ends() -> None:
    assert alpha_for_epsilon(100, 3, 0.0) == 1.0
    assert alpha_for_epsilon(3, 3, 0.0) == 0.0
    for impossible in (-1.0, math.nan):
        with pytest.raises(InvalidInputError, match="target of 0 or more"):
            alpha_for_epsilon(100, 3, impossible)


@given(st.integers(1, 5000), st.floats(1e-3, 100.0))
def test_alpha_for_a_budget_keeps_the_whole_run_within_it(rounds: int, each: float) -> None:
    budget = rounds * each
    alpha = alpha_for_budget(1000, 5, budget, rounds)
    total = Ledger((Charge(1000, 5, alpha, rounds),), rounds).total
    assert total is not None
    assert total <= budget
    assert total == pytest.approx(budget, rel=1e-5)


def test_shown_epsilon_is_rounded_up_and_never_down() -> None:
    assert shown(9.5390001) == "9.540"
    assert shown(9.539) in ("9.539", "9.540")
    assert shown(1e-9) == "0.001"
    assert shown(0.0) == "0.000"
    assert Fraction(shown(1.7e308)) == Fraction(1.7e308), "whatever a silo claims"


@given(st.floats(0, 1e6))
def test_a_shown_epsilon_is_never_below_the_true_one(epsilon: float) -> None:
    assert Fraction(shown(epsilon)) >= Fraction(epsilon)


def test_a_ledger_adds_rounds_up_and_survives_being_saved() -> None:
    ledger = Ledger()
    for number in (1, 2, 5):
        ledger = ledger.charge(CoordinateRelease(number, 1000, 5, 0.8))
    ledger = ledger.charge(CoordinateRelease(6, 1000, 5, 0.9))
    expected = 3 * (coordinate_epsilon(1000, 5, 0.8) or 0) + (coordinate_epsilon(1000, 5, 0.9) or 0)
    assert ledger.total == pytest.approx(expected, rel=1e-14)
    assert ledger.rounds == 4
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


def test_a_saved_ledger_does_not_grow_with_rounds() -> None:
    ledger = Ledger()
    for number in range(200):
        ledger = ledger.charge(CoordinateRelease(number, 1000, 5, 0.8))
    assert len(ledger.charges) == 1
    assert ledger.total == pytest.approx(200 * (coordinate_epsilon(1000, 5, 0.8) or 0), rel=1e-14)


def test_one_release_without_guarantee_leaves_none_for_the_whole_run() -> None:
    ledger = Ledger().charge(CoordinateRelease(1, 100, 2, 0.9)).charge(CoordinateRelease(2, 100, 2, 0.0))
    assert ledger.total is None
    assert ledger.charge(CoordinateRelease(3, 100, 2, 1.0)).total is None
    assert not ledger.allows(CoordinateRelease(3, 100, 2, 1.0), budget=1e9)
    assert ledger.allows(CoordinateRelease(3, 100, 2, 1.0), budget=None)


def test_a_ledger_refuses_a_round_it_has_passed_and_does_not_change() -> None:
    ledger = Ledger().charge(CoordinateRelease(4, 100, 2, 0.9))
    for number in (4, 3):
        with pytest.raises(InvalidInputError, match="only go up"):
            ledger.charge(CoordinateRelease(number, 100, 2, 0.9))
    assert ledger.rounds == 1


def test_a_budget_stops_before_it_is_exceeded() -> None:
    release = CoordinateRelease(2, 100, 2, 0.5)
    ledger = Ledger().charge(CoordinateRelease(1, 100, 2, 0.5))
    both = ledger.charge(release).total
    assert both is not None
    assert ledger.allows(release, budget=both)
    assert not ledger.allows(release, budget=math.nextafter(both, 0.0))


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"last_round": 1},
        {"last_round": None, "charges": [{"d": 5, "k": 2, "alpha": 0.5, "rounds": 1}]},
        {"last_round": 3, "charges": []},
        {"last_round": 3, "charges": [{"d": 5, "k": 2, "alpha": 0.5, "rounds": 0}]},
        {"last_round": 3, "charges": [{"d": 5, "k": 9, "alpha": 0.5, "rounds": 1}]},
        {"last_round": 3, "charges": [{"d": "5", "k": 2, "alpha": 0.5, "rounds": 1}]},
    ],
)
def test_a_damaged_saved_ledger_is_refused(saved: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Ledger.from_dict(saved)
