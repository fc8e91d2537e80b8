"""The range R between rounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from fedrep.protocol.clip_range import ClipRange
from tests.protocol.federation import run_manifest

RUN = replace(run_manifest(8, np.zeros(64, np.float32)), smallest_range=0.25, largest_range=4.0)


def test_r_doubles_when_the_median_clip_rate_exceeds_a_thousandth() -> None:
    assert ClipRange(1.0, quiet=4).after_round([0.0, 0.0011, 0.5], 1.0, RUN) == ClipRange(2.0)


def test_a_median_of_exactly_a_thousandth_does_not_double() -> None:
    assert ClipRange(1.0).after_round([0.001, 0.001, 0.9], 1.0, RUN) == ClipRange(1.0)


@pytest.mark.parametrize("lie", [1.0, 0.0, float("nan"), float("inf"), -1.0, 1e300])
def test_a_minority_of_reports_cannot_steer_r(lie: float) -> None:
    honest_low, honest_high = [0.0] * 5, [0.01] * 5
    for lies in ([lie] * 4, [lie]):
        for order in (1, -1):
            assert ClipRange(1.0).after_round((honest_low + lies)[::order], 1.0, RUN).value == 1.0
            assert ClipRange(1.0).after_round((honest_high + lies)[::order], 1.0, RUN).value == 2.0


def test_a_report_that_is_no_number_does_not_move_the_median() -> None:
    """A NaN compares with nothing: sorted among the others it can put any of them in the middle."""
    for order in permutations([float("nan"), 0.0, 0.01, 0.01, 0.01]):
        assert ClipRange(1.0).after_round(order, 1.0, RUN).value == 2.0


def test_r_does_not_grow_beyond_the_runs_limit() -> None:
    assert ClipRange(3.0).after_round([0.5], 1.0, RUN).value == 4.0
    assert ClipRange(4.0).after_round([0.5], 1.0, RUN).value == 4.0


def test_r_halves_after_five_quiet_rounds_in_a_row_and_starts_counting_again() -> None:
    r = ClipRange(1.0)
    for quiet in range(1, 5):
        r = r.after_round([0.0], 0.1249, RUN)
        assert r == ClipRange(1.0, quiet)
    r = r.after_round([0.0], 0.1249, RUN)
    assert r == ClipRange(0.5, 0)
    assert r.after_round([0.0], 0.01, RUN) == ClipRange(0.5, 1)


def test_one_loud_round_starts_the_count_again() -> None:
    assert ClipRange(1.0, quiet=4).after_round([0.0], 0.125, RUN) == ClipRange(1.0, 0)


def test_r_does_not_shrink_below_the_runs_limit() -> None:
    assert ClipRange(0.3, quiet=4).after_round([0.0], 0.0, RUN).value == 0.25
    assert ClipRange(0.25, quiet=4).after_round([0.0], 0.0, RUN).value == 0.25


def test_without_a_report_r_does_not_double() -> None:
    assert ClipRange(1.0).after_round([], 0.5, RUN) == ClipRange(1.0)
    assert ClipRange(1.0).after_round([float("nan")], 0.5, RUN) == ClipRange(1.0)
