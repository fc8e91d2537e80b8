"""The short drill: every kind of fault once against a real federation, and every invariant. `make chaos` plays the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.drill import Drill, table
from tests.chaos.plan import KINDS, Plan, make_plan
from tests.chaos.stage import SILOS, Stage

SILO_NAMES = [f"silo-{number}" for number in range(SILOS)]
SEED = 20
FAULTS = len(KINDS) + 4  # each kind once, three attacks, and a revocation


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_federation_in_which_everything_breaks_loses_counts_twice_and_reveals_nothing(tmp_path: Path) -> None:
    plan = make_plan(SEED, FAULTS, SILO_NAMES, pause=0.8, attacks=3)
    said: list[str] = []
    result = asyncio.run(Drill(Stage(tmp_path / "federation"), plan, said.append).play())
    told = "\n".join([*plan.lines(), *said, *table(result)])
    assert result["problems"] == [], told
    assert result["faults"] == FAULTS, told
    assert set(KINDS) <= {fault.kind for fault in plan.faults}
    assert result["rounds_applied"] > 5, told
    assert result["updates_recomputed"] >= result["rounds_applied"], told


def test_a_plan_is_the_same_for_a_seed_and_plays_again_from_its_file(tmp_path: Path) -> None:
    plan = make_plan(7, 520, SILO_NAMES, pause=1.0)
    assert plan == make_plan(7, 520, SILO_NAMES, pause=1.0)
    assert plan != make_plan(8, 520, SILO_NAMES, pause=1.0)
    assert len(plan.faults) == 520
    assert {fault.kind for fault in plan.faults} == {*KINDS, "attack", "revoke silo"}
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    revoked = next(fault for fault in plan.faults if fault.kind == "revoke silo")
    assert revoked.victim not in {fault.victim for fault in plan.faults[revoked.number :]}
