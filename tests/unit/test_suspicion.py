"""Who is it: seats that change tell attackers from their mates, and honest federations raise no more alarms than is claimed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from fedrep.suspicion import FALSE_ALARM, Seat, SeatedRound, Standing, far_away, sentence, standings

NAMES = [f"silo-{i}" for i in range(10)]
Judge = Callable[[int, tuple[str, ...]], float]


def played(epochs: int, rounds: int, judge: Judge, rng: random.Random, size: int = 2) -> Iterator[SeatedRound]:
    """`judge` gives a buffer's distance in a round: 1 is near, 9 is far."""
    for epoch in range(epochs):
        order = rng.sample(NAMES, len(NAMES))
        buffers = [tuple(order[i : i + size]) for i in range(0, len(order), size)]
        for number in range(epoch * rounds, (epoch + 1) * rounds):
            yield SeatedRound(number, tuple(Seat(n, buffer, judge(number, buffer)) for n, buffer in enumerate(buffers)))


def by_luck(rng: random.Random, rounds: int, rate: float) -> Judge:
    """A buffer that is far is so for most of its epoch, as buffers of unusual mates are: its rounds are no independent draws."""
    drawn: dict[tuple[int, tuple[str, ...]], bool] = {}

    def judge(number: int, buffer: tuple[str, ...]) -> float:
        usual = drawn.setdefault((number // rounds, buffer), rng.random() < rate)
        return 9.0 if usual and rng.random() < 0.9 else 1.0

    return judge


def attacked(bad: set[str], rng: random.Random, caught: float = 1.0) -> Judge:
    return lambda _, buffer: 9.0 if bad & set(buffer) and rng.random() < caught else 1.0


def named(found: list[Standing]) -> set[str]:
    return {one.silo for one in found if one.stands_out}


def test_two_attackers_are_named_and_their_mates_are_not() -> None:
    rng = random.Random(1)
    found = standings(played(25, 1, attacked({"silo-2", "silo-7"}, rng), rng), 1, over=True)
    assert named(found) == {"silo-2", "silo-7"}
    assert {one.silo for one in found[:2]} == {"silo-2", "silo-7"}
    assert (found[0].suspected, found[0].judged) == (25, 25)
    assert max(one.chance for one in found[:2]) < 1e-4


def test_attackers_who_are_caught_half_of_the_time_are_named_too() -> None:
    rng = random.Random(2)
    found = standings(played(80, 1, attacked({"silo-2", "silo-7"}, rng, caught=0.5), rng), 1, over=True)
    assert named(found) == {"silo-2", "silo-7"}


def test_an_attacker_who_begins_late_is_named_all_the_same() -> None:
    rng = random.Random(3)
    attack, luck = attacked({"silo-4"}, rng), by_luck(rng, 1, 0.1)
    rounds = list(played(240, 1, lambda n, buffer: max(attack(n, buffer) if n >= 200 else 1.0, luck(n, buffer)), rng))
    assert named(standings(rounds[:200], 1, over=True)) == set()
    assert named(standings(rounds, 1, over=True)) == {"silo-4"}


@pytest.mark.parametrize(("rounds", "rate"), [(1, 0.2), (1, 0.4), (8, 0.2)])
def test_in_honest_federations_alarms_at_any_time_are_rarer_than_claimed(rounds: int, rate: float) -> None:
    """Somebody looks after every epoch of every run; an alarm at any of these moments counts."""
    rng = random.Random(rounds)
    runs, epochs, alarms = 120, 24, 0
    for _ in range(runs):
        history = list(played(epochs, rounds, by_luck(rng, rounds, rate), rng))
        looks = (standings(history[: rounds * e], rounds, over=True) for e in range(6, epochs + 1, 3))
        alarms += any(min(one.chance for one in found) <= 0.05 for found in looks)
    assert alarms / runs <= 0.05


def test_honest_silos_beside_attackers_are_named_no_more_often_than_claimed() -> None:
    rng = random.Random(5)
    wrong = 0
    for _ in range(300):
        found = standings(played(30, 1, attacked({"silo-0", "silo-1"}, rng, caught=0.9), rng), 1, over=True)
        wrong += bool(named(found) - {"silo-0", "silo-1"})
    assert wrong / 300 <= FALSE_ALARM


def test_rounds_of_one_epoch_have_the_same_seats_and_count_once() -> None:
    rng = random.Random(6)
    judge = attacked({"silo-2"}, rng)
    one = standings(played(1, 1, judge, random.Random(9)), 1, over=True)
    many = standings(played(1, 500, judge, random.Random(9)), 500, over=True)
    assert [(s.silo, s.ratio) for s in one] == [(s.silo, s.ratio) for s in many]
    assert named(many) == set()
    pair = [s for s in many if s.suspected]
    assert len(pair) == 2, "the attacker and its mate cannot be told apart"
    assert pair[0].ratio == pair[1].ratio


def test_an_epoch_that_is_not_over_says_nothing_yet() -> None:
    rng = random.Random(7)
    rounds = list(played(6, 5, attacked({"silo-2"}, rng), rng))
    still = standings(rounds, 5, over=False)
    assert [s.ratio for s in still] == [s.ratio for s in standings(rounds[:25], 5, over=True)]
    assert next(s for s in still if s.silo == "silo-2").judged == 30, "the tally counts every round"


def test_by_random_seats_the_ratio_is_1_on_average() -> None:
    """Whoever sits where: the mean over all silos of what one epoch makes of the ratio is 1, or the bound would not hold."""
    rng = random.Random(8)
    for size in (2, 3):
        found = standings(played(1, 1, lambda _, buffer: 9.0 if "silo-3" in buffer else 1.0, rng, size), 1, over=True)
        assert sum(10**one.ratio for one in found) / len(found) == pytest.approx(1.0)
    assert [a.ratio >= b.ratio for a, b in pairwise(found)] == [True] * 9


def test_who_was_away_is_compared_with_the_seats_of_the_rounds_it_was_there() -> None:
    """All buffers of a silo's only round were far by turns of the weather: that says nothing about the silo."""
    seats = [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("i", "j")]

    def item(number: int, far: set[int], away: str) -> SeatedRound:
        there = [tuple(m for m in members if m != away) for members in seats]
        return SeatedRound(number, tuple(Seat(n, members, 9.0 if n in far else 1.0) for n, members in enumerate(there)))

    found = standings([item(0, {0, 1}, ""), item(1, set(), "a"), item(2, set(), "a")], 3, over=True)
    ratio = {one.silo: one.ratio for one in found}
    alone = {one.silo: one.ratio for one in standings([item(0, {0, 1}, "")], 3, over=True)}
    assert ratio["a"] == pytest.approx(alone["a"])


def test_who_joins_late_starts_where_nothing_is_known_and_only_what_follows_counts() -> None:
    rng = random.Random(10)
    before = list(played(30, 1, attacked({"silo-2"}, rng), rng))
    seats = tuple(Seat(n, (f"{n}-a", f"{n}-b"), 1.0) for n in range(5))
    quiet = SeatedRound(30, seats)
    found = {one.silo: one.ratio for one in standings([*before, quiet], 1, over=True)}
    assert found["3-a"] == pytest.approx(0.0), "no buffer was suspected: nothing follows for anybody"
    loud = SeatedRound(30, (*seats[:4], Seat(4, ("4-a", "4-b"), 9.0)))
    found = {one.silo: one.ratio for one in standings([*before, loud], 1, over=True)}
    assert found["4-a"] > 0 > found["3-a"]
    assert sum(10 ** found[silo] for seat in seats for silo in seat.members) / 10 == pytest.approx(1.0)


def test_fewer_than_three_buffers_are_not_judged_and_neither_are_those_that_were_not_opened() -> None:
    assert far_away({0: 1.0, 1: 9.0}) == frozenset()
    assert far_away({0: 1.0, 1: 1.0, 2: 9.0, 3: None}) == {2}
    two = SeatedRound(1, (Seat(0, ("a",), 1.0), Seat(1, ("b",), 9.0)))
    assert standings([two], 1, over=True) == []
    assert sentence([]) == "No round with three buffers to compare yet."


def test_the_sentence_names_who_stands_out_and_what_the_next_has() -> None:
    found = [Standing("c", 25, 25, 9.0, 1e-8), Standing("h", 20, 25, 7.0, 2e-6), Standing("a", 5, 25, -1.0, 1.0)]
    assert sentence(found) == (
        "c (25 of its 25 buffers suspected) and h (20 of its 25 buffers suspected) stand out; the next silo has 5. "
        "By seats alone that happens with probability 2e-06 at most."
    )
    assert sentence(found[2:]) == "No silo stands out: the seats explain who sat in suspected buffers."
