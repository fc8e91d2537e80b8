"""Each rule against its definition, computed the slow and direct way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedrep.aggregators import (
    AGGREGATORS,
    AggregatorWarning,
    arc,
    bucketing,
    build_rule,
    centered_clipping,
    clip,
    conditions,
    dnc,
    filter_l2,
    geometric_median,
    krum,
    meamed,
    mean,
    median,
    multi_krum,
    nnm,
    tolerated,
    trimmed_mean,
)
from fedrep.aggregators.network import pruned_network, run
from fedrep.aggregators.robustness import STATED, constants_table, measured_constants
from fedrep.errors import InvalidInputError, SettingsError


def rows(n: int = 11, d: int = 700, seed: int = 0, offset: float = 0.5) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal((n, d)) + offset).astype(np.float32)


def distances(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = vectors.astype(np.float64)
    found: np.ndarray[Any, Any] = np.linalg.norm(wide[:, None] - wide[None], axis=2)
    return found


@pytest.mark.parametrize("n", range(1, 34))
def test_a_sorting_network_sorts_every_zero_one_input_it_is_tried_on(n: int) -> None:
    tried = np.random.default_rng(n).integers(0, 2, (n, 400)).astype(np.float32)
    tried[:, : n + 1] = np.tri(n + 1, n, -1).T
    wires = list(tried)
    run(pruned_network(n, frozenset(range(n)), frozenset()), wires, list(np.empty((n + 2, 400), np.float32)))
    np.testing.assert_array_equal(np.array(wires), np.sort(tried, axis=0))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 15, 16, 17, 32])
def test_the_median_is_numpys(n: int, way: str) -> None:
    np.testing.assert_array_equal(median(rows(n)).vector, np.median(rows(n), axis=0))


@pytest.mark.parametrize(("n", "f"), [(3, 1), (8, 3), (16, 7), (16, 0), (32, 6), (33, 16)])
def test_the_trimmed_mean_drops_f_values_on_each_side(n: int, f: int, way: str) -> None:
    kept = np.sort(rows(n).astype(np.float64), axis=0)[f : n - f]
    np.testing.assert_allclose(trimmed_mean(rows(n), byzantine_count=f).vector, kept.mean(axis=0), atol=1e-6)


def test_the_papers_trimming_fraction_drops_seven_of_sixteen() -> None:
    wanted = trimmed_mean(rows(16), byzantine_count=7).vector
    for fraction in ("7/16", 7 / 16):
        np.testing.assert_array_equal(trimmed_mean(rows(16), byzantine_count=2, fraction=fraction).vector, wanted)
    for wrong in (0.5, -0.1, "x", "1/0", float("nan")):
        with pytest.raises(SettingsError, match="fraction"):
            trimmed_mean(rows(16), fraction=wrong)


@pytest.mark.parametrize(("n", "f", "fraction"), [(15, 7, "7/16"), (19, 2, 0.1), (8, 3, 0.0)])
def test_a_trimming_fraction_leaves_none_of_f_rows_in_when_some_are_missing(n: int, f: int, fraction: float | str) -> None:
    vectors = rows(n)
    vectors[:f] = -100.0
    result = trimmed_mean(vectors, byzantine_count=f, fraction=fraction)
    np.testing.assert_array_equal(result.vector, trimmed_mean(vectors, byzantine_count=f).vector)
    assert result.vector.min() > -10


@pytest.mark.parametrize(("n", "f"), [(3, 1), (8, 3), (16, 7), (16, 0), (32, 6), (7, 3)])
def test_meamed_averages_the_values_nearest_to_the_median(n: int, f: int, way: str) -> None:
    wide = rows(n).astype(np.float64)
    nearest = np.argsort(np.abs(wide - np.median(wide, axis=0)), axis=0)[: n - f]
    wanted = np.take_along_axis(wide, nearest, axis=0).mean(axis=0)
    np.testing.assert_allclose(meamed(rows(n), byzantine_count=f).vector, wanted, atol=1e-6)


def test_the_mean_weights_buffers_by_their_survivors() -> None:
    vectors = rows(4)
    wanted = np.average(vectors.astype(np.float64), axis=0, weights=[4, 3, 0, 2])
    result = mean(vectors, weights=[4, 3, 0, 2])
    np.testing.assert_allclose(result.vector, wanted, atol=1e-6)
    assert result.weights is not None
    np.testing.assert_allclose(result.weights, np.array([4, 3, 0, 2]) / 9)
    for wrong in ([1, 2], [0, 0, 0, 0], [1, 1, 1, -1], [1, 1, 1, np.nan]):
        with pytest.raises(InvalidInputError, match="weight"):
            mean(vectors, weights=wrong)


def test_survivors_count_for_the_mean_also_behind_pre_steps() -> None:
    vectors, survivors = rows(5), np.array([4.0, 1.0, 3.0, 0.0, 2.0])
    # Every way of putting the rows: a pre-step may reorder them, and their weights have to go along.
    for order in (np.arange(5), np.array([3, 1, 4, 0, 2])):
        shortened = mean(vectors[order], weights=survivors[order], pre=["clip"])
        wanted = np.average(clip(vectors), axis=0, weights=survivors)
        np.testing.assert_allclose(shortened.vector, wanted, atol=1e-6)
        everybody = mean(vectors[order], weights=survivors[order], pre=["nnm"])  # f = 0: all are neighbours of all
        np.testing.assert_allclose(everybody.vector, vectors.mean(axis=0), atol=1e-6)
    single = np.eye(5, dtype=np.float32)  # so that a bucket's mean says who is in it
    buckets = bucketing(single, rng=np.random.default_rng(3))
    heavy = np.array([survivors[bucket > 0].mean() for bucket in buckets])
    pairs = mean(single, weights=survivors, pre=["bucketing"], rng=np.random.default_rng(3))
    np.testing.assert_allclose(pairs.vector, np.average(buckets, axis=0, weights=heavy), atol=1e-6)
    nothing = mean(0 * vectors, weights=survivors, pre=["clip"])  # shortened to nothing, and still there
    np.testing.assert_array_equal(nothing.vector, 0 * vectors[0])


@pytest.mark.parametrize("outlier", [0.0, 1e3, 1e12])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_weiszfeld_on_the_gram_matrix_is_weiszfeld_on_the_rows(outlier: float, offset: float, way: str) -> None:
    vectors = rows(offset=offset)
    vectors[:3] += np.float32(outlier)
    wide = vectors.astype(np.float64)
    spread = distances(vectors)
    compact = np.argmin(np.sort(spread**2, axis=1)[:, :6].sum(axis=1))
    z = wide[np.argsort(spread[compact])[:6]].mean(axis=0)
    nu = 0.1 * np.median(np.linalg.norm(wide - z, axis=1))
    for _ in range(5):
        weights = 1 / np.maximum(nu, np.linalg.norm(wide - z, axis=1))
        z = weights @ wide / weights.sum()
    result = geometric_median(vectors, byzantine_count=3)
    assert np.linalg.norm(result.vector - z) < 3e-7 * np.linalg.norm(z) + 1e-6 * np.median(spread)
    assert result.weights is not None
    np.testing.assert_allclose(result.weights, weights / weights.sum(), rtol=1e-4)


@pytest.mark.parametrize("start", ["zero", "mean", "vector"])
def test_centered_clipping_follows_its_definition_from_any_start(start: str) -> None:
    vectors = rows()
    vectors[:3] *= 50
    wide = vectors.astype(np.float64)
    given: Any = np.linspace(-1, 1, vectors.shape[1]) if start == "vector" else start
    v = {"zero": np.zeros(700), "mean": wide.mean(axis=0)}.get(start, given)
    for _ in range(5):
        factor = np.minimum(1, 3.0 / np.linalg.norm(wide - v, axis=1))
        v = v + (factor[:, None] * (wide - v)).mean(axis=0)
    result = centered_clipping(vectors, byzantine_count=3, radius=3.0, start=given)
    np.testing.assert_allclose(result.vector, v, atol=2e-5)
    assert result.distances is not None
    np.testing.assert_allclose(result.distances, np.linalg.norm(wide - v, axis=1), rtol=1e-5)


def test_a_bad_starting_point_is_refused() -> None:
    for wrong in ("middle", np.zeros(3), np.full(700, np.nan), np.full(700, 1e300)):
        with pytest.raises((SettingsError, InvalidInputError), match=r"[Ss]tart"):
            centered_clipping(rows(), start=wrong)


def test_centered_clipping_may_start_at_one_of_its_rows() -> None:
    vectors = rows()
    wide, v = vectors.astype(np.float64), vectors[4].astype(np.float64)
    apart = np.linalg.norm(wide - v, axis=1)
    factor = np.where(apart > 3.0, 3.0 / np.maximum(apart, 1.0), 1.0)
    v = v + (factor[:, None] * (wide - v)).mean(axis=0)
    result = centered_clipping(vectors, byzantine_count=3, radius=3.0, iterations=1, start=vectors[4])
    np.testing.assert_allclose(result.vector, v, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("seed", range(5))
def test_krum_takes_the_row_with_the_nearest_n_minus_f_minus_2_others(seed: int, offset: float) -> None:
    vectors = rows(seed=seed, offset=offset)
    squared = np.sort(distances(vectors) ** 2, axis=1)[:, 1 : 1 + 11 - 3 - 2]
    best = np.argsort(squared.sum(axis=1))
    result = krum(vectors, byzantine_count=3)
    assert result.weights is not None
    assert np.flatnonzero(result.weights).tolist() == [best[0]]
    np.testing.assert_array_equal(result.vector, vectors[best[0]])
    for selected, given in ((8, None), (2, 2)):
        wanted = vectors[best[:selected]].astype(np.float64).mean(axis=0)
        several = multi_krum(vectors, byzantine_count=3, selected=given)
        np.testing.assert_allclose(several.vector, wanted, rtol=1e-6, atol=1e-6)


def test_multi_krum_selects_no_more_rows_than_are_honest() -> None:
    vectors = rows(n=9)
    vectors[:3] = -100.0
    with pytest.warns(AggregatorWarning, match="multi_krum selects 6 rows, not 8: 3 of 9 may be Byzantine"):
        result = multi_krum(vectors, byzantine_count=3, selected=8)
    assert len(result.notes) == 1
    np.testing.assert_array_equal(result.vector, multi_krum(vectors, byzantine_count=3).vector)
    assert conditions("multi_krum", 9, 3, {"selected": 6}) == []
    wanted = "multi_krum is to select 7 of 9 rows, of which 3 may be Byzantine: 6 are the most."
    assert conditions("multi_krum", 9, 3, {"selected": 7}) == [wanted]


def test_a_large_common_offset_costs_the_distances_no_precision_in_large_inputs() -> None:
    vectors = rows(n=9, d=70_000, offset=1e4)
    vectors[3] = vectors[5]
    result = krum(vectors, byzantine_count=1)
    squared = np.sort(distances(vectors) ** 2, axis=1)[:, 1:7].sum(axis=1)
    assert result.weights is not None
    assert squared[int(np.argmax(result.weights))] == squared.min()
    assert result.distances is not None
    np.testing.assert_allclose(result.distances, distances(vectors)[int(np.argmax(result.weights))], rtol=1e-6)


def test_filter_l2_removes_what_spreads_along_one_direction() -> None:
    vectors = rows(20)
    vectors[:4] += 2.0
    result = filter_l2(vectors, byzantine_count=4)
    assert result.weights is not None
    assert result.weights[:4].max() < 0.01 < result.weights[4:].min()
    np.testing.assert_allclose(filter_l2(vectors, byzantine_count=4, variance=1e9).vector, vectors.mean(axis=0), atol=1e-5)


def test_dnc_drops_the_rows_furthest_along_the_widest_direction_for_any_sample() -> None:
    vectors = rows(20)
    vectors[:4] += 2.0
    for seed in range(5):
        result = dnc(vectors, byzantine_count=4, sampled=100, iterations=3, rng=np.random.default_rng(seed))
        assert result.weights is not None
        np.testing.assert_array_equal(result.weights[:4], 0)


@pytest.mark.parametrize(("f", "removed", "marked"), [(1, 1.0, 1), (3, 1.0, 3), (1, 1.5, 2), (3, 1.1, 4), (10, 1.1, 11)])
def test_dnc_rounds_the_rows_it_marks_up(f: int, removed: float, marked: int) -> None:
    result = dnc(rows(n=24), byzantine_count=f, removed=removed)
    assert result.weights is not None
    assert np.count_nonzero(result.weights == 0.0) == marked
    with pytest.raises(SettingsError, match="removed is how many times f rows are marked, so it must be at least 1"):
        conditions("dnc", 24, f, {"removed": 0.9})


def test_nnm_replaces_each_row_by_the_mean_of_its_neighbours(way: str) -> None:
    vectors = rows()
    nearest = np.argsort(distances(vectors), axis=1)[:, :8]
    wanted = vectors.astype(np.float64)[nearest].mean(axis=1)
    np.testing.assert_allclose(nnm(vectors, byzantine_count=3), wanted, atol=1e-6)


def test_arc_shortens_the_longest_rows_to_the_next_length() -> None:
    vectors = rows() * np.arange(1, 12, dtype=np.float32)[:, None]
    shortened = arc(vectors, byzantine_count=3)
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    limit = np.sort(norms)[11 - 4 - 1]  # floor(2 * 3 * 8 / 11) = 4 rows
    np.testing.assert_allclose(np.linalg.norm(shortened, axis=1), np.minimum(norms, limit), rtol=1e-6)
    np.testing.assert_allclose(shortened[0], vectors[0], rtol=1e-6)


def test_clipping_is_relative_to_the_median_length_unless_told() -> None:
    vectors = rows() * np.arange(1, 12, dtype=np.float32)[:, None]
    norms = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(np.linalg.norm(clip(vectors), axis=1), np.minimum(norms, np.median(norms)), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(clip(vectors, radius=2.0), axis=1), 2.0, rtol=1e-5)
    with pytest.warns(AggregatorWarning, match="no effect"):
        np.testing.assert_allclose(clip(vectors, radius=1e6), vectors, rtol=1e-6)


def test_bucketing_averages_every_row_once() -> None:
    vectors = rows(7)
    buckets = bucketing(vectors, size=3, rng=np.random.default_rng(1))
    assert buckets.shape == (3, 700)
    np.testing.assert_allclose(np.array([3, 3, 1]) @ buckets, vectors.sum(axis=0), atol=1e-4)
    assert not np.allclose(buckets, bucketing(vectors, size=3, rng=np.random.default_rng(2)))


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_pre_steps_inside_a_rule_equal_pre_steps_written_out(name: str, way: str) -> None:
    vectors = rows(12)
    vectors[:2] += 3.0
    settings: dict[str, Any] = {"sampled": 10_000} if name == "dnc" else {}
    written = arc(vectors, byzantine_count=2)
    if name != "meamed":  # NNM makes twins, between which MeaMed has to choose by a rounding error
        written = nnm(written, byzantine_count=2)
    pre = ["arc"] if name == "meamed" else ["arc", "nnm"]
    inside = AGGREGATORS[name](vectors, byzantine_count=2, pre=pre, **settings).vector
    outside = AGGREGATORS[name](written, byzantine_count=2, **settings).vector
    np.testing.assert_allclose(inside, outside, atol=2e-5)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "meamed"])
@pytest.mark.parametrize("apart", [0.0, 3.0, -3.0])
def test_a_rule_on_mixed_rows_is_that_rule_on_each_coordinate_of_them(name: str, apart: float, way: str) -> None:
    vectors = rows(13, 1000)
    vectors[:4] += np.float32(apart)  # far apart, all other rows have the same neighbours and become one
    nearest = np.argsort(distances(vectors), axis=1)[:, :9]
    mixed = vectors.astype(np.float64)[nearest].mean(axis=1)
    assert (len(np.unique(np.sort(nearest, axis=1), axis=0)) <= 5) == (apart != 0.0)
    result = AGGREGATORS[name](vectors, byzantine_count=4, pre=["nnm"])
    ordered = np.sort(mixed, axis=0)
    middle = ordered[6]
    if name == "meamed":  # between two equally near values only a rounding error chooses, so the sum of distances counts
        near = np.abs(mixed - middle)
        best = np.sort(near, axis=0)[:9].sum(axis=0)
        windows = np.stack([ordered[at : at + 9] for at in range(5)])
        costs, means = np.abs(windows - middle).sum(axis=1), windows.mean(axis=1)
        off = np.where(costs < best + 1e-5, np.abs(means - result.vector), np.inf).min(axis=0)
        assert off.max() < 1e-6
    else:
        wanted = middle if name == "median" else ordered[4:9].mean(axis=0)
        np.testing.assert_allclose(result.vector, wanted, atol=1e-6)
    assert result.distances is not None
    np.testing.assert_allclose(result.distances, np.linalg.norm(vectors - result.vector, axis=1), rtol=1e-5)


def test_the_papers_absolute_scales_fail_on_small_updates_and_say_so_while_relative_ones_hold() -> None:
    honest = rows(12, offset=0.2) * np.float32(0.03 / np.sqrt(700))
    attack = np.full((4, 700), -0.08 / np.sqrt(700), np.float32)
    vectors = np.vstack([attack, honest])
    centre, plain = honest.mean(axis=0), vectors.mean(axis=0)
    cases: list[tuple[Any, dict[str, float]]] = [(geometric_median, {"smoothing": 0.1}), (centered_clipping, {"radius": 0.5})]
    for rule, absolute in cases:
        with pytest.warns(AggregatorWarning, match="had no effect"):
            fixed = rule(vectors, byzantine_count=4, **absolute)
        assert len(fixed.notes) == 1
        np.testing.assert_allclose(fixed.vector, plain, atol=1e-7)
        relative = rule(vectors, byzantine_count=4)
        assert relative.notes == ()
        assert np.linalg.norm(relative.vector - centre) < 0.7 * np.linalg.norm(plain - centre)


def test_scales_that_do_act_raise_no_warning() -> None:
    vectors = rows(offset=0.0)
    geometric_median(vectors, byzantine_count=3, smoothing=0.1)
    centered_clipping(vectors, byzantine_count=3, radius=0.5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("centered_clipping", {"radius": 0}),
        ("centered_clipping", {"radius": "big"}),
        ("geometric_median", {"smoothing": -1.0}),
        ("geometric_median", {"iterations": 0}),
        ("geometric_median", {"radius": 0.5}),
        ("trimmed_mean", {"fraction": 0.7}),
        ("multi_krum", {"selected": 0}),
        ("dnc", {"sampled": 0.5}),
        ("dnc", {"removed": 0.9}),
        ("mean", {"weights": [1, 2]}),
        ("average", {}),
    ],
)
def test_wrong_settings_show_when_the_rule_is_built(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        build_rule(name, settings)


@pytest.mark.parametrize(
    ("name", "settings", "pre", "n", "f"),
    [
        ("krum", {}, [{"name": "bucketing", "size": 4}], 32, 1),
        ("krum", {}, [{"name": "bucketing", "size": 4}, "nnm", {"name": "bucketing", "size": 8}], 160, 1),
        ("multi_krum", {"selected": 10}, [], 16, 3),
        ("multi_krum", {"selected": 60}, [{"name": "bucketing", "size": 2}], 200, 5),
        ("median", {}, [{"name": "bucketing", "size": 10**9}], 8, 0),
    ],
)
def test_settings_that_suit_the_rows_of_a_run_are_not_refused_for_those_of_a_trial(
    name: str, settings: dict[str, object], pre: list[Any], n: int, f: int
) -> None:
    assert conditions(name, n, f, settings, pre) == []


@pytest.mark.parametrize("step", ["median", {"size": 2}, {"name": "bucketing", "size": 0}, {"name": "nnm", "size": 2}])
def test_wrong_pre_steps_show_when_the_rule_is_built(step: Any) -> None:
    with pytest.raises(SettingsError):
        build_rule("median", {}, [step])


def test_a_built_rule_runs_with_its_settings_and_passes_weights_only_to_the_mean() -> None:
    vectors = rows(12)
    rule = build_rule("centered_clipping", {"radius": 1.0}, [{"name": "bucketing", "size": 2}, "nnm"])
    result = rule(vectors, byzantine_count=2, weights=[1] * 12, rng=np.random.default_rng(4))
    direct = centered_clipping(vectors, byzantine_count=2, radius=1.0, pre=["bucketing", "nnm"], rng=np.random.default_rng(4))
    np.testing.assert_array_equal(result.vector, direct.vector)
    weighted = build_rule("mean", {}, [])(vectors, byzantine_count=0, weights=np.arange(12))
    np.testing.assert_array_equal(weighted.vector, mean(vectors, weights=np.arange(12)).vector)


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
@pytest.mark.filterwarnings("ignore::fedrep.aggregators.AggregatorWarning")
def test_the_conditions_are_exactly_those_the_rule_enforces_or_notes_that_it_guarantees_nothing(name: str) -> None:
    for n in range(1, 12):
        for f in range(n):
            problems = conditions(name, n, f)
            try:
                kept = not AGGREGATORS[name](rows(n, 4), byzantine_count=f).notes
            except SettingsError:
                kept = False
            assert kept is (problems == [])
            assert all(problem.endswith(".") for problem in problems)


def test_conditions_count_buckets_and_trimmed_rows() -> None:
    assert conditions("median", 8, 3) == []
    assert conditions("median", 8, 3, {}, [{"name": "bucketing", "size": 2}]) != []
    assert conditions("trimmed_mean", 16, 7, {"fraction": "7/16"}) == []
    assert conditions("trimmed_mean", 16, 5, {"fraction": 0.25}) != []
    assert conditions("krum", 12, 3, {}, [{"name": "bucketing", "size": 2}]) != []
    for krums in ("krum", "multi_krum"):
        assert [tolerated(krums, n) for n in (2, 3, 4, 5, 8, 9, 16)] == [-1, 0, 0, 1, 2, 3, 6]
    assert [tolerated("median", n) for n in (1, 2, 3, 16)] == [0, 0, 1, 7]


@pytest.mark.slow
def test_every_rule_stays_within_its_stated_constant_of_definition_1() -> None:
    found = measured_constants()
    print(f"\n{constants_table(found)}")  # noqa: T201
    for rule, worst in found.items():
        assert worst.constant <= STATED[rule] <= 2 * worst.constant, rule
    assert measured_constants(("mean",))["mean"].constant > 1e6
