"""Training with record-level privacy in the lab: what is cut, what is noised, and which coordinates are trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedrep.errors import SettingsError
from fedrep.record_privacy import RecordLedger, SampledGaussian
from fedrep_lab.cell import Cell
from fedrep_lab.clipped_sums import ClippedSums
from fedrep_lab.methods.fedrep import FedREP
from fedrep_lab.models import model_of, small_cnn
from fedrep_lab.private_silos import PrivateSilos
from fedrep_lab.shards import load_dataset
from fedrep_lab.silos import build_silos
from fedrep_lab.simulation import Training
from fedrep_trainers.record_accountant import spent

PRIVATE = Cell(
    dataset="digits",
    model="mlp",
    model_options={"hidden": [8]},
    m=8,
    f=1,
    rounds=6,
    evaluations=2,
    evaluation_samples=100,
    record_epsilon=8.0,
    batch_size=32,
    clip_norm=0.5,
)


def silos_of(cell: Cell) -> PrivateSilos:
    dataset = load_dataset(cell.dataset, None)
    return PrivateSilos(cell, dataset, model_of(cell, dataset.input_shape, len(dataset.classes)), "cpu")


def gradients_one_by_one(module: nn.Module, flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    shapes = [(name, parameter.shape) for name, parameter in module.named_parameters()]

    def loss(vector: Tensor, one: Tensor, target: Tensor) -> Tensor:
        pieces = torch.split(vector, [shape.numel() for _, shape in shapes])
        named = {name: piece.view(shape) for piece, (name, shape) in zip(pieces, shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(module, named, (one[None],)), target[None])

    found: Tensor = vmap(grad(loss), (None, 0, 0))(flat, inputs, targets)
    return found


@pytest.mark.parametrize("projected", [False, True])
def test_clipped_sums_are_those_of_gradients_written_down_one_by_one(projected: bool) -> None:
    torch.manual_seed(0)
    module = small_cnn((2, 9, 11), 4, width=3)
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    inputs, targets = torch.randn(20, 2, 9, 11), torch.randint(0, 4, (20,))
    inputs[3] *= 100.0  # a record that would outshout the rest
    mask = (torch.rand(flat.numel()) < 0.1).float() if projected else None
    one_by_one = gradients_one_by_one(module, flat, inputs, targets) * (1.0 if mask is None else mask)
    lengths = one_by_one.norm(dim=1)
    clip = float(lengths.median())  # half of them are cut
    cut = one_by_one * (clip / lengths).clamp(max=1.0)[:, None]
    expected = torch.stack([cut[:5].sum(0), torch.zeros_like(flat), cut[5:].sum(0)])
    found = ClippedSums(module)(flat, inputs, targets, [5, 0, 15], clip, mask)
    torch.testing.assert_close(found, expected, atol=1e-5 * clip, rtol=1e-4)


def test_a_model_whose_gradients_the_lab_cannot_cut_is_refused() -> None:
    with pytest.raises(SettingsError, match="GroupNorm is neither; choose small_cnn"):
        ClippedSums(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)))


def test_the_noise_is_the_least_that_keeps_all_rounds_within_the_budget() -> None:
    cell = replace(PRIVATE, interval=2)
    silos = silos_of(cell)
    for noise, rate in zip(silos.noise, silos.rates, strict=True):
        ledger = RecordLedger()
        for _ in range(cell.rounds):
            ledger = ledger.charge("run", SampledGaussian(noise, float(rate), cell.interval))
        epsilon = spent(ledger, cell.record_delta)
        assert epsilon is not None
        assert 0.99 * cell.record_epsilon < epsilon <= cell.record_epsilon


def test_an_empty_batch_is_noised_like_any_other_and_divided_by_the_expected_size() -> None:
    silos = silos_of(replace(PRIVATE, batch_size=1, beta=0.0, rate=1.0))
    empty = [silo for silo in range(PRIVATE.m) if silos._batch(silo).size == 0]
    found = silos.updates(silos.initial(), 1)
    assert 0 < len(empty) < PRIVATE.m
    for silo in empty:
        assert np.std(found[silo]) == pytest.approx(silos.noise[silo] * PRIVATE.clip_norm, rel=0.1)
    assert len({row.tobytes() for row in found}) == PRIVATE.m, "every silo draws its own noise"


def test_batches_are_poisson_at_the_stated_rate() -> None:
    silos = silos_of(PRIVATE)
    sizes = []
    for step in range(200):
        silos._step = step
        sizes.append([silos._batch(silo).size for silo in range(PRIVATE.m)])
    assert np.mean(sizes) == pytest.approx(PRIVATE.batch_size, rel=0.03)
    expected = PRIVATE.batch_size * (1.0 - silos.rates.mean())
    assert np.var(sizes, axis=0).mean() == pytest.approx(expected, rel=0.15)


def test_the_last_batch_of_a_run_is_found_in_the_sum_up_to_the_noise() -> None:
    """With an epsilon so large that the noise is next to nothing, the update is the mean of the cut gradients."""
    cell = replace(PRIVATE, record_epsilon=1e7, beta=0.0, rate=1.0)
    silos = silos_of(cell)
    dataset = load_dataset(cell.dataset, None)
    module = model_of(cell, dataset.input_shape, len(dataset.classes))
    model = silos.initial()
    inputs, targets = silos._shards.images(3, silos._batch(3))
    gradients = gradients_one_by_one(module, torch.from_numpy(model.copy()), inputs, targets)
    cut = gradients * (cell.clip_norm / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
    noise = silos.noise[3] * cell.clip_norm / cell.batch_size
    found = silos.updates(model, 1)[3]
    assert np.abs(found - cut.sum(0).numpy() / cell.batch_size).max() < 6 * noise
    assert np.abs(found).max() > 20 * noise


def test_a_private_cell_is_repeated_exactly() -> None:
    first, second = (Training(PRIVATE, build_silos(PRIVATE, None)) for _ in range(2))
    first.run()
    second.run()
    assert np.array_equal(first.model, second.model)


@pytest.mark.parametrize("selection", ["moved", "random"])
def test_public_coordinates_follow_from_the_model_and_the_round_and_nothing_else_is_trained(selection: str) -> None:
    cell = replace(PRIVATE, selection=selection, ratio=0.1)
    one, other = (Training(cell, build_silos(cell, None)) for _ in range(2))
    assert isinstance(one.method, FedREP)
    assert isinstance(other.method, FedREP)
    seen = set()
    for number in range(1, 5):
        agreed, elsewhere = one.method.ahead(number, one.model), other.method.ahead(number, one.model)
        assert agreed is not None
        assert elsewhere is not None
        assert np.array_equal(agreed, elsewhere)
        assert agreed.size == cell.m * (round(0.1 * one.model.size) // cell.m)
        before = one.model.copy()
        assert one.advance(number)
        changed = np.flatnonzero(one.model != before)
        assert changed.size > 0
        assert np.isin(changed, agreed).all()
        assert not one.method.memory.any()
        seen.add(agreed.tobytes())
    assert len(seen) == 4


def test_most_of_what_has_moved_furthest_is_among_the_public_coordinates() -> None:
    cell = replace(PRIVATE, selection="moved", ratio=0.1)
    training = Training(cell, build_silos(cell, None))
    assert isinstance(training.method, FedREP)
    start = training.model.copy()
    training.run()
    agreed = training.method.ahead(7, training.model)
    assert agreed is not None
    moved = np.abs(training.model - start)
    assert np.isin(np.argsort(moved)[-agreed.size // 2 :], agreed).all()


@pytest.mark.parametrize("changes", [{"method_settings": {"memory": False}}, {"selection": "moved"}])
def test_who_keeps_no_memory_drops_what_was_not_sent(changes: dict[str, Any]) -> None:
    cell = replace(PRIVATE, record_epsilon=0.0, **changes)  # ordinary training gives values everywhere
    training = Training(cell, build_silos(cell, None))
    assert isinstance(training.method, FedREP)
    assert training.advance(1)
    assert not training.method.memory.any()


def test_a_selection_that_does_not_exist_is_named() -> None:
    cell = replace(PRIVATE, selection="topk")
    with pytest.raises(SettingsError, match="There is no selection 'topk'; choose from top_k, momentum, moved, random"):
        Training(cell, build_silos(cell, None))


def test_by_momentum_what_is_large_on_average_is_proposed_although_it_is_small_now() -> None:
    from tests.lab.test_methods import setting

    cell = replace(PRIVATE, selection="momentum", ratio=0.02, alpha=0.0, record_epsilon=0.0)
    fedrep = FedREP(setting(cell))
    rng = np.random.default_rng(0)
    for number in range(1, 30):
        rows = rng.normal(size=(cell.m, 400)).astype(np.float32)
        rows[:, :8] = 1.0
        step = fedrep.step(rows, number)
    assert step.indices is not None
    assert np.isin(step.indices, np.arange(8)).mean() > 0.6
