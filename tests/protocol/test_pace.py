"""How long proposals are waited for, by what silos lately took."""

from __future__ import annotations

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.pace import LATELY, Pace

QUICK, SLOW, NEW = SiloName("quick"), SiloName("slow"), SiloName("new")


def paced(**times: float) -> Pace:
    pace = Pace(factor=3.0, floor=30.0)
    for name, seconds in times.items():
        pace = pace.after(SiloName(name), seconds)
    return pace


def test_the_slowest_silo_of_the_round_sets_the_time() -> None:
    pace = paced(quick=15.0, slow=50.0)
    assert pace.seconds((QUICK, SLOW), 600.0) == 150.0
    assert pace.seconds((QUICK,), 600.0) == 45.0, "who is not in the round does not count"


def test_it_is_never_longer_than_the_run_grants_nor_shorter_than_the_floor() -> None:
    assert paced(slow=500.0).seconds((SLOW,), 600.0) == 600.0
    assert paced(quick=0.1).seconds((QUICK,), 600.0) == 30.0
    assert paced(quick=0.1).seconds((QUICK,), 10.0) == 10.0


def test_a_silo_that_was_never_timed_gets_all_the_time() -> None:
    """Also everybody after a restart of the server."""
    assert paced(quick=1.0).seconds((QUICK, NEW), 600.0) == 600.0


def test_one_slow_round_counts_for_a_while_and_is_then_forgotten() -> None:
    pace = paced(quick=100.0)
    for _ in range(LATELY - 1):
        pace = pace.after(QUICK, 1.0)
    assert pace.seconds((QUICK,), 600.0) == 300.0
    assert pace.after(QUICK, 1.0).seconds((QUICK,), 600.0) == 30.0


def test_a_silo_whose_time_was_cut_gets_more_each_time_until_it_has_all() -> None:
    pace, given = paced(slow=10.0), []
    for _ in range(5):
        given.append(pace.seconds((SLOW,), 600.0))
        pace = pace.after(SLOW, given[-1])
    assert given == [30.0, 90.0, 270.0, 600.0, 600.0]


def test_a_factor_of_zero_leaves_the_deadline_to_the_run() -> None:
    pace = Pace(factor=0.0, floor=30.0).after(QUICK, 1.0)
    assert pace.seconds((QUICK,), 600.0) == 600.0
