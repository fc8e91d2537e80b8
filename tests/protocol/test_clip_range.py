"""R moves by powers of two, on the word of more silos than can lie, and no answer depends on a set the server chooses (N3)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrep.patched import Largest
from fedrep.protocol.clip_range import QUIET_ROUNDS, ClipRange, RangeBits, is_range, range_bits
from tests.protocol.federation import run_manifest

RUN = run_manifest(6, np.zeros(8, np.float32))
CLIPS, QUIET, NEITHER = RangeBits(True, False), RangeBits(False, True), RangeBits(False, False)


@pytest.mark.parametrize(("said", "byzantine", "after"), [(1, 0, 2.0), (1, 1, 1.0), (2, 1, 2.0), (2, 2, 1.0), (0, 0, 1.0)])
def test_r_doubles_when_more_than_f_say_that_they_clip(said: int, byzantine: int, after: float) -> None:
    bits = [CLIPS] * said + [NEITHER] * (6 - said)
    assert ClipRange(1.0).after_round(bits, byzantine, RUN) == ClipRange(after)


def test_r_halves_after_five_rounds_in_a_row_in_which_all_but_f_were_quiet() -> None:
    now = ClipRange(1.0)
    for number in range(1, QUIET_ROUNDS):
        now = now.after_round([QUIET] * 5 + [NEITHER], 1, RUN)
        assert now == ClipRange(1.0, number)
    assert now.after_round([QUIET] * 4 + [NEITHER] * 2, 1, RUN) == ClipRange(1.0), "two were not: the row is broken"
    assert now.after_round([QUIET] * 5 + [CLIPS], 1, RUN) == ClipRange(0.5), "one liar of f = 1 stops nobody"


def test_f_liars_move_r_in_no_direction() -> None:
    now = ClipRange(1.0)
    for _ in range(3 * QUIET_ROUNDS):
        now = now.after_round([CLIPS, *[NEITHER] * 5], 1, RUN)
    assert now.value == 1.0
    for _ in range(3 * QUIET_ROUNDS):
        now = now.after_round([QUIET, *[NEITHER] * 5], 1, RUN)
    assert now.value == 1.0


def test_a_round_without_proposals_changes_nothing() -> None:
    assert ClipRange(1.0, 3).after_round([], 0, RUN) == ClipRange(1.0, 3)


def test_r_stays_within_the_signed_limits_and_a_power_of_two_from_its_start() -> None:
    top, bottom = ClipRange(RUN.largest_range / 1.5), ClipRange(RUN.smallest_range * 1.5, QUIET_ROUNDS)
    assert top.after_round([CLIPS], 0, RUN).value == top.value
    assert bottom.after_round([QUIET], 0, RUN).value == bottom.value


def test_the_two_bits_are_about_all_of_g() -> None:
    g = np.full(1000, 0.5, np.float32)
    assert range_bits(g, 1.0, 10) == NEITHER
    g[:2] = 1.5
    assert range_bits(g, 1.0, 10) == CLIPS
    assert range_bits(g, 1.0, 300) == NEITHER, "two of them are less than k/100"
    assert range_bits(np.full(1000, 0.12, np.float32), 1.0, 10) == QUIET
    g = np.full(1000, 0.12, np.float32)
    g[999] = 0.2
    assert range_bits(g, 1.0, 10) == NEITHER


@pytest.mark.parametrize(
    ("value", "power"),
    [
        (0.1, True),
        (0.2, True),
        (0.1 * 2.0**-20, True),
        (0.3, False),
        (1e-6, False),
        (0.0, False),
        (math.nan, False),
        (math.inf, False),
    ],
)
def test_a_range_is_its_start_times_a_power_of_two(value: float, power: bool) -> None:
    assert is_range(value, 0.1) is power


@pytest.mark.parametrize("magnitude", [0.5, 1.0, 2.0])
def test_the_largest_values_alone_give_the_same_bits(magnitude: float) -> None:
    values = np.random.default_rng(7)
    for scale in (0.02, 0.3, 0.5, 1.0):
        g = values.normal(0.0, scale, 1000).astype(np.float32)
        places = np.flatnonzero(np.abs(g) >= magnitude)
        for per_silo in (10, 1000, 20_000):
            bits = range_bits(g, 1.0, per_silo)
            assert range_bits(g, 1.0, per_silo, float(np.abs(g).max()), Largest(magnitude, places)) == bits
