"""The randomness of DP-SGD: where it comes from, and that it is distributed as the accountant assumes."""

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest
import torch
from scipy import stats

from fedrep_trainers import secure_random

# A false alarm of these comes about once in a thousand million runs.
RARE = 1e-9


def test_noise_is_standard_normal_and_every_deviate_is_on_its_own() -> None:
    drawn = secure_random.normals(200_001).numpy()
    assert drawn.shape == (200_001,)
    assert stats.kstest(drawn, "norm").pvalue > RARE
    halves = np.corrcoef(drawn[:100_000], drawn[100_000:200_000])[0, 1]
    neighbours = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(halves) < 6.2 / math.sqrt(100_000)
    assert abs(neighbours) < 6.2 / math.sqrt(200_000)
    assert np.unique(drawn).size == drawn.size


def test_each_record_is_drawn_at_the_rate_and_whatever_becomes_of_the_others() -> None:
    records, rate, draws = 40, 0.3, 2000
    drawn = np.zeros((draws, records))
    for row in drawn:
        row[secure_random.chosen(records, rate)] = 1
    assert np.abs(drawn.mean(axis=0) - rate).max() < 6.2 * math.sqrt(rate * (1 - rate) / draws)
    sizes = drawn.sum(axis=1)
    expected = records * rate * (1 - rate)
    assert sizes.var() == pytest.approx(expected, rel=0.25), "batches of a fixed size would not vary"


def test_a_rate_of_one_takes_every_record() -> None:
    assert secure_random.chosen(7, 1.0).tolist() == list(range(7))


def test_the_operating_system_is_the_only_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw() -> tuple[list[float], list[int]]:
        torch.manual_seed(1)
        np.random.seed(1)
        return secure_random.normals(6).tolist(), secure_random.chosen(200, 0.5).tolist()

    assert draw()[0] != draw()[0]
    assert draw()[1] != draw()[1]
    monkeypatch.setattr(secrets, "token_bytes", lambda count: b"\7" * count)
    assert draw() == draw()


def test_the_stream_is_that_of_aes_in_counter_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block is the known answer for a zero key and counter (NIST AESAVS, 256 bits)."""
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    assert secure_random.words(2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    long = secure_random.words(100_000)
    assert np.unique(long).size == long.size
