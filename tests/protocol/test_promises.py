"""What silos promise about their training records, where an admin or an operator asks for it: signed, and seen by everyone.

A promise is no proof. What is checked here is that nobody can give it for another silo, alter it, or leave it out unseen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.errors import CryptoError, SettingsError
from fedrep.protocol.amendments import amended, check_amendment
from fedrep.protocol.manifests import RecordPromise, RoundManifest, SiloName, session_key_message
from fedrep.protocol.messages import Outcome
from fedrep.protocol.preflight import preflight
from fedrep.protocol.run_events import Joined
from fedrep.protocol.server_rules import check_promise, check_session_key
from fedrep.protocol.silo_effects import Join
from fedrep.protocol.silo_rules import Policy, check_run
from tests.protocol.federation import Federation
from tests.protocol.played_run import MemoryDisk, PlayedRun
from tests.protocol.silo_refusal import enter, refused

PROMISE = RecordPromise(8.0, 1e-5)
FIRST = SiloName("silo-00")
TOO_WEAK = [None, RecordPromise(8.01, 1e-5), RecordPromise(8.0, 1.1e-5)]


def asking() -> Federation:
    return Federation.of(5, record_epsilon_at_most=8.0, delta_at_most=1e-5)


def served() -> PlayedRun:
    """Four silos, of whom three are a quorum; nobody has joined."""
    played = PlayedRun.of(4, quorum=3, record_epsilon_at_most=8.0, delta_at_most=1e-5)
    assert isinstance(played, PlayedRun)
    played.serve(MemoryDisk.of(played.run, played.model))
    return played


def with_promise(federation: Federation, promise: RecordPromise | None, *, signed: bool) -> RoundManifest:
    """The manifest with another promise of its last silo, which signed it or did not."""
    manifest = federation.manifest
    assert manifest is not None
    *others, last = manifest.roster
    key = federation.silos[last.name].signing_key
    message = session_key_message(manifest.run, last.session_key, promise)
    signature = key.sign(message) if signed else last.session_signature
    return replace(manifest, roster=(*others, replace(last, promise=promise, session_signature=signature)))


# What a silo does about its own promise.


@pytest.mark.parametrize("promise", TOO_WEAK)
def test_a_silo_refuses_a_run_whose_limits_it_does_not_meet(promise: RecordPromise | None) -> None:
    run = asking().run
    check_run(run, Policy(), "silo-00", PROMISE)
    check_run(run, Policy(), "silo-00", RecordPromise(1.0, 1e-9))
    text = refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, Policy(), "silo-00", promise))
    assert "at most epsilon 8.0 at delta 1e-05" in text
    assert ("no budget for records" if promise is None else str(promise)) in text


@pytest.mark.parametrize("limits", [{"delta_at_most": None}, {"record_epsilon_at_most": None}, {"delta_at_most": float("nan")}])
def test_half_a_limit_or_one_that_is_no_number_is_met_by_nobody(limits: dict[str, float | None]) -> None:
    run = replace(asking().run, **limits)  # type: ignore[arg-type]
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, Policy(), "silo-00", PROMISE))
    assert any("belong together" in problem for problem in preflight(run))


@pytest.mark.parametrize("limits", [(0.0, 1e-5), (-1.0, 1e-5), (float("inf"), 1e-5), (8.0, 0.0), (8.0, 1.0)])
def test_a_run_with_limits_that_mean_nothing_is_not_created(limits: tuple[float, float]) -> None:
    run = asking().run
    assert preflight(run) == []
    assert preflight(replace(run, record_epsilon_at_most=None, delta_at_most=None)) == []
    problems = preflight(replace(run, record_epsilon_at_most=limits[0], delta_at_most=limits[1]))
    assert [problem for problem in problems if "belong together" in problem]


def test_a_silo_signs_its_promise_with_its_session_key_where_the_run_asks_for_one() -> None:
    federation = asking()
    run = federation.run.digest()
    silo = federation.silos[FIRST]
    said = next(message for message in silo.player.wire if isinstance(message, Join))
    assert said.promise == PROMISE
    silo.signing_key.verify_key.verify(said.signature, session_key_message(run, said.session_key, PROMISE))


def test_a_silo_says_nothing_of_its_budget_where_the_run_does_not_ask() -> None:
    federation = Federation.of(5)
    federation.promise = PROMISE
    silo = federation.silos[FIRST]
    silo.player.restart()
    silo.player.start()
    federation.answer_join(silo, None)
    said = [message for message in silo.player.wire if isinstance(message, Join)][-1]
    assert said.promise is None
    silo.signing_key.verify_key.verify(said.signature, session_key_message(federation.run.digest(), said.session_key))


def test_a_silo_that_cannot_promise_never_announces_itself() -> None:
    federation = asking()
    federation.promise = RecordPromise(9.0, 1e-5)
    silo = federation.silos[FIRST]
    silo.player.restart()
    before = len(silo.player.wire)
    silo.player.start()
    refused("RUN_OUTSIDE_POLICY", lambda: federation.answer_join(silo, None))
    assert len(silo.player.wire) == before
    assert silo.player.stopped is not None


def test_a_budget_that_was_raised_counts_in_the_next_round() -> None:
    federation = asking()
    federation.open_round()
    federation.promise = RecordPromise(9.0, 1e-5)
    refused("RUN_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0]))


# What a silo demands of the others.


@pytest.mark.parametrize("promise", TOO_WEAK)
def test_a_server_that_lists_a_silo_without_the_promise_is_refused(promise: RecordPromise | None) -> None:
    """Even if that silo signed exactly this: the run's rules are the admin's, not the server's."""
    federation = asking()
    federation.open_round()
    manifest = with_promise(federation, promise, signed=True)
    text = refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))
    assert "silo-04" in text
    assert f"promises {promise or 'nothing'}" in text
    enter(federation, federation.members[0], manifest=with_promise(federation, RecordPromise(1.0, 1e-9), signed=True))


@pytest.mark.parametrize("promise", [RecordPromise(7.0, 1e-5), RecordPromise(8.0, 1e-6)])
def test_a_promise_that_its_silo_did_not_sign_is_refused(promise: RecordPromise) -> None:
    federation = asking()
    federation.open_round()
    manifest = with_promise(federation, promise, signed=False)
    text = refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))
    assert "unusable session key or promise" in text


def test_a_promise_that_was_given_cannot_be_taken_away_in_a_run_that_asks_for_none() -> None:
    federation = asking()
    federation.open_round()
    lenient = replace(federation.run, record_epsilon_at_most=None, delta_at_most=None)
    federation.run = lenient
    manifest = replace(with_promise(federation, None, signed=False), run=lenient.digest())
    refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))


@pytest.mark.parametrize(
    ("policy", "limits", "told"),
    [
        (Policy(others_record_epsilon=8.0), (None, None), "promise nothing as epsilon"),
        (Policy(others_record_delta=1e-5), (None, None), "promise nothing as delta"),
        (Policy(others_record_epsilon=7.9), (8.0, 1e-5), "at most 8.0 as epsilon"),
        (Policy(others_record_delta=1e-6), (8.0, 1e-5), "at most 1e-05 as delta"),
        (Policy(others_record_epsilon=7.9), (float("nan"), 1e-5), "at most nan as epsilon"),
    ],
)
def test_a_policy_refuses_runs_in_which_the_others_need_not_promise(
    policy: Policy, limits: tuple[float | None, float | None], told: str
) -> None:
    run = replace(asking().run, record_epsilon_at_most=limits[0], delta_at_most=limits[1])
    text = refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, policy, "silo-00", RecordPromise(0.5, 1e-9)))
    assert told in text


def test_a_policy_takes_runs_that_ask_for_as_much_as_it_does() -> None:
    run = asking().run
    check_run(run, Policy(others_record_epsilon=8.0, others_record_delta=1e-5), "silo-00", PROMISE)
    check_run(run, Policy(others_record_epsilon=20.0), "silo-00", PROMISE)


def test_a_policy_that_has_become_stricter_counts_in_the_next_round() -> None:
    federation = asking()
    federation.open_round()
    silo = federation.members[0]
    enter(federation, silo, policy=Policy(others_record_epsilon=8.0))
    refused("RUN_OUTSIDE_POLICY", lambda: enter(federation, silo, policy=Policy(others_record_epsilon=4.0)))


# What the server demands.


@pytest.mark.parametrize("promise", TOO_WEAK)
def test_the_server_lets_nobody_join_whose_promise_does_not_meet_the_run(promise: RecordPromise | None) -> None:
    played = served()
    silo = played.silos[FIRST]
    entry = replace(played.entry(silo), promise=promise)
    with pytest.raises(SettingsError, match=r"at most epsilon 8\.0 at delta 1e-05") as caught:
        played.interpreter.machine.receive(Joined(entry, silo.signing_key.verify_key))
    assert caught.value.reason == "NO_PROMISE"
    assert silo.name not in played.interpreter.machine.progress.attendance.standings
    played.join(silo.name)
    assert played.interpreter.machine.progress.attendance.standings[silo.name].entry.promise == PROMISE


def test_the_server_takes_no_promise_that_the_silo_did_not_sign() -> None:
    federation = asking()
    manifest = federation.open_round()
    silo, entry = federation.members[0], manifest.roster[0]
    key = silo.signing_key.verify_key
    check_session_key(entry, manifest.run, key)
    check_promise(entry, federation.run)
    for promise in (None, RecordPromise(1.0, 1e-5)):
        with pytest.raises(CryptoError, match="the promise it came with"):
            check_session_key(replace(entry, promise=promise), manifest.run, key)


def test_the_next_session_key_comes_with_the_same_promise() -> None:
    """Or the next roster would show a key whose signature fits no promise."""
    federation = asking()
    federation.open_round()
    first, second = federation.members[:2]
    proposed = federation.prepare(first).message
    unpromised = first.signing_key.sign(session_key_message(proposed.run, proposed.record.next_session_key))
    with pytest.raises(CryptoError, match="next session key"):
        federation.round.receive(replace(proposed, next_session_signature=unpromised))
    federation.round.receive(proposed)
    federation.abstain(second)


def test_whole_rounds_are_played_with_promises_and_every_roster_shows_them() -> None:
    played = served()
    played.join()
    for number in (1, 2, 3):
        assert played.play().outcome is Outcome.APPLIED
        assert played.manifest is not None
        assert played.manifest.round == number
        assert [entry.promise for entry in played.manifest.roster] == [PROMISE] * 4


def test_an_amendment_does_not_touch_the_limits() -> None:
    run = asking().run
    new = amended(run, ["silo-09"], [], 3)
    check_amendment(run, new)
    assert (new.record_epsilon_at_most, new.delta_at_most) == (8.0, 1e-5)
    for changes in ({"record_epsilon_at_most": 9.0}, {"delta_at_most": None}):
        refused("BAD_AMENDMENT", lambda c=changes: check_amendment(run, replace(new, **c)))  # type: ignore[misc]
