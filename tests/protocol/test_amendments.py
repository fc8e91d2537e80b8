"""Another list of silos for the same run: what may change, what may not, and from when on (N4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.errors import OutOfPhaseError, RefusedError, SettingsError, UnknownSiloError
from fedrep.protocol.amendments import MAY_CHANGE, amended, check_amendment, check_chain, first_of, followed_to
from fedrep.protocol.manifests import Deadlines, RunManifest, SignedRunManifest, SiloName, signed_fields
from fedrep.protocol.preflight import preflight
from fedrep.protocol.run_events import Amend
from tests.protocol.federation import Federation
from tests.protocol.played_run import MemoryDisk, PlayedRun

NEWCOMER = "silo-99"


def a_run() -> RunManifest:
    return Federation.of(5, reshuffle_every=10).run


def other_value(name: str, value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, Deadlines):
        return replace(value, propose=value.propose + 1)
    if isinstance(value, bytes):
        return value + b"!"
    if value is None:
        return 0.5
    return value + "!" if isinstance(value, str) else value + 1  # type: ignore[operator]


def test_an_amended_manifest_follows_the_one_before_and_passes_the_preflight() -> None:
    run = a_run()
    new = amended(run, [NEWCOMER], ["silo-00"], last_round=7)
    assert new.silos == (*run.silos[1:], NEWCOMER)
    assert (new.predecessor, new.from_round) == (run.digest(), 10)
    check_amendment(run, new)
    assert preflight(new) == []


@pytest.mark.parametrize(("last_round", "from_round"), [(0, 10), (9, 10), (10, 20), (11, 20)])
def test_it_counts_from_the_first_round_of_an_epoch_that_has_not_begun(last_round: int, from_round: int) -> None:
    assert amended(a_run(), [NEWCOMER], [], last_round).from_round == from_round


def test_the_bits_of_values_follow_the_largest_buffer() -> None:
    """Five silos in pairs make a buffer of three; four do not."""
    run = a_run()
    assert amended(run, [], ["silo-00"], 0).value_bits == run.value_bits + 1


@pytest.mark.parametrize(("add", "remove"), [([], []), (["silo-00"], []), ([], [NEWCOMER])])
def test_a_list_that_would_not_change_is_one_sentence(add: list[str], remove: list[str]) -> None:
    with pytest.raises(SettingsError, match="would not change"):
        amended(a_run(), add, remove, 0)


@pytest.mark.parametrize("name", sorted(set(signed_fields(RunManifest)) - MAY_CHANGE))
def test_nothing_but_the_list_and_what_follows_from_it_may_change(name: str) -> None:
    run = a_run()
    new = amended(run, [NEWCOMER], [], 0)
    other = other_value(name, getattr(new, name))
    with pytest.raises(RefusedError, match=f"{name} differs") as refused:
        check_amendment(run, replace(new, **{name: other}))  # type: ignore[arg-type]
    assert refused.value.reason == "BAD_AMENDMENT"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"predecessor": b""}, "does not follow"),
        ({"predecessor": bytes(32)}, "does not follow"),
        ({"from_round": 0}, "later epoch"),
        ({"from_round": 11}, "later epoch"),
        ({"value_bits": 3}, "value_bits"),
        ({"silos": (SiloName("silo-00"),)}, "value_bits"),
    ],
)
def test_an_amendment_that_does_not_fit_is_refused(changes: dict[str, object], why: str) -> None:
    run = a_run()
    with pytest.raises(RefusedError, match=why):
        check_amendment(run, replace(amended(run, [NEWCOMER], [], 0), **changes))  # type: ignore[arg-type]


def test_a_silo_that_was_away_follows_every_link_of_the_chain() -> None:
    first = a_run()
    second = amended(first, [NEWCOMER], [], 3)
    third = amended(second, [], ["silo-00"], 13)
    chain = (first, second, third)
    for known in chain:
        check_chain(known.digest().hex(), chain, last_round=5)
    assert followed_to(chain) == chain
    assert followed_to((first, third)) == (third,)
    louder = replace(second, alpha=0.0)
    lying = (first, louder, replace(third, alpha=0.0, predecessor=bytes(louder.digest())))
    with pytest.raises(RefusedError, match="alpha differs"):
        check_chain(first.digest().hex(), lying, last_round=5)


@pytest.mark.parametrize("gap", [False, True])
def test_a_chain_with_a_gap_or_of_another_run_is_refused(gap: bool) -> None:
    first = a_run()
    second = amended(first, [NEWCOMER], [], 3)
    third = amended(second, [], ["silo-00"], 13)
    with pytest.raises(RefusedError) as refused:
        check_chain(first.digest().hex(), (first, third) if gap else (second, third), last_round=5)
    assert refused.value.reason == ("BAD_AMENDMENT" if gap else "OTHER_RUN")


def test_the_first_manifest_of_a_run_is_one_that_follows_nothing() -> None:
    """A silo with a new folder looks up by it what it has spent; without the first links it would begin anew."""
    first = a_run()
    second = amended(first, [NEWCOMER], [], 3)
    assert first_of((first, second)) == first
    with pytest.raises(RefusedError, match="leaves out the manifest"):
        first_of((second,))


def test_a_silo_that_spoke_in_an_epoch_under_the_old_list_sits_in_no_second_grouping_of_it() -> None:
    first = a_run()
    chain = (first, amended(first, [NEWCOMER], [], 3))
    check_chain(first.digest().hex(), chain, last_round=9)
    with pytest.raises(RefusedError, match="already spoke in round 10"):
        check_chain(first.digest().hex(), chain, last_round=10)


def served() -> PlayedRun:
    run = PlayedRun.of(4, quorum=3, reshuffle_every=2)
    assert isinstance(run, PlayedRun)
    run.serve(MemoryDisk.of(run.run, run.model))
    return run


def amend(run: PlayedRun, new: RunManifest) -> None:
    run.interpreter.tell(Amend(SignedRunManifest(new, "ada", b"admin", b"")))


def test_the_server_plays_an_epoch_to_its_end_before_the_new_list_counts() -> None:
    run = served()
    machine = run.interpreter.machine
    run.join()
    run.open_round()
    new = amended(run.run, [NEWCOMER], ["silo-00"], 1)
    amend(run, new)
    assert machine.rules == run.run
    machine.check_allowed("silo-00")
    while machine.open is not None:
        run.deadline()
    assert machine.rules == new
    assert (machine.rules_of(1), machine.rules_of(2)) == (run.run, new)
    assert not any(standing.present for standing in machine.progress.attendance.standings.values())
    machine.check_allowed(NEWCOMER)
    with pytest.raises(UnknownSiloError, match="took 'silo-00' off the list"):
        machine.check_allowed("silo-00")
    machine.check_allowed("silo-00", about=machine.rules.from_round - 1)
    with pytest.raises(UnknownSiloError):
        machine.check_allowed("silo-00", about=machine.rules.from_round)


def test_an_amendment_that_a_round_has_overtaken_is_refused_and_one_that_waits_is_replaced() -> None:
    run = served()
    machine = run.interpreter.machine
    run.play_all()
    run.join()
    run.open_round()
    before = machine.progress
    with pytest.raises(OutOfPhaseError) as refused:
        amend(run, amended(run.run, [NEWCOMER], [], 1))
    assert refused.value.reason == "EPOCH_MOVED"
    assert machine.progress is before
    for name in (NEWCOMER, "silo-98"):
        amend(run, amended(run.run, [name], [], 2))
    pending = machine.progress.pending
    assert pending is not None
    assert pending.manifest.silos[-1] == "silo-98"
    assert len(machine.progress.amendments) == 1
