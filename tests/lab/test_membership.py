"""The membership test of the lab: it finds a record without privacy, and privacy keeps it below the bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrep_lab import membership as module
from fedrep_lab.cell import Cell
from fedrep_lab.measurements import measure
from fedrep_lab.membership import Silo, advantage_bound

CELL = Cell(
    task="membership",
    dataset="digits",
    model="mlp",
    model_options={"hidden": [8]},
    m=8,
    rounds=20,
    batch_size=16,
    clip_norm=0.3,
    rate=5.0,
    method_settings={"records": 100, "trials": 400},
)


def test_without_privacy_a_record_is_found_unless_no_batch_drew_it() -> None:
    found = measure(CELL)["metrics"]
    drawn = 1.0 - (1.0 - 0.16) ** 20
    assert found["bound"] == 1.0
    assert found["ratio_advantage"] == pytest.approx(drawn, abs=0.05)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_with_privacy_no_test_does_better_than_the_bound(epsilon: float) -> None:
    found = measure(replace(CELL, record_epsilon=epsilon))["metrics"]
    assert found["bound"] == advantage_bound(epsilon, 1e-5)
    for name in ("loss", "ratio"):
        assert found[f"{name}_least"] <= found[f"{name}_advantage"] <= found["bound"]


def test_noise_that_is_much_too_small_for_its_epsilon_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "noise_of", lambda *_: 0.05)
    found = measure(replace(CELL, record_epsilon=0.5))["metrics"]
    assert found["ratio_least"] > found["bound"]


def test_the_bound_is_that_of_randomized_response() -> None:
    assert advantage_bound(math.log(3.0), 0.0) == pytest.approx(0.5)
    assert advantage_bound(0.0, 1e-3) == pytest.approx(1e-3)


def test_confidence_limits_are_those_of_clopper_and_pearson() -> None:
    # 8 of 10 at a two-sided 97.5 %, from the binomial sums themselves.
    low, high = module._lowest(8, 10), module._highest(8, 10)
    assert sum(math.comb(10, k) * low**k * (1 - low) ** (10 - k) for k in range(8, 11)) == pytest.approx(0.0125)
    assert sum(math.comb(10, k) * high**k * (1 - high) ** (10 - k) for k in range(9)) == pytest.approx(0.0125)
    assert (module._lowest(0, 10), module._highest(10, 10)) == (0.0, 1.0)


def test_the_filter_is_the_inverse_of_the_covariance_on_the_record() -> None:
    torch.manual_seed(0)
    silo = Silo(torch.randn(7, 5), torch.randn(5), 0.3, 0.7)
    others = silo.gradients.double().numpy()
    covariance = 0.3 * 0.7 * others.T @ others + 0.7**2 * np.eye(5)
    np.testing.assert_allclose(silo.filter, np.linalg.solve(covariance, silo.record.double().numpy()), rtol=1e-4)
