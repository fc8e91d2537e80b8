"""Whom the demo kills."""

from __future__ import annotations

import random

import pytest

from fedrep_cli.demo_drops import Drops

NAMES = [f"silo-{index}" for index in range(10)]


def victims(rate: float, polls: int, back_after: float | None, polls_per_round: int = 4) -> tuple[list[str], int]:
    """Everybody killed in `polls` polls of half a second, and the most that were lost at once in any round."""
    drops, seen, dead = Drops(NAMES, rate, random.Random(0)), dict.fromkeys(NAMES, 0.0), dict[str, float]()
    killed: list[str] = []
    lost_in: dict[int, set[str]] = {}
    for poll in range(polls):
        now, number = 1.0 + poll / 2, poll // polls_per_round
        for name in NAMES:
            if name not in dead or (back_after is not None and now - dead[name] > back_after):
                seen[name] = now
                dead.pop(name, None)
        victim = drops.next_victim(now, number, seen)
        if victim is not None:
            killed.append(victim)
            dead[victim] = now
            lost_in.setdefault(number, set()).add(victim)
        for name in dead:
            lost_in.setdefault(number, set()).add(name)
    return killed, max((len(lost) for lost in lost_in.values()), default=0)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_no_round_loses_more_silos_than_the_rate_says_however_long_they_are_killed(rate: float) -> None:
    killed, most = victims(rate, polls=400, back_after=3.0)
    assert most == round(rate * len(NAMES))
    assert len(set(killed)) > 5  # at random, not always the same


def test_a_silo_that_never_comes_back_is_not_followed_by_ever_more() -> None:
    killed, _ = victims(0.2, polls=400, back_after=None)
    assert len(killed) == 2


def test_a_silo_that_came_back_in_a_round_counts_as_lost_until_that_round_is_over() -> None:
    killed, _ = victims(0.1, polls=50, back_after=0.5, polls_per_round=1000)
    assert len(killed) == 1


def test_half_a_silo_of_room_still_kills_one_now_and_then_and_none_means_none() -> None:
    assert victims(0.05, polls=200, back_after=2.0)[1] == 1
    assert victims(0.0, polls=200, back_after=2.0)[0] == []
