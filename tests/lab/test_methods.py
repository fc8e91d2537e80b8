"""The methods and attackers of the lab: identities between them, and what each must and must not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.aggregators import conditions
from fedrep.errors import SettingsError
from fedrep.sparsify import Coordinates
from fedrep_lab.adversary import Adversary
from fedrep_lab.cell import Cell
from fedrep_lab.methods import METHODS, Step
from fedrep_lab.methods.fedrep import FedREP
from fedrep_lab.methods.interface import Matrix, Method, Setting, Vector, buffer_groups, energy_kept
from fedrep_lab.methods.ring import Ring
from fedrep_lab.shards import load_dataset, silo_images
from fedrep_lab.silos import LayeredSilos, LoopedSilos, OneModuleSilos, StackedSilos, build_silos
from fedrep_lab.simulation import Training

TINY = Cell(
    dataset="digits", model="mlp", model_options={"hidden": [8]}, m=8, f=1, rounds=6, evaluations=2, evaluation_samples=100
)
D = 400


def setting(cell: Cell, d: int = D) -> Setting:
    return Setting(cell, d, np.arange(1, cell.m + 1), Adversary(cell, np.random.default_rng(1)))


def updates(m: int, d: int = D, seed: int = 0) -> Matrix:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=d) + 0.3 * rng.normal(size=(m, d))).astype(np.float32)


def method(cell: Cell) -> Method:
    return METHODS[cell.method](setting(cell))


def dense(step: Step, d: int = D) -> Matrix:
    if step.indices is None:
        return step.values
    full = np.zeros(d, np.float32)
    full[step.indices] = step.values
    return full


@pytest.mark.parametrize("attack", ["none", "bitflip", "alie", "opt_foe"])
@pytest.mark.parametrize("rule", ["centered_clipping", "trimmed_mean"])
def test_fedrep_with_k_equal_to_m_d_is_share(attack: str, rule: str) -> None:
    cell = replace(TINY, attack=attack, rule=rule, ratio=float(TINY.m))
    ours, rival = method(cell), method(replace(cell, method="share"))
    for number in range(1, 4):
        rows = updates(cell.m, seed=number)
        assert np.array_equal(dense(ours.step(rows.copy(), number)), dense(rival.step(rows.copy(), number)))


def test_fedrep_with_k_equal_to_m_d_trains_the_same_model_as_share() -> None:
    cell = replace(TINY, attack="alie", ratio=float(TINY.m), rule="geometric_median")
    models = []
    for name in ("fedrep", "share"):
        training = Training(replace(cell, method=name), build_silos(cell, None))
        training.run()
        models.append(training.model)
    assert np.array_equal(models[0], models[1])


def test_what_fedrep_does_not_send_stays_in_the_memory() -> None:
    cell = replace(TINY, rule="mean", alpha=0.5)
    fedrep = METHODS["fedrep"](setting(cell))
    total = np.zeros(D)
    trained = np.zeros(D)
    for number in range(1, 6):
        rows = updates(cell.m, seed=number)
        trained += rows.mean(axis=0)
        total += dense(fedrep.step(rows, number))
    memory: Matrix = fedrep.memory  # type: ignore[attr-defined]
    np.testing.assert_allclose(total + memory.mean(axis=0), trained, atol=1e-4)


def _opened(fedrep: FedREP, number: int) -> list[int]:
    return sorted(silo for group in fedrep._turnout(number).groups for silo in group.tolist())


@pytest.mark.parametrize("missing", [{"dropout": 0.2}, {"absence": 0.2}])
def test_only_a_training_whose_values_were_opened_leaves_anything_in_the_memory(missing: dict[str, float]) -> None:
    cell = replace(TINY, f=0, rule="mean", s=2, m=9, **missing)  # type: ignore[arg-type]
    fedrep = FedREP(setting(cell))
    closed = 0
    for number in range(1, 12):
        rows, before = updates(cell.m, seed=number), fedrep.memory.copy()
        opened = _opened(fedrep, number)
        step = fedrep.step(rows.copy(), number)
        assert step.indices is not None
        expected = before.copy()
        if opened:
            expected[opened] += rows[opened]
            expected[np.array(opened)[:, None], step.indices] = 0.0
        assert np.array_equal(fedrep.memory, expected)
        closed += 0 < len(opened) < cell.m
    assert closed > 3


def test_after_a_skipped_round_nobody_trains_and_the_same_coordinates_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(TINY, dropout=0.3, s=2, f=2, alpha=0.5, rounds=30)
    silos = build_silos(cell, None)
    trained: list[int] = []
    train = silos.updates

    def noting(model: Vector, number: int, ahead: Coordinates | None) -> Matrix:
        trained.append(number)
        return train(model, number, ahead)

    monkeypatch.setattr(silos, "updates", noting)
    training = Training(cell, silos)
    assert isinstance(training.method, FedREP)
    skipped: list[int] = []
    for number in range(1, cell.rounds + 1):
        before, again = training.model, dict(training.method._again)
        assert training.advance(number)
        assert (number in trained) == (number - 1 not in skipped)
        if not _opened(training.method, number):
            skipped.append(number)
            assert np.array_equal(training.model, before)
        for silo, proposal in training.method._again.items():
            assert silo not in again or np.array_equal(again[silo], proposal)
    assert 3 < len(skipped) < 27


def test_silos_of_a_buffer_with_too_few_proposers_do_not_submit() -> None:
    cell = replace(TINY, f=0, m=12, s=4, absence=0.25)
    played = setting(cell)
    fedrep, small = FedREP(played), 0
    for number in range(1, 40):
        turnout = fedrep._turnout(number)
        assert all(group.size >= 3 and turnout.proposed[group].all() for group in turnout.groups)
        if turnout.groups:
            small += len(buffer_groups(played, number)) - len(turnout.groups)
    assert small > 3


def test_what_lay_outside_the_range_is_given_up_and_the_memory_keeps_less_than_a_level() -> None:
    cell = replace(TINY, f=0, rule="mean", ring_bits=16, initial_range=0.25, alpha=0.5, ratio=0.5)
    fedrep = FedREP(setting(cell))
    step = fedrep.step(updates(cell.m), 1)
    assert step.indices is not None
    level = cell.initial_range / 8191  # eight silos in buffers of two: q = 14
    assert 0.0 < np.abs(fedrep.memory[:, step.indices]).max() <= level * (1 + 1e-4)
    assert np.abs(updates(cell.m)[:, step.indices]).max() > 1.0


def test_a_ring_changes_a_step_by_no_more_than_its_levels() -> None:
    cell = replace(TINY, rule="mean", initial_range=8.0)
    exact = dense(method(cell).step(updates(cell.m), 1))
    for bits, step in ((8, 8.0 / 15), (16, 8.0 / 4095)):  # with 7 of 8 silos a buffer has three, so q = B - 3
        rounded = dense(method(replace(cell, ring_bits=bits)).step(updates(cell.m), 1))
        assert np.abs(rounded - exact).max() <= step
        assert not np.array_equal(rounded, exact)


def test_the_range_follows_two_bits_about_all_values_of_those_who_proposed() -> None:
    cell = replace(TINY, f=2, ring_bits=16, initial_range=1.0)
    g = np.full((cell.m, 10), 0.5, np.float32)
    g[:3, :2] = 2.0  # three silos clip, which is more than f
    for speaking, expected in ((np.arange(cell.m) < 3, 2.0), (np.arange(cell.m) > 0, 1.0)):
        ring = Ring(setting(cell))
        ring.after_round(g, 5, speaking)
        assert ring.range == expected
    for _ in range(5):
        assert ring.range == 1.0
        ring.after_round(g / np.float32(100), 5, np.ones(cell.m, np.bool_))
    assert ring.range == 0.5


@pytest.mark.parametrize("attack", ["bitflip", "gaussian"])
def test_an_attacker_of_the_ring_moves_its_buffer_by_no_more_than_the_range(attack: str) -> None:
    cell = replace(TINY, ring_bits=16, initial_range=1.0, attack=attack)
    played = setting(cell)
    ring, groups = Ring(played), buffer_groups(played, 1)
    honest = ring.rounded(updates(cell.m), 1)
    forged = played.adversary.forge(honest, lambda values: values.mean(axis=0))
    forged[-1] *= 100.0
    for group, before, after in zip(
        groups, ring.opened_means(honest, groups, 1), ring.opened_means(forged, groups, 1), strict=True
    ):
        if cell.m - 1 in group:
            assert 0.0 < np.abs(after - before).max() <= 2 * ring.range / group.size + 1e-6
        else:
            assert np.array_equal(after, before)


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
@pytest.mark.filterwarnings("ignore::fedrep.aggregators.AggregatorWarning")
def test_krum_is_played_below_its_guarantee_which_the_service_refuses_and_says_so(rule: str) -> None:
    cell = replace(TINY, m=32, f=7, rule=rule, attack="fang")
    step = method(cell).step(updates(cell.m), 1)
    assert step.notes == (f"{rule} guarantees nothing for 16 rows with byzantine_count = 7: that takes 17 rows.",)
    assert conditions(rule, 16, 7) != []


def test_rcgd_drops_the_longest_vectors() -> None:
    cell = replace(TINY, method="rcgd_ef", f=2, ratio=1.0)
    rows = updates(cell.m)
    rows[:2] *= 100.0
    expected = rows[2:].mean(axis=0)
    np.testing.assert_allclose(dense(method(cell).step(rows, 1)), expected, rtol=1e-5)


def test_a_byzantine_silo_of_rcgd_has_no_more_room_than_an_honest_one() -> None:
    cell = replace(TINY, method="rcgd_ef", attack="alie", ratio=0.05)
    step = method(cell).step(updates(cell.m), 1)
    assert np.count_nonzero(step.values) <= cell.m * int(0.05 * D)


def test_sparse_secagg_is_unbiased_and_sends_the_share_it_is_told() -> None:
    cell = replace(TINY, method="sparse_secagg", ratio=0.2)
    rival = method(cell)
    rows = updates(cell.m)
    steps = [rival.step(rows.copy(), number) for number in range(1, 400)]
    assert np.mean([step.transmitted for step in steps]) / D == pytest.approx(0.2, abs=0.01)
    mean = np.mean([step.values for step in steps], axis=0)
    assert np.abs(mean - rows.mean(axis=0)).mean() < 0.15 * np.abs(rows).mean()


def test_attackers_weigh_in_sparse_secagg_what_honest_silos_weigh() -> None:
    cell = replace(TINY, method="sparse_secagg", ratio=0.2, f=2, attack="foe", attack_settings={"epsilon": 1.0})
    rival = method(cell)
    rows = np.ones_like(updates(cell.m))
    mean = np.mean([rival.step(rows.copy(), number).values for number in range(1, 400)])
    assert mean == pytest.approx((cell.m - 2 * cell.f) / cell.m, abs=0.05)


def test_in_sparse_secagg_nobody_sends_a_coordinate_alone() -> None:
    rival = METHODS["sparse_secagg"](setting(replace(TINY, method="sparse_secagg", ratio=0.05)))
    senders = rival._patterns(3).sum(axis=0)  # type: ignore[attr-defined]
    assert 1 not in set(senders.tolist())


def test_fedavg_counts_samples_and_the_dense_mean_does_not() -> None:
    rows = updates(TINY.m)
    weights = np.arange(1, TINY.m + 1)
    fedavg = dense(method(replace(TINY, method="fedavg")).step(rows.copy(), 1))
    np.testing.assert_allclose(fedavg, weights @ rows / weights.sum(), rtol=1e-4, atol=1e-6)
    mean = dense(method(replace(TINY, method="dense_mean")).step(rows.copy(), 1))
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_f2ed_filters_a_far_shard_out() -> None:
    cell = replace(TINY, method="f2ed", m=16, s=2, f=2, attack="gaussian", attack_settings={"scale": 1e4})
    rows = updates(16)
    step = dense(method(cell).step(rows.copy(), 1))
    assert np.linalg.norm(step - rows[:14].mean(axis=0)) < np.linalg.norm(rows[:14].mean(axis=0))


def test_a_byzantine_leader_of_clt_k_lets_almost_nothing_through() -> None:
    cell = replace(TINY, method="clt_k", attack="bitflip", coordinate_attack="min", method_settings={"byzantine_leader": True})
    attacked = method(cell).step(updates(cell.m), 1)
    honest = method(replace(cell, coordinate_attack="none")).step(updates(cell.m), 1)
    ours = method(replace(cell, method="fedrep", method_settings={})).step(updates(cell.m), 1)
    assert attacked.kept < 0.01 < ours.kept
    assert attacked.kept < 0.1 * honest.kept


def test_with_central_training_there_is_one_silo_with_all_the_data() -> None:
    cell = replace(TINY, method="central")
    silos = build_silos(cell, None)
    assert silos.samples.tolist() == [len(load_dataset("digits", None).train)]
    assert silos.updates(silos.initial(), 1).shape == (1, silos.parameters)


def test_buffers_stay_as_they_are_unless_they_are_drawn_anew() -> None:
    def order(cell: Cell, number: int) -> list[list[int]]:
        return [group.tolist() for group in buffer_groups(setting(cell), number)]

    assert order(TINY, 1) != order(TINY, 2)
    fixed = replace(TINY, reshuffle_every=0)
    assert order(fixed, 1) == order(fixed, 50)
    seldom = replace(TINY, reshuffle_every=3)
    assert order(seldom, 2) != order(seldom, 3) == order(seldom, 5) != order(seldom, 6)
    assert order(replace(seldom, dropout=0.5), 7) == order(seldom, 7), "whoever takes part"
    assert order(replace(TINY, seed=1), 1) != order(TINY, 1)


def test_attackers_are_the_last_silos_and_honest_rows_stay_as_they_are() -> None:
    rows = updates(TINY.m)
    forged = Adversary(replace(TINY, attack="bitflip", f=2), np.random.default_rng(0)).forge(rows, lambda v: v.mean(axis=0))
    assert np.array_equal(forged[:-2], rows[:-2])
    assert np.array_equal(forged[-2:], -rows[-2:])


def test_label_flip_reverses_the_classes_of_byzantine_silos_only() -> None:
    dataset = load_dataset("digits", None)
    cell = replace(TINY, attack="labelflip")
    assert np.array_equal(silo_images(cell, dataset, 0).labels, dataset.train.labels)
    assert np.array_equal(silo_images(cell, dataset, cell.m - 1).labels, 9 - dataset.train.labels)
    assert not Adversary(cell, np.random.default_rng(0)).forges


def test_unknown_attacks_and_impossible_cells_are_refused_with_the_choice() -> None:
    with pytest.raises(SettingsError, match="choose from none, labelflip, bitflip"):
        Adversary(replace(TINY, attack="charm"), np.random.default_rng(0))
    with pytest.raises(SettingsError, match="f is 8 of m = 8"):
        replace(TINY, f=8)


@pytest.mark.parametrize(("interval", "beta"), [(1, 0.9), (3, 0.9), (2, 0.0)])
@pytest.mark.parametrize(("engine", "model_name"), [("layers", "small_cnn"), ("layers", "cnn"), ("stack", "small_cnn")])
def test_silos_trained_in_one_pass_send_what_a_loop_of_trainers_sends(
    engine: str, model_name: str, interval: int, beta: float
) -> None:
    cell = replace(TINY, interval=interval, beta=beta, attack="labelflip", model=model_name, model_options={"width": 2})
    stacked, looped = build_silos(cell, None, engine=engine), build_silos(cell, None, engine="loop")
    assert isinstance(stacked, LayeredSilos if engine == "layers" else StackedSilos)
    assert isinstance(looped, LoopedSilos)
    model = stacked.initial()
    assert np.array_equal(model, looped.initial())
    for number in range(1, 7):
        one, other = stacked.updates(model, number), looped.updates(model, number)
        np.testing.assert_allclose(one, other, atol=2e-5)
        model = model - one.mean(axis=0)


@pytest.mark.parametrize("interval", [1, 2])
def test_silos_with_batch_norm_share_one_module_and_send_what_a_trainer_each_would(interval: int) -> None:
    cell = replace(TINY, model="resnet20", model_options={"width": 4}, m=2, f=0, batch_size=4, interval=interval)
    shared, looped = build_silos(cell, None), build_silos(cell, None, engine="loop")
    assert isinstance(shared, OneModuleSilos)
    model = shared.initial()
    for number in (1, 2):
        np.testing.assert_allclose(shared.updates(model, number), looped.updates(model, number), atol=2e-5)


def test_lengths_of_updates_that_overflow_single_precision_are_still_compared() -> None:
    huge = np.full((2, 4), 1e30, dtype=np.float32)
    assert energy_kept(huge, huge[:, :1], 2) == pytest.approx(0.25)
