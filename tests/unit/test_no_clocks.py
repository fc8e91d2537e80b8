"""No test fails because the machine is busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_an_example_of_hypothesis_may_take_any_time() -> None:
    for kind in (settings(), settings(max_examples=1)):
        assert kind.deadline is None
        assert HealthCheck.too_slow in kind.suppress_health_check
