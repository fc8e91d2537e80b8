"""What the Gram matrix must not lose: ties, twins, far outliers and far origins, also in inputs too large for float64 tiles."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from fedrep.aggregators import (
    AGGREGATORS,
    centered_clipping,
    compiled,
    dnc,
    filter_l2,
    geometric_median,
    gram,
    krum,
    multi_krum,
    nnm,
)
from fedrep.aggregators import tiles as streaming
from fedrep.aggregators.gram import _products as products
from fedrep.aggregators.gram import ascending

Rows = np.ndarray[Any, Any]
LARGE = 70_000  # times 9 rows: beyond the size up to which every product is taken in float64


def rows(n: int = 9, d: int = LARGE, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def shifts(n: int, seed: int) -> Rows:
    """One vector shifted n times: every row has the same distances to the others, up to how their squares were summed."""
    vector = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    return np.stack([np.roll(vector, shift) for shift in range(n)])


def test_values_within_a_rounding_error_of_each_other_keep_their_order() -> None:
    assert ascending(np.array([0.1 + 0.2, 0.3, 0.1])).tolist() == [2, 0, 1]
    assert ascending(np.array([[2.0, 1.0], [1.0 + 1e-9, 1.0]])).tolist() == [[1, 0], [0, 1]]
    assert ascending(np.array([0.3001, 0.3])).tolist() == [1, 0]
    assert ascending(np.array([1e-9, 0.0, -1e-9])).tolist() == [2, 1, 0]


@pytest.mark.parametrize("n", [7, 8, 11])
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_tie_but_for_rounding_are_chosen_alike_in_any_order(n: int, seed: int, way: str) -> None:
    vectors = shifts(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_array_equal(krum(vectors[order], byzantine_count=1).vector, krum(vectors, byzantine_count=1).vector)
    two = multi_krum(vectors, byzantine_count=1, selected=2).vector
    np.testing.assert_allclose(multi_krum(vectors[order], byzantine_count=1, selected=2).vector, two, atol=1e-6)
    mixed = nnm(vectors, byzantine_count=2)
    np.testing.assert_allclose(nnm(vectors[order], byzantine_count=2), mixed[order], atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 4, 6, 13])
@pytest.mark.parametrize("double", [False, True])
def test_the_products_of_any_number_of_rows_are_those_of_float64(n: int, double: bool, way: str) -> None:
    vectors = rows(n, 70_001)
    wide = vectors.astype(np.float64)
    found = products(vectors, None, double=double)
    np.testing.assert_array_equal(found[n], 0.0)  # the origin
    np.testing.assert_allclose(found[:n, :n], wide @ wide.T, rtol=0, atol=70_001 * (1e-14 if double else 1e-7))


def test_equal_rows_are_at_distance_zero_however_their_products_were_rounded(way: str) -> None:
    vectors = rows()
    vectors[[1, 2, 4, 6, 7, 8]] = vectors[1]
    result = geometric_median(vectors, byzantine_count=3)
    assert result.distances is not None
    np.testing.assert_array_equal(result.distances[[1, 2, 4, 6, 7, 8]], 0.0)
    np.testing.assert_allclose(result.vector, vectors[1], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-18, 1e-22, 1e-25, 1e-40])
@pytest.mark.parametrize("name", ["geometric_median", "centered_clipping", "krum", "multi_krum", "filter_l2"])
def test_rows_too_small_for_squares_in_float32_are_told_apart(name: str, size: float, way: str) -> None:
    honest = 1.0 + rows()
    honest[3] = -100.0
    vectors = (honest * size).astype(np.float32)
    found = AGGREGATORS[name](vectors, byzantine_count=1)
    wanted = AGGREGATORS[name](vectors.astype(np.float64) / size, byzantine_count=1)
    assert found.weights is not None
    assert wanted.weights is not None
    assert found.distances is not None
    assert wanted.distances is not None
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=0.01, atol=1e-3)
    np.testing.assert_allclose(found.distances, wanted.distances * size, rtol=1e-2)


def test_rows_of_zeros_cost_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = rows()
    vectors[[2, 5]] = 0.0
    passes = []

    def counted(*given: Any, **told: Any) -> Any:
        passes.append(told)
        return products(*given, **told)

    monkeypatch.setattr(gram, "_products", counted)
    krum(vectors, byzantine_count=2)
    assert passes == [{"double": False}]
    krum((vectors * 1e-20).astype(np.float32), byzantine_count=2)
    assert passes[1:] == [{"double": False}, {"double": True}]


def test_rows_that_differ_only_far_behind_are_not_taken_for_equal(way: str) -> None:
    vectors = np.tile(rows(1), (9, 1))
    vectors[2, LARGE - 1] += 1.0
    vectors[5, LARGE - 2] += 2.0
    result = geometric_median(vectors, byzantine_count=2)
    assert result.distances is not None
    np.testing.assert_allclose(result.distances, [0, 0, 1, 0, 0, 2, 0, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("name", ["geometric_median", "centered_clipping", "krum", "multi_krum", "filter_l2", "dnc"])
def test_an_outlier_whose_square_leaves_float32_spoils_no_distance_in_large_inputs(name: str, way: str) -> None:
    vectors = rows()
    vectors[4] = 1e30
    honest = np.delete(vectors, 4, axis=0).astype(np.float64)
    result = AGGREGATORS[name](vectors, byzantine_count=1)
    spread = np.sqrt(((honest - honest.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert np.linalg.norm(result.vector - honest.mean(axis=0)) < 1.3 * spread
    assert result.distances is not None
    exact = np.linalg.norm(np.delete(vectors, 4, axis=0) - result.vector, axis=1)
    np.testing.assert_allclose(np.delete(result.distances, 4), exact, rtol=1e-4, atol=1e-2)


def test_rows_ten_orders_of_magnitude_closer_to_each_other_than_to_the_origin_keep_their_distances() -> None:
    vectors = 1e10 + np.random.default_rng(3).standard_normal((9, 300))
    exact = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    result = krum(vectors, byzantine_count=2)
    assert result.weights is not None
    chosen = int(np.argmax(result.weights))
    assert chosen == int(np.argmin(np.sort(exact**2, axis=1)[:, 1:6].sum(axis=1)))
    assert result.distances is not None
    np.testing.assert_allclose(result.distances, exact[chosen], rtol=1e-6)


def test_a_starting_point_counts_in_large_inputs_too() -> None:
    vectors, start = rows(), np.linspace(-1.0, 1.0, LARGE)
    wide, centre = vectors.astype(np.float64), start
    for _ in range(2):
        factor = np.minimum(1.0, 90.0 / np.linalg.norm(wide - centre, axis=1))
        centre = centre + (factor[:, None] * (wide - centre)).mean(axis=0)
    result = centered_clipping(vectors, byzantine_count=2, radius=90.0, iterations=2, start=start)
    np.testing.assert_allclose(result.vector, centre, atol=2e-5)


def test_centered_clipping_by_default_takes_a_new_radius_around_each_centre() -> None:
    vectors = rows(9, 40)
    vectors[:3] += 5.0
    wide = vectors.astype(np.float64)
    squared = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    compact = int(np.argmin(np.sort(squared, axis=1)[:, :5].sum(axis=1)))
    centre = wide[np.argsort(squared[compact])[:5]].mean(axis=0)
    for _ in range(5):
        distances = np.linalg.norm(wide - centre, axis=1)
        factor = np.minimum(1.0, np.median(distances) / distances)
        centre = centre + (factor[:, None] * (wide - centre)).mean(axis=0)
    np.testing.assert_allclose(centered_clipping(vectors, byzantine_count=3).vector, centre, atol=1e-5)


def filtered(vectors: Rows, f: int) -> list[tuple[float, Rows]]:
    """Every iterate of FilterL2 on the rows themselves: its largest variance and its weights."""
    remaining, seen = np.ones(len(vectors)), []
    while remaining.sum() >= len(vectors) - 2 * f:
        share = remaining / remaining.sum()
        centred = vectors - share @ vectors
        variances, directions = np.linalg.eigh((share[:, None] * centred).T @ centred)
        seen.append((float(variances[-1]), share))
        along = np.where(share > 0.0, (centred @ directions[:, -1]) ** 2, 0.0)
        remaining = remaining * (1.0 - along / along.max())
    return seen


def test_filter_l2_takes_the_weights_that_left_the_least_variance_and_not_the_last_ones() -> None:
    last_was_best = []
    for seed in range(20):
        vectors = np.random.default_rng(seed).standard_normal((12, 3)).astype(np.float32)
        iterates = filtered(vectors.astype(np.float64), 3)
        least, wanted = min(iterates, key=lambda iterate: iterate[0])
        last_was_best.append(least == iterates[-1][0])
        weights = filter_l2(vectors, byzantine_count=3).weights
        assert weights is not None
        np.testing.assert_allclose(weights, wanted, atol=1e-6)
    assert not all(last_was_best)


def test_dnc_drops_what_any_of_its_iterations_marked_and_keeps_the_least_marked_if_nothing_is_clean() -> None:
    vectors = np.random.default_rng(1).standard_normal((9, 40)).astype(np.float32)
    kept = []
    for iterations in (1, 2):
        result = dnc(vectors, byzantine_count=2, sampled=3, iterations=iterations, rng=np.random.default_rng(5))
        assert result.weights is not None
        kept.append(set(np.flatnonzero(result.weights).tolist()))
    assert len(kept[0]) == 7
    assert kept[1] < kept[0]
    everything_marked = dnc(vectors, byzantine_count=4, sampled=3, iterations=40, rng=np.random.default_rng(5))
    assert everything_marked.weights is not None
    assert 1 <= np.count_nonzero(everything_marked.weights) < 9
    assert everything_marked.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", [*sorted(AGGREGATORS), "centered_clipping from a start"])
def test_memory_beyond_input_and_output_does_not_grow_with_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_cores", lambda: 2)  # each thread has tiles of its own
    monkeypatch.setattr(compiled, "_load", lambda: None)  # nor does a compiler count
    vectors = rows(3, 2_000_000)
    rule, _, start = name.partition(" from a ")
    settings = {"start": vectors[0]} if start else {}
    tracemalloc.start()
    try:
        result = AGGREGATORS[rule](vectors, byzantine_count=0, **settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - result.vector.nbytes < 5_000_000 < vectors[0].nbytes
