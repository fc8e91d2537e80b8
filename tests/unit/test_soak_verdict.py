"""The soak's own judgement: what stays flat passes, and what leaks, slows down, stays silent or skips does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak import Played, Window, verdict

ROUNDS = 2000
WHOLE = Played(ROUNDS, ROUNDS, ROUNDS, 0)


def windows(**growth: float) -> list[Window]:
    """Twenty of them, a little uneven; `growth` is added every round. At first everything fills up, as it may."""
    made = []
    for number in range(1, 21):
        last, wobble = number * ROUNDS // 20, 0.5 * (number % 3)
        filling = 30.0 * min(number, 4) / 4
        flat = Window(
            last, 120 + filling + wobble, 200 + filling, 90, 110, 20, 22, 300, 100 + wobble, 300, 400 + 20 * wobble, 390
        )
        made.append(replace(flat, **{name: getattr(flat, name) + each * last for name, each in growth.items()}))
    return made


def test_what_stays_flat_after_it_has_settled_passes() -> None:
    result = verdict(windows(), WHOLE)
    assert result["flat"] is True
    assert abs(result["growth_kb"]["server_mb"]) < 0.5


@pytest.mark.parametrize(
    "growth",
    [
        {"server_mb": 10 / 1024},
        {"silos_mb": 12 / 1024},
        {"server_files": 0.02},
        {"silos_threads": 0.01},
        {"tasks": 0.05},
        {"server_cpu_ms": 0.02},
        {"silos_cpu_ms": 0.05},
    ],
    ids=lambda growth: next(iter(growth)),
)
def test_what_grows_with_every_round_is_found(growth: dict[str, float]) -> None:
    assert verdict(windows(**growth), WHOLE)["flat"] is False


def test_the_verdict_knows_the_slowest_leak_that_it_can_see() -> None:
    seen = verdict(windows(), WHOLE)["seen_kb"]
    for name in ("server_mb", "silos_mb"):
        for share, flat in ((0.7, True), (1.4, False)):
            result = verdict(windows(**{name: share * seen[name] / 1024}), WHOLE)
            assert result["flat"] is flat, (name, share)
            assert result["growth_kb"][name] == pytest.approx(share * seen[name], abs=0.5)


@pytest.mark.parametrize(
    ("played", "flat"),
    [
        (WHOLE, True),
        (Played(ROUNDS, ROUNDS, ROUNDS, 20), True),
        (Played(ROUNDS, ROUNDS, ROUNDS, 21), False),
        (Played(ROUNDS, ROUNDS - 21, ROUNDS, 0), False),
        (Played(ROUNDS, ROUNDS - 1, ROUNDS - 1, 0), False),
    ],
    ids=["all rounds", "a hundredth skipped", "more skipped", "a silo missed more", "a silo missed the last"],
)
def test_a_silo_that_falls_silent_and_rounds_that_are_skipped_are_no_success(played: Played, flat: bool) -> None:
    assert verdict(windows(), played)["flat"] is flat


@pytest.mark.parametrize("slower", [1.0, 1.4])
def test_a_machine_that_grows_slower_is_not_taken_for_a_round_that_costs_more(slower: float) -> None:
    """The last half of the windows on a machine that needs so much longer for everything, and then only for our work."""
    steady = windows()

    def slowed(window: Window, yardstick: float) -> Window:
        cost = {name: slower * getattr(window, name) for name in ("server_cpu_ms", "silos_cpu_ms")}
        return replace(window, **cost, yardstick_ms=yardstick)

    assert verdict([*steady[:10], *(slowed(one, slower) for one in steady[10:])], WHOLE)["flat"] is True
    assert verdict([*steady[:10], *(slowed(one, 1.0) for one in steady[10:])], WHOLE)["flat"] is (slower == 1.0)


def test_silos_that_train_at_once_may_need_a_few_threads_more_than_ever() -> None:
    grown = [replace(one, silos_threads=128 + one.last_round // 200) for one in windows()]
    assert verdict(grown, WHOLE, silos=128)["flat"] is True
    assert verdict(grown, WHOLE, silos=32)["flat"] is True
    grown = [replace(one, silos_threads=128 + one.last_round // 100) for one in windows()]
    assert verdict(grown, WHOLE, silos=128)["flat"] is True
    assert verdict(grown, WHOLE, silos=32)["flat"] is False
    grown = [replace(one, silos_threads=128 + one.last_round // 40) for one in windows()]
    assert verdict(grown, WHOLE, silos=128)["flat"] is False
