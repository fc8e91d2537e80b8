"""Long benchmarks go on where they were stopped, and exponents are those of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.resumable import Steps
from benchmarks.scaling import QUANTITIES, exponents, slope


def counting(played: list[str], name: str) -> Any:
    def step() -> dict[str, Any]:
        played.append(name)
        if name == "bad":
            raise KeyboardInterrupt
        return {"figure": len(played)}

    return name, step


def test_a_stopped_benchmark_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    played: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Steps(tmp_path / "kept.json", None, fresh=False).play([counting(played, "first"), counting(played, "bad")])
    again = Steps(tmp_path / "kept.json", None, fresh=False)
    assert again.play([counting(played, "first"), counting(played, "second")])
    assert played == ["first", "bad", "second"]
    assert {name: step["figure"] for name, step in again.done.items()} == {"first": 1, "second": 3}


def test_a_fresh_start_measures_everything_anew(tmp_path: Path) -> None:
    played: list[str] = []
    for fresh in (False, True):
        Steps(tmp_path / "kept.json", None, fresh=fresh).play([counting(played, "first")])
    assert played == ["first", "first"]


def test_no_step_begins_after_the_time_is_up_and_the_caller_hears_of_it(tmp_path: Path) -> None:
    played: list[str] = []
    assert not Steps(tmp_path / "kept.json", -1.0, fresh=False).play([counting(played, "first")])
    assert played == []


def test_the_exponent_of_a_power_is_the_power() -> None:
    assert slope([1e5, 1e6, 1e7], [3 * 1e5**1.5, 3 * 1e6**1.5, 3 * 1e7**1.5]) == pytest.approx(1.5)


def test_a_fixed_cost_flattens_the_fit_and_not_the_last_step() -> None:
    rows = [dict.fromkeys(QUANTITIES, 1e6 + at) | {"at": at} for at in (1e3, 1e5, 1e8, 1e9)]
    fitted = exponents(rows)["server_ms"]
    assert fitted["fit"] < 0.6 < 0.95 < fitted["last"] < 1.0
