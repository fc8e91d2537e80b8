"""What ends a run by itself."""

from __future__ import annotations

import pytest

from fedrep.protocol.goals import Goals, Totals


@pytest.mark.parametrize(
    ("goals", "totals", "reason"),
    [
        (Goals(10), Totals(9, 1.0, 99.0), None),
        (Goals(10), Totals(10, None, None), "all 10 rounds played"),
        (Goals(7), Totals(5, None, 0.0), "round 7 was the last; 5 were played, the other numbers waited out penalties"),
        (Goals(10, accuracy=0.8), Totals(5, None, 0.0), None),
        (Goals(10, accuracy=0.8), Totals(5, 0.79, 0.0), None),
        (Goals(10, accuracy=0.8), Totals(5, 0.8, 0.0), "target accuracy 0.8 reached"),
        (Goals(10, epsilon=3.0), Totals(5, None, 2.9), None),
        (Goals(10, epsilon=3.0), Totals(5, None, 3.0), "the epsilon budget of 3 is used up after round 7"),
        (Goals(10, epsilon=3.0), Totals(5, None, None), "the epsilon budget of 3 is used up after round 7"),
    ],
)
def test_a_goal_is_reached_or_it_is_not(goals: Goals, totals: Totals, reason: str | None) -> None:
    """No guarantee at all uses any budget up."""
    assert goals.reached(totals, 7) == reason
