from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError, NonFiniteError
from fedrep.sparsify import ascending, gather, obfuscate, propose, residual, scatter, top_k, union

LARGE = 200_000


def reference_top_k(update: NDArray[np.float64], k: int) -> list[int]:
    order = sorted(range(update.size), key=lambda index: (-abs(float(update[index])), index))
    return sorted(order[:k])


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_top_k_takes_the_largest_magnitudes_and_the_lower_index_among_equals(entries: list[int], data: st.DataObject) -> None:
    update = np.array(entries, dtype=np.float32)
    k = data.draw(st.integers(1, update.size))
    assert top_k(update, k).tolist() == reference_top_k(update.astype(np.float64), k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 313, 10_000, LARGE // 2, LARGE])
def test_top_k_of_a_large_update_equals_a_full_sort(k: int, dtype: type) -> None:
    update: np.ndarray[Any, Any] = np.random.default_rng(k).standard_normal(LARGE).round(3).astype(dtype)
    expected = np.sort(np.lexsort((np.arange(LARGE), -np.abs(update)))[:k])
    found = top_k(update, k)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("offset", range(62))
def test_top_k_is_exact_when_large_entries_sit_at_any_regular_distance(offset: int) -> None:
    update = np.full(60_000, 0.5)
    update[offset::61] = np.arange(1, update[offset::61].size + 1)
    k = 1_500
    expected = np.sort(np.lexsort((np.arange(update.size), -np.abs(update)))[:k])
    np.testing.assert_array_equal(top_k(update, k), expected)


def test_top_k_of_a_mostly_zero_update_fills_up_with_the_lowest_indices() -> None:
    update = np.zeros(LARGE, dtype=np.float32)
    update[[7, 150_000]] = [-1.0, 2.0]
    assert top_k(update, 5).tolist() == [0, 1, 2, 7, 150_000]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("d", [10, LARGE])
def test_an_update_with_a_bad_entry_is_refused_naming_the_first_index(bad: float, d: int) -> None:
    update = np.random.default_rng(1).standard_normal(d).astype(np.float32)
    update[[6, d - 1]] = bad
    with pytest.raises(NonFiniteError, match=r"at index 6;"):
        top_k(update, 2)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_top_k_refuses_a_k_outside_one_to_d(k: int) -> None:
    with pytest.raises(InvalidInputError, match="1 <= k <= d"):
        top_k([1.0, 2.0, 3.0], k)


def test_top_k_refuses_matrices_and_complex_numbers() -> None:
    with pytest.raises(InvalidInputError, match="flatten"):
        top_k(np.ones((2, 2)), 1)
    with pytest.raises(InvalidInputError, match="real numbers"):
        top_k(np.array([1j]), 1)


def law_of_the_proposal(top: tuple[int, ...], d: int, alpha: float) -> dict[tuple[int, ...], float]:
    """Section 3.2 by enumeration: r replaced, every kept subset, every decoy set outside the kept one."""
    k = len(top)
    law: dict[tuple[int, ...], float] = {}
    for r in range(k + 1):
        weight = comb(k, r) * alpha**r * (1 - alpha) ** (k - r) / comb(k, r) / comb(d - k + r, r)
        for kept in combinations(top, k - r):
            for decoys in combinations(sorted(set(range(d)) - set(kept)), r):
                output = tuple(sorted(kept + decoys))
                law[output] = law.get(output, 0.0) + weight
    return law


@pytest.mark.parametrize(("d", "top", "alpha"), [(5, (1, 3), 0.4), (6, (0, 1, 5), 0.7)])
def test_proposals_follow_the_law_of_section_3_2(d: int, top: tuple[int, ...], alpha: float) -> None:
    law = law_of_the_proposal(top, d, alpha)
    assert sum(law.values()) == pytest.approx(1.0)
    rng = np.random.default_rng(2)
    draws = 20_000
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        output = tuple(obfuscate(np.array(top), d, alpha, rng).tolist())
        seen[output] = seen.get(output, 0) + 1
    assert set(seen) <= set(law)
    statistic = sum((seen.get(output, 0) - draws * p) ** 2 / (draws * p) for output, p in law.items())
    freedom = len(law) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(("d", "k"), [(1_000_000, 500), (20_000, 500), (1_200, 500), (600, 500), (500, 500)])
def test_decoys_are_spread_evenly_at_every_density(d: int, k: int) -> None:
    rng = np.random.default_rng(3)
    top = np.arange(k)
    means = []
    for _ in range(200):
        proposal = obfuscate(top, d, 1.0, rng)
        assert ascending(proposal, d).size == k
        means.append(proposal.mean())
    deviation = d / 12**0.5 / (200 * k) ** 0.5
    assert abs(np.mean(means) - (d - 1) / 2) < 5 * deviation


def test_alpha_zero_proposes_the_top_and_a_seed_makes_proposals_repeatable() -> None:
    update = np.random.default_rng(4).standard_normal(1_000)
    np.testing.assert_array_equal(propose(update, 20, 0.0, np.random.default_rng(5)), top_k(update, 20))
    once = propose(update, 20, 0.6, np.random.default_rng(6))
    np.testing.assert_array_equal(once, propose(update, 20, 0.6, np.random.default_rng(6)))


@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**32), st.data())
def test_a_proposal_always_has_k_distinct_coordinates_in_order(d: int, alpha: float, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, d))
    rng = np.random.default_rng(seed)
    proposal = propose(rng.standard_normal(d), k, alpha, rng)
    assert proposal.dtype == np.int64
    assert ascending(proposal, d).size == k


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_alpha_that_is_no_probability_is_refused(alpha: float) -> None:
    with pytest.raises(InvalidInputError, match="alpha"):
        obfuscate([1, 2], 5, alpha, np.random.default_rng(0))


@given(st.lists(st.sets(st.integers(0, 50), max_size=10), max_size=6))
def test_the_union_holds_each_proposed_coordinate_once_in_order(proposals: list[set[int]]) -> None:
    arrays = [np.array(sorted(proposal), dtype=np.int64) for proposal in proposals]
    before = [array.copy() for array in arrays]
    assert union(iter(arrays)).tolist() == sorted(set().union(*proposals))
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_the_union_of_one_unsorted_array_leaves_it_alone() -> None:
    only = np.array([3, 1, 2])
    assert union([only]).tolist() == [1, 2, 3]
    assert only.tolist() == [3, 1, 2]


@given(st.integers(1, 40), st.integers(0, 2**32), st.data())
def test_residual_plus_what_was_sent_gives_the_update_back(d: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    g = rng.integers(-100, 100, d).astype(np.float32)
    indices = np.sort(rng.choice(d, data.draw(st.integers(0, d)), replace=False))
    sent = rng.integers(-100, 100, indices.size).astype(np.float32)
    memory = residual(g, indices, sent)
    assert memory.dtype == np.float32
    np.testing.assert_array_equal(memory + scatter(sent, indices, d), g)
    np.testing.assert_array_equal(gather(scatter(sent, indices, d), indices), sent)
    assert not gather(residual(g, indices, gather(g, indices)), indices).any()


@pytest.mark.parametrize("indices", [[1, 1], [2, 1], [-1, 2], [0, 9], [0.5], [[1]]])
def test_sets_that_are_not_ascending_or_leave_the_model_are_refused(indices: object) -> None:
    vector = np.zeros(5, dtype=np.float32)
    with pytest.raises(InvalidInputError):
        gather(vector, indices)  # type: ignore[arg-type]


def test_values_and_coordinates_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="as many values"):
        scatter(np.ones(3), [0, 1], 5)
    with pytest.raises(InvalidInputError, match="as many values"):
        residual(np.ones(5), [0, 1], np.ones(1))
