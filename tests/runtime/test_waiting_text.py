"""The sentence about whom a run waits for."""

from __future__ import annotations

from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_runtime.waiting_text import away_text, time_left, waiting_text

NOON = 1_800_014_400.0  # 2027-01-15 12:00 UTC


def silo(name: str, reason: str = "", since: float = 0.0) -> pb.WaitedSilo:
    return pb.WaitedSilo(name=name, reason=reason, since=since)


def test_an_open_round_names_those_it_waits_for_the_time_left_and_those_it_goes_on_without() -> None:
    waiting = pb.Waiting(what="silos", silos=[silo("hospital-d")], until=NOON + 558)
    assert waiting_text(waiting, NOON) == "waiting for hospital-d, 9:18 left"
    waiting.without.append(silo("hospital-b", "connection lost", NOON - 3480))
    waiting.without.append(silo("hospital-c", "abstained: training failed; the silo's log says why"))
    assert waiting_text(waiting, NOON) == (
        "waiting for hospital-d, 9:18 left; going on without hospital-b (connection lost since 11:02 UTC), "
        "hospital-c (abstained: training failed; the silo's log says why)"
    )
    assert waiting_text(waiting, None).startswith("waiting for hospital-d; going on"), "the page counts down by itself"


def test_below_the_quorum_it_says_how_many_are_here_and_who_is_missing() -> None:
    waiting = pb.Waiting(what="quorum", present=2, quorum=3, silos=[silo("hospital-b", "left", NOON - 3480)])
    assert waiting_text(waiting, NOON) == "below quorum: 2 of 3; hospital-b (left since 11:02 UTC)"
    waiting.silos[0].since = NOON - 2 * 86400
    assert waiting_text(waiting, NOON) == "below quorum: 2 of 3; hospital-b (left since 2027-01-13 12:00 UTC)"


def test_the_time_stands_before_what_the_silo_said() -> None:
    text = away_text("left: training failed; the silo's log says why", NOON - 3480, NOON)
    assert text == "left since 11:02 UTC: training failed; the silo's log says why"
    assert away_text("has not joined", 0.0, NOON) == "has not joined"


def test_a_crowd_is_counted_and_not_listed() -> None:
    waiting = pb.Waiting(what="silos", silos=[silo(f"silo-{n}") for n in range(8)])
    assert waiting_text(waiting, NOON) == "waiting for silo-0, silo-1, silo-2, silo-3, silo-4, 3 more"


def test_who_waits_for_nobody_says_nothing() -> None:
    assert waiting_text(pb.Waiting(), NOON) == ""


def test_time_left_is_minutes_and_seconds_and_hours_where_there_are_some() -> None:
    assert [time_left(seconds) for seconds in (-3, 7.9, 558, 3600 + 62)] == ["0:00", "0:07", "9:18", "1:01:02"]
