"""Rule 7: what the operator of a silo allows, whatever an admin or a server signs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.privacy import CoordinateRelease, Ledger, coordinate_epsilon
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Survivor, SurvivorSet
from fedrep.protocol.silo_rules import Policy, check_epsilon, check_run
from tests.protocol.federation import Federation
from tests.protocol.silo_refusal import enter, refused, under


@pytest.mark.parametrize(
    ("policy", "run_changes"),
    [
        (Policy(smallest_buffer=3), {}),
        (Policy(smallest_sum=3), {"buffer_size": 4}),
        (Policy(least_alpha=0.6), {}),
        (Policy(largest_fraction=0.2), {}),
        (Policy(ring_bits=(32,)), {}),
        (Policy(smallest_range=1e-3), {}),
        (Policy(allowed_runs=("another",)), {}),
        (Policy(expected_model_hash=b"m" * 32), {}),
        (Policy(expected_layout_hash=b"l" * 32), {}),
        (Policy(), {"drills": True}),
        (Policy(), {"alpha": float("nan")}),
        (Policy(), {"alpha": 1.5}),
        (Policy(), {"smallest_range": float("nan")}),
        (Policy(), {"silos": (SiloName("silo-01"), SiloName("silo-02"))}),
        (Policy(), {"silos": (SiloName("silo-00"), SiloName("silo-00"))}),
    ],
)
def test_a_run_outside_the_policy_is_refused(policy: Policy, run_changes: dict[str, object]) -> None:
    run = Federation.of(5).run
    check_run(run, Policy(), "silo-00")
    changed = replace(run, **run_changes)  # type: ignore[arg-type]
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(changed, policy, "silo-00"))


def test_all_problems_of_a_run_are_told_at_once() -> None:
    run = Federation.of(5).run
    policy = Policy(smallest_buffer=3, least_alpha=0.6, largest_fraction=0.2)
    text = refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, policy, "silo-00"))
    assert all(word in text for word in ("buffers of 2", "alpha 0.5", "K/d"))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": b"another"},
        {"parameters": 65},
        {"coordinates": 20, "per_silo": 4},
        {"per_silo": 4},
        {"alpha": 0.0},
        {"alpha": float("nan")},
        {"buffer_size": 1},
        {"ring_bits": 8},
        {"value_bits": 2},
        {"byzantine": 1},
        {"clip_range": 1e-9},
        {"clip_range": 1e9},
        {"clip_range": float("nan")},
        {"model_hash": b"another"},
    ],
)
def test_a_round_whose_terms_differ_from_the_run_is_refused(changes: dict[str, object]) -> None:
    federation = Federation.of(5)
    manifest = replace(federation.open_round(), **changes)  # type: ignore[arg-type]
    refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0], manifest=manifest))


def test_a_range_below_the_limit_is_refused_and_the_limit_itself_is_not() -> None:
    federation = Federation.of(5)
    federation.open_round()
    run = replace(federation.run, smallest_range=0.125)
    first, manifest = federation.members[0], under(federation, run, clip_range=0.125)
    enter(federation, first, manifest=manifest, run=run, policy=Policy(smallest_range=0.125))
    lower = replace(manifest, clip_range=0.0625)
    text = refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, first, manifest=lower, run=run))
    assert text == "round 1 refused: range 0.0625 is outside 0.125..1e+06"


@pytest.mark.parametrize("phase", ["propose", "submit", "confirm", "reveal"])
def test_a_deadline_shorter_than_signed_is_refused_and_a_longer_one_is_not(phase: str) -> None:
    """A server in a hurry would choose who is late."""
    federation = Federation.of(5)
    manifest, first = federation.open_round(), federation.members[0]
    for seconds, allowed in ((59.9, False), (float("nan"), False), (60.0, True), (61.0, True)):
        changed = replace(manifest, deadlines=replace(manifest.deadlines, **{phase: seconds}))
        if allowed:
            enter(federation, first, manifest=changed)
        else:
            text = refused("ROUND_OUTSIDE_POLICY", lambda m=changed: enter(federation, first, manifest=m))  # type: ignore[misc]
            assert text == f"round 1 refused: the {phase} deadline is shorter than signed"


def test_a_roster_below_the_signed_quorum_is_refused_and_the_quorum_itself_is_not() -> None:
    federation = Federation.of(6, quorum=5)
    federation.open_round(list(federation.silos)[:5])
    enter(federation, federation.members[0])
    federation.new_round(list(federation.silos)[:4])
    text = refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0]))
    assert text == "round 2 refused: a roster of 4 is smaller than the quorum of 5"


@pytest.mark.parametrize(("number", "allowed"), [(0, False), (19, False), (20, True), (30, True), (31, False), (-20, False)])
def test_a_round_that_no_admin_signed_is_refused(number: int, allowed: bool) -> None:
    """Neither before the first round of an amended run nor after its last one."""
    federation = Federation.of(5)
    federation.open_round()
    run = replace(federation.run, from_round=20, rounds=30)
    first, manifest = federation.members[0], under(federation, run, round=number)
    if allowed:
        enter(federation, first, manifest=manifest, run=run, last_round=-100)
    else:
        refused("ROUND_NOT_SIGNED", lambda: enter(federation, first, manifest=manifest, run=run, last_round=-100))


@pytest.mark.parametrize("start", [1.0, 3.0, 0.1])
def test_a_range_that_is_no_power_of_two_away_from_where_it_started_is_refused(start: float) -> None:
    """Every other value would be a question about a silo's own values that a server could ask in small steps."""
    federation = Federation.of(5)
    federation.open_round()
    run = replace(federation.run, initial_range=start)
    first = federation.members[0]
    for power in (-9, -1, 0, 1, 9):
        enter(federation, first, manifest=under(federation, run, clip_range=start * 2.0**power), run=run)
    for factor in (0.3, 1.5, 3.0, 1.0000001):
        manifest = under(federation, run, clip_range=start * factor)
        text = refused("ROUND_OUTSIDE_POLICY", lambda m=manifest: enter(federation, first, manifest=m, run=run))  # type: ignore[misc]
        assert text.endswith(f"is not {start:g} times a power of two")


def test_a_roster_smaller_than_the_policy_asks_for_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0], policy=Policy(smallest_roster=6)))


def test_a_model_this_silo_does_not_hold_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0], model_hash=b"another"))


def test_a_manifest_that_does_not_list_this_silo_is_refused() -> None:
    federation = Federation.of(6)
    federation.open_round(list(federation.silos)[:5])
    refused("NOT_IN_ROSTER", lambda: enter(federation, federation.silos[SiloName("silo-05")]))


def test_the_epsilon_budget_stops_a_silo_before_it_is_exceeded() -> None:
    federation = Federation.of(5)
    manifest = federation.open_round()
    cost = coordinate_epsilon(manifest.parameters, manifest.per_silo, manifest.alpha)
    assert cost is not None
    spent = Ledger()
    for number in (1, 2):
        spent = spent.charge(CoordinateRelease(number, manifest.parameters, manifest.per_silo, manifest.alpha))
    third = replace(manifest, round=3)
    check_epsilon(third, spent, Policy())
    check_epsilon(third, spent, Policy(epsilon_budget=3 * cost))
    refused("EPSILON_BUDGET", lambda: check_epsilon(third, spent, Policy(epsilon_budget=2.99 * cost)))


def test_no_budget_covers_a_proposal_without_obfuscation() -> None:
    manifest = replace(Federation.of(5).open_round(), alpha=0.0)
    refused("EPSILON_BUDGET", lambda: check_epsilon(manifest, Ledger(), Policy(epsilon_budget=1e9)))
    check_epsilon(manifest, Ledger(), Policy())


def test_a_silo_that_once_proposed_without_obfuscation_has_no_budget_left() -> None:
    manifest = replace(Federation.of(5).open_round(), round=9)
    spent = Ledger().charge(CoordinateRelease(8, manifest.parameters, manifest.per_silo, 0.0))
    refused("EPSILON_BUDGET", lambda: check_epsilon(manifest, spent, Policy(epsilon_budget=1e9)))


def test_the_epsilon_in_a_refusal_is_never_smaller_than_the_real_one() -> None:
    manifest = Federation.of(5).open_round()
    cost = coordinate_epsilon(manifest.parameters, manifest.per_silo, manifest.alpha)
    assert cost is not None
    text = refused("EPSILON_BUDGET", lambda: check_epsilon(manifest, Ledger(), Policy(epsilon_budget=0.1)))
    stated = float(text.split("epsilon ")[1].split(";")[0])
    assert cost <= stated < cost + 0.01


def test_survivor_sets_with_other_signatures_but_the_same_names_are_the_same_set() -> None:
    """U is who survived: a holder's confirmation must not depend on which valid signature bytes it was shown."""
    one = SurvivorSet(((Survivor(SiloName("a"), b"1"), Survivor(SiloName("b"), b"2")),))
    two = SurvivorSet(((Survivor(SiloName("a"), b"3"), Survivor(SiloName("b"), b"4")),))
    assert one.digest() == two.digest()
    assert one.digest() != SurvivorSet(((Survivor(SiloName("a"), b"1"),), (Survivor(SiloName("b"), b"2"),))).digest()
