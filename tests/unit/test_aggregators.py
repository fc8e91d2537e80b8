"""What every rule owes its caller: robustness, invariances, clear refusals, with numpy alone and with compiled loops."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.aggregators import AGGREGATORS, Aggregate, AggregatorWarning
from fedrep.errors import InvalidInputError, NonFiniteError, SettingsError

RULES = sorted(AGGREGATORS)
ROBUST = [name for name in RULES if name != "mean"]
N, F = 11, 3


def rows(n: int = N, d: int = 300, seed: int = 0, offset: float = 1.0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal((n, d)) + offset).astype(np.float32)


def aggregate(name: str, vectors: Any, f: int = F, **more: Any) -> Aggregate:
    return AGGREGATORS[name](vectors, byzantine_count=f, **more)


def spread(vectors: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).mean()))


@pytest.mark.parametrize("name", RULES)
def test_the_result_is_a_float32_vector_with_an_account_of_every_row(name: str, way: str) -> None:
    result = aggregate(name, rows())
    assert result.vector.dtype == np.float32
    assert result.vector.shape == (300,)
    account = result.weights if result.weights is not None else result.distances
    assert account is not None
    assert account.shape == (N,)
    assert result.notes == ()


@pytest.mark.parametrize("name", RULES)
def test_the_input_is_never_changed_and_nothing_is_remembered(name: str, way: str) -> None:
    vectors = rows()
    before = vectors.copy()
    vectors.setflags(write=False)
    first = aggregate(name, vectors, pre=["arc", "nnm"]).vector
    aggregate(name, rows(seed=9))
    np.testing.assert_array_equal(aggregate(name, vectors, pre=["arc", "nnm"]).vector, first)
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("pre", [(), ("nnm",), ("arc", "nnm"), ("clip",)])
def test_the_order_of_the_rows_does_not_matter(name: str, pre: tuple[str, ...], way: str) -> None:
    vectors = rows(d=1500)
    order = np.random.default_rng(3).permutation(N)
    plain, shuffled = aggregate(name, vectors, pre=pre), aggregate(name, vectors[order], pre=pre)
    np.testing.assert_allclose(shuffled.vector, plain.vector, rtol=0, atol=3e-6)
    for a, b in ((plain.weights, shuffled.weights), (plain.distances, shuffled.distances)):
        if a is not None and b is not None:
            np.testing.assert_allclose(b, a[order], atol=1e-4)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=15)
@given(data=st.data())
def test_the_order_does_not_matter_for_rows_full_of_ties(name: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(5, 9))
    numbers = data.draw(st.lists(st.integers(-2, 2), min_size=3 * n, max_size=3 * n))
    vectors = np.array(numbers, np.float32).reshape(n, 3)
    order = data.draw(st.permutations(range(n)))
    np.testing.assert_allclose(aggregate(name, vectors[order], 1).vector, aggregate(name, vectors, 1).vector, atol=1e-5)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("attack", [1e30, -1e30, 1e4, 3e38])
def test_a_minority_far_away_moves_no_robust_rule_out_of_the_honest_rows(
    name: str, offset: float, attack: float, way: str
) -> None:
    vectors = rows(n=16, offset=offset)
    vectors[:F] = attack
    vectors[0, 0] = -attack
    honest = vectors[F:].astype(np.float64)
    error = np.linalg.norm(aggregate(name, vectors).vector - honest.mean(axis=0))
    assert error < 1.3 * spread(honest)


def test_the_mean_follows_an_attacker_anywhere() -> None:
    vectors = rows()
    vectors[0] = 1e6
    assert np.linalg.norm(aggregate("mean", vectors).vector - vectors[1:].mean(axis=0)) > 1e6


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("value", [0.0, 2.5, -3e-20, 3.4e38])
def test_equal_rows_give_back_that_row(name: str, value: float, way: str) -> None:
    vectors = np.full((N, 40), value, np.float32)
    np.testing.assert_allclose(aggregate(name, vectors).vector, vectors[0], rtol=2e-7)
    np.testing.assert_allclose(aggregate(name, vectors, pre=["arc", "nnm"]).vector, vectors[0], rtol=1e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_that_is_not_finite_is_refused_with_its_place(name: str, bad: float, dtype: Any, way: str) -> None:
    vectors = rows().astype(dtype)
    vectors[4, 17] = bad
    with pytest.raises(NonFiniteError, match=r"Row 4 .* coordinate 17"):
        aggregate(name, vectors)
    with pytest.raises(NonFiniteError, match=r"Row 4 .* coordinate 17"):
        aggregate(name, vectors, pre=["nnm"])


@pytest.mark.parametrize("name", RULES)
def test_a_float64_number_beyond_float32_is_refused(name: str) -> None:
    vectors = rows().astype(np.float64)
    vectors[2, 5] = 1e39
    with pytest.raises(NonFiniteError, match=r"Row 2 .* coordinate 5 is 1e\+39"):
        aggregate(name, vectors)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (5,), (2, 2, 2)])
def test_an_empty_or_misshapen_input_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError):
        aggregate(name, np.zeros(shape, np.float32), 0)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("f", [-1, N, N + 5, 1.5, True])
def test_an_impossible_number_of_byzantine_rows_is_refused(name: str, f: Any) -> None:
    with pytest.raises(SettingsError, match="byzantine_count"):
        aggregate(name, rows(), f)


@pytest.mark.parametrize("name", ROBUST)
def test_too_few_rows_for_f_is_refused(name: str) -> None:
    f = N - 2 if "krum" in name else 6
    with pytest.raises(SettingsError):
        aggregate(name, rows(), f)


@pytest.mark.parametrize("name", RULES)
def test_one_row_without_byzantine_ones_is_its_own_aggregate_except_for_krum(name: str, way: str) -> None:
    vectors = rows(n=1)
    if "krum" in name:
        with pytest.raises(SettingsError, match="needs at least 3 rows"):
            aggregate(name, vectors, 0)
    else:
        np.testing.assert_allclose(aggregate(name, vectors, 0).vector, vectors[0], rtol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_other_layouts_and_kinds_of_numbers_give_the_same_result(name: str) -> None:
    vectors = rows()
    wanted = aggregate(name, vectors).vector
    wide = np.zeros((N, 600), np.float32)
    wide[:, ::2] = vectors
    for same in (np.asfortranarray(vectors), wide[:, ::2], list(vectors), vectors.astype(">f4"), vectors.astype(np.float64)):
        np.testing.assert_allclose(aggregate(name, same).vector, wanted, atol=2e-6)


@pytest.mark.parametrize("name", RULES)
def test_results_do_not_depend_on_where_chunks_and_tiles_end(name: str, way: str) -> None:
    vectors = rows(n=7, d=(1 << 16) + 5000)
    whole = aggregate(name, vectors, 2, **({"sampled": 1 << 20} if name == "dnc" else {}))
    if whole.weights is not None:
        np.testing.assert_allclose(whole.vector, whole.weights @ vectors.astype(np.float64), atol=1e-5)
    if whole.distances is not None:
        exact = np.linalg.norm(vectors.astype(np.float64) - whole.vector, axis=1)
        np.testing.assert_allclose(whole.distances, exact, rtol=1e-4)
    if name in ("median", "trimmed_mean", "meamed"):
        tail = aggregate(name, vectors[:, -5100:], 2).vector
        np.testing.assert_allclose(whole.vector[-5100:], tail, atol=1e-6)


def test_krum_below_its_guarantee_runs_with_a_warning_that_the_result_keeps() -> None:
    with pytest.warns(AggregatorWarning, match="takes 9 rows"):
        result = aggregate("krum", rows(n=8))
    assert "takes 9 rows" in result.notes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aggregate("krum", rows(n=9))


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "meamed"])
def test_distances_to_a_far_outlier_do_not_overflow(name: str, way: str) -> None:
    vectors = rows()
    vectors[2] = 1e25
    result = aggregate(name, vectors)
    assert result.distances is not None
    np.testing.assert_allclose(result.distances[2], 1e25 * np.sqrt(300), rtol=1e-5)
    assert result.distances[[0, 1, 3]].max() < 100
