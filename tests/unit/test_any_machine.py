"""No test fails because the machine is busy, or because of how the tests were started."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings


def test_an_example_of_hypothesis_may_take_any_time() -> None:
    for kind in (settings(), settings(max_examples=1)):
        assert kind.deadline is None
        assert HealthCheck.too_slow in kind.suppress_health_check


def test_what_tests_start_can_be_interrupted_also_where_they_run_in_the_background() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
