"""Each attack does what its paper says, touches nothing, and the searching ones are never weaker than the plain ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.attacks import ATTACKS, COORDINATE_ATTACKS, alie_z
from fedrep.errors import InvalidInputError, NonFiniteError
from fedrep.sparsify import top_k

Vectors = NDArray[Any]


def updates(h: int = 25, d: int = 40, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=d) + 0.7 * rng.normal(size=(h, d))).astype(np.float32)


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def mean_rule(vectors: Vectors) -> Vectors:
    result: Vectors = vectors.mean(axis=0)
    return result


def trimmed_mean(vectors: Vectors, f: int = 7) -> Vectors:
    result: Vectors = np.sort(vectors, axis=0)[f : len(vectors) - f].mean(axis=0)
    return result


def krum_choice(vectors: Vectors, f: int) -> int:
    wide = vectors.astype(np.float64)
    distances = np.sort(np.sum((wide[:, None] - wide[None]) ** 2, axis=2), axis=1)
    return int(np.argmin(distances[:, 1 : len(vectors) - f - 1].sum(axis=1)))


RULES: dict[str, Callable[[Vectors], Vectors]] = {
    "mean": mean_rule,
    "trimmed_mean": trimmed_mean,
    "krum": lambda vectors: vectors[krum_choice(vectors, 7)],
}


def test_the_catalogue_is_complete() -> None:
    named = "bitflip, signflip, alie, foe, opt_alie, opt_foe, mimic, minmax, minsum, fang, gaussian, nonfinite"
    assert ", ".join(ATTACKS) == named
    assert list(COORDINATE_ATTACKS) == ["min", "random", "same"]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_attack_returns_writable_rows_of_the_honest_type_and_leaves_its_input_alone(
    name: str, dtype: type, count: int
) -> None:
    honest: Vectors = updates(5, 9).astype(dtype)
    before = honest.copy()
    sent = ATTACKS[name](honest, count, generator())
    assert sent.shape == (count, 9)
    assert sent.dtype == dtype
    sent[...] = 0.0
    np.testing.assert_array_equal(honest, before)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_determined_by_its_generator(name: str) -> None:
    first, second = (ATTACKS[name](updates(), 7, generator()) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "nonfinite"])
@pytest.mark.parametrize("honest", [np.ones((4, 3)), np.zeros((4, 3)), np.full((1, 3), 2.0)])
def test_equal_or_lonely_honest_updates_break_no_attack(name: str, honest: Vectors) -> None:
    settings = {"z": 1.0} if name == "alie" else {}
    assert np.isfinite(ATTACKS[name](honest, 1, generator(), **settings)).all()


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_refuses_what_is_not_a_set_of_updates(name: str) -> None:
    for wrong in (np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0)), np.array([["a"]])):
        with pytest.raises(InvalidInputError):
            ATTACKS[name](wrong, 1, generator())
    with pytest.raises(InvalidInputError, match="-1 Byzantine"):
        ATTACKS[name](updates(), -1, generator())
    broken = updates(3, 4)
    broken[1, 2] = np.nan
    with pytest.raises(NonFiniteError, match="update 1 holds nan at index 2"):
        ATTACKS[name](broken, 1, generator())


def test_bitflip_negates_the_own_update_and_signflip_the_mean() -> None:
    honest, own = updates(), updates(7, seed=3)
    np.testing.assert_array_equal(ATTACKS["bitflip"](honest, 7, own=own), -own)
    np.testing.assert_array_equal(ATTACKS["bitflip"](honest, 3), -honest[:3])
    np.testing.assert_allclose(ATTACKS["signflip"](honest, 2)[1], -honest.mean(axis=0), rtol=1e-5)
    with pytest.raises(InvalidInputError, match="7 attackers"):
        ATTACKS["bitflip"](honest, 7, own=own[:3])


def test_alie_z_follows_the_formula() -> None:
    assert alie_z(32, 7) == pytest.approx(0.253, abs=5e-4)
    # 2 supporters among 26 honest silos
    assert 0.5 * (1 + math.erf(alie_z(50, 24) / math.sqrt(2))) == pytest.approx(24 / 26)


@pytest.mark.parametrize(("silos", "byzantine"), [(2, 1), (10, 6)])
def test_alie_without_an_honest_majority_asks_for_z(silos: int, byzantine: int) -> None:
    with pytest.raises(InvalidInputError, match="give z instead"):
        alie_z(silos, byzantine)


@pytest.mark.parametrize("sign", [-1, 1])
def test_alie_shifts_every_coordinate_by_z_deviations(sign: int) -> None:
    honest = updates()
    expected = honest.mean(axis=0) + sign * alie_z(32, 7) * honest.std(axis=0)
    np.testing.assert_allclose(ATTACKS["alie"](honest, 7, sign=sign)[6], expected, rtol=1e-5, atol=1e-6)
    fixed = honest.mean(axis=0) + sign * 1.5 * honest.std(axis=0)
    np.testing.assert_allclose(ATTACKS["alie"](honest, 7, z=1.5, sign=sign)[0], fixed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 100.0])
def test_foe_turns_the_mean_around(epsilon: float) -> None:
    honest = updates()
    sent = ATTACKS["foe"](honest, 7, epsilon=epsilon)
    np.testing.assert_allclose(sent[0], -epsilon * honest.mean(axis=0), rtol=1e-4)
    assert float(sent[0] @ honest.mean(axis=0)) < 0
    np.testing.assert_array_equal(ATTACKS["foe"](honest, 7), ATTACKS["foe"](honest, 7, epsilon=0.5))


def damage(honest: Vectors, sent: Vectors, rule: Callable[[Vectors], Vectors]) -> float:
    return float(np.linalg.norm(rule(np.concatenate((honest, sent))) - honest.mean(axis=0)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("plain", "searching"), [("alie", "opt_alie"), ("foe", "opt_foe")])
def test_a_searching_attack_is_never_weaker_than_the_plain_one(plain: str, searching: str, rule: str) -> None:
    for seed in range(3):
        honest = updates(seed=seed)
        weak = damage(honest, ATTACKS[plain](honest, 7), RULES[rule])
        strong = damage(honest, ATTACKS[searching](honest, 7, rule=RULES[rule]), RULES[rule])
        assert strong >= weak - 1e-5


def test_optimised_alie_finds_a_larger_shift_than_the_formula_where_the_rule_lets_it() -> None:
    honest = updates()
    plain = damage(honest, ATTACKS["alie"](honest, 7), trimmed_mean)
    assert damage(honest, ATTACKS["opt_alie"](honest, 7, rule=trimmed_mean), trimmed_mean) > 1.5 * plain


@pytest.mark.parametrize("rule", ["trimmed_mean", "krum"])
def test_the_search_comes_close_to_the_worst_of_a_fine_grid(rule: str) -> None:
    for seed in range(3):
        honest = updates(seed=seed)
        grid = [damage(honest, ATTACKS["alie"](honest, 7, z=z), RULES[rule]) for z in np.linspace(-5, 5, 401)]
        found = damage(honest, ATTACKS["opt_alie"](honest, 7, rule=RULES[rule]), RULES[rule])
        assert found >= 0.99 * max(grid)


def test_the_search_takes_results_with_a_vector_and_survives_a_rule_that_works_in_place() -> None:
    class Result:
        def __init__(self, vector: Vectors) -> None:
            self.vector = vector

    def in_place(vectors: Vectors) -> Result:
        result = Result(trimmed_mean(vectors))
        vectors[...] = 1e9
        return result

    honest = updates()
    expected = ATTACKS["opt_alie"](honest, 7, rule=trimmed_mean)
    np.testing.assert_array_equal(ATTACKS["opt_alie"](honest, 7, rule=in_place), expected)


def test_mimic_copies_one_honest_silo_the_one_that_differs_most() -> None:
    honest = updates(6, 8)
    honest[4] += 50.0
    for row in ATTACKS["mimic"](honest, 3):
        np.testing.assert_array_equal(row, honest[4])
    np.testing.assert_array_equal(ATTACKS["mimic"](honest, 1, target=2)[0], honest[2])
    with pytest.raises(InvalidInputError, match="silo 6 cannot be mimicked"):
        ATTACKS["mimic"](honest, 1, target=6)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(2, 12), st.sampled_from(["std", "unit", "sign"]))
def test_minmax_reaches_the_largest_honest_distance_and_minsum_the_largest_sum(seed: int, h: int, direction: str) -> None:
    honest = updates(h, 6, seed).astype(np.float64)
    pairwise = np.sum((honest[:, None] - honest[None]) ** 2, axis=2)
    farthest = np.sum((ATTACKS["minmax"](honest, 1, direction=direction)[0] - honest) ** 2, axis=1).max()
    assert farthest == pytest.approx(pairwise.max(), rel=1e-8)
    total = np.sum((ATTACKS["minsum"](honest, 1, direction=direction)[0] - honest) ** 2)
    assert total == pytest.approx(pairwise.sum(axis=1).max(), rel=1e-8)


def test_an_unknown_direction_kind_or_target_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="direction"):
        ATTACKS["minmax"](updates(), 1, direction="up")
    with pytest.raises(InvalidInputError, match="kind"):
        ATTACKS["nonfinite"](updates(), 1, kind="zero")
    with pytest.raises(InvalidInputError, match="'trimmed_mean' or 'krum'"):
        ATTACKS["fang"](updates(), 1, generator(), against="mean")
    with pytest.raises(InvalidInputError, match="sign"):
        ATTACKS["alie"](updates(), 7, sign=0)


def test_fang_stays_just_outside_the_honest_values_against_their_mean() -> None:
    honest = updates()
    sent = ATTACKS["fang"](honest, 7, generator())
    rising = honest.mean(axis=0) > 0
    low, high = honest.min(axis=0), honest.max(axis=0)
    assert (sent[:, rising] <= low[rising]).all()
    assert (sent[:, ~rising] >= high[~rising]).all()
    assert (np.abs(sent) <= 2 * np.maximum(np.abs(low), np.abs(high)) + 1e-6).all()
    assert len(np.unique(sent[:, 0])) == 7
    assert damage(honest, sent, trimmed_mean) > damage(honest, ATTACKS["signflip"](honest, 7, scale=0.0), trimmed_mean)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("agreement", [0.05, 1.0, 20.0])
def test_fang_against_krum_is_chosen_by_krum_and_works_against_the_mean(seed: int, agreement: float) -> None:
    rng = np.random.default_rng(seed)
    honest = agreement * rng.normal(size=40) + 0.7 * rng.normal(size=(25, 40))
    sent = ATTACKS["fang"](honest, 7, against="krum")
    assert krum_choice(np.concatenate((honest, sent)), 7) >= len(honest)
    direction = np.sign(honest.mean(axis=0))
    assert float(sent[0] @ direction) < float(honest.mean(axis=0) @ direction) - 0.1
    if agreement < 0.1:  # little in common: as in Fang's paper, the attack starts from no change at all
        assert float(sent[0] @ direction) < 0


def test_gaussian_noise_is_relative_to_the_updates_and_differs_between_attackers() -> None:
    honest = updates(d=4000)
    sent = ATTACKS["gaussian"](honest, 2, generator(), scale=3.0)
    assert sent.std() == pytest.approx(3.0 * math.sqrt(float(np.mean(honest.astype(np.float64) ** 2))), rel=0.05)
    assert not np.array_equal(sent[0], sent[1])


def test_nonfinite_sends_what_it_says() -> None:
    assert np.isnan(ATTACKS["nonfinite"](updates(), 2)).all()
    assert np.isposinf(ATTACKS["nonfinite"](updates(), 2, kind="inf")).all()
    assert (ATTACKS["nonfinite"](updates(), 2, kind="huge") == np.float32(1e30)).all()


def test_attacks_that_draw_ask_for_a_generator() -> None:
    for name in ("fang", "gaussian"):
        with pytest.raises(InvalidInputError, match="generator"):
            ATTACKS[name](updates(), 1)
    for name in ("random", "same"):
        with pytest.raises(InvalidInputError, match="generator"):
            COORDINATE_ATTACKS[name](updates(), 3)


def test_statistics_over_many_tiles_equal_those_over_one() -> None:
    honest = np.random.default_rng(0).normal(size=(3, 150_000)).astype(np.float32)
    np.testing.assert_allclose(ATTACKS["signflip"](honest, 1)[0], -honest.mean(axis=0), rtol=1e-4, atol=1e-6)
    far = ATTACKS["minmax"](honest, 1)[0].astype(np.float64)
    pairwise = max(float(np.sum((a.astype(np.float64) - b) ** 2)) for a in honest for b in honest)
    assert max(float(np.sum((far - row) ** 2)) for row in honest) == pytest.approx(pairwise, rel=1e-5)


@pytest.mark.parametrize("name", COORDINATE_ATTACKS)
@pytest.mark.parametrize("given", ["one", "several"])
def test_coordinate_attacks_pass_for_proposals(name: str, given: str) -> None:
    honest = updates(4, 30)
    for k in (1, 7, 30):
        chosen = COORDINATE_ATTACKS[name](honest[0] if given == "one" else honest, k, generator())
        assert chosen.shape == (k,)
        assert (np.diff(chosen) > 0).all()
        assert chosen[0] >= 0
        assert chosen[-1] < 30
    for k in (0, 31):
        with pytest.raises(InvalidInputError):
            COORDINATE_ATTACKS[name](honest, k, generator())


def test_coordinate_attacks_choose_what_they_say() -> None:
    vector = np.array([5.0, -0.1, 3.0, 0.0, -7.0])
    assert COORDINATE_ATTACKS["min"](vector, 2).tolist() == [1, 3]
    assert COORDINATE_ATTACKS["same"](vector, 2).tolist() == [0, 4]
    honest = updates(4, 30)
    same = COORDINATE_ATTACKS["same"](honest, 5, generator()).tolist()
    assert same in [top_k(row, 5).tolist() for row in honest]
    seen = {tuple(COORDINATE_ATTACKS["random"](vector, 1, np.random.default_rng(seed))) for seed in range(60)}
    assert len(seen) == 5
