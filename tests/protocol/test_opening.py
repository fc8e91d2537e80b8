"""Opening: shares to secrets, masks off the sums, sums to the update; and who is found out on the way."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import fedrep.protocol.server_round as server_round
from fedrep.aggregators import AGGREGATORS, Aggregate, ConfiguredRule
from fedrep.aggregators.prepare import PRE_STEPS
from fedrep.aggregators.rules import KRUM
from fedrep.errors import CryptoError, InvalidInputError, SettingsError
from fedrep.protocol.messages import Outcome, Phase, Secret, Survivor, SurvivorSet
from fedrep.protocol.opening import Combined, combine_buffers, configured_rule, recover, share_matches, why_skipped
from fedrep.protocol.preflight import preflight
from fedrep.protocol.round_effects import Noted, RoundEnded, RoundResult
from fedrep.protocol.seats import seats
from fedrep.quantize import RingFormat, open_mean
from fedrep.secagg import shamir
from tests.protocol.byzantine import garbage_shares, propose_with_bad_shares, submit_random_values
from tests.protocol.federation import Federation, Silo
from tests.protocol.theatre import Theatre


def attacked(silos: int = 8, **changes: object) -> Federation:
    """Eight silos in four buffers of which f = 1 may be attacked (o_min = 3)."""
    settings: dict[str, object] = {"byzantine": 1, "aggregator": "median", "quorum": silos, "parameters": 80, **changes}
    federation = Federation.of(silos, **settings)  # type: ignore[arg-type]
    assert preflight(federation.run) == []
    federation.open_round()
    return federation


def play_on(federation: Federation, *, silent: tuple[Silo, ...] = ()) -> RoundResult:
    """Everyone left does what remains, honestly."""
    steps = {
        Phase.PROPOSE: (federation.propose, "proposed"),
        Phase.SUBMIT: (federation.submit, "submitted"),
        Phase.CONFIRM: (federation.confirm, "confirmed"),
        Phase.REVEAL: (federation.reveal, "revealed"),
    }
    for phase, (act, step) in steps.items():
        for silo in federation.members:
            if silo not in silent and getattr(silo, step) is None and not federation.over:
                act(silo)
        if federation.round.phase is phase:
            federation.deadline()
    result = federation.round.result
    assert result is not None
    return result


def buffer_of(federation: Federation, silo: Silo) -> int:
    return next(number for number, buffer in enumerate(federation.by_buffer()) if silo in buffer)


def plain_mean(federation: Federation, buffer: list[Silo]) -> NDArray[np.float32]:
    """What the survivors of a buffer sent, added without any mask."""
    ring = RingFormat(federation.run.ring_bits, federation.run.value_bits)
    levels = [silo.submitted.values.levels for silo in buffer if silo.submitted]
    total = np.sum(levels, axis=0, dtype=ring.dtype)
    return open_mean(total, len(levels), federation.run.initial_range, ring)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("dropouts", [0, 2])
def test_each_opened_sum_equals_the_plain_sum_of_the_survivors_bit_for_bit(
    bits: int, dropouts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, NDArray[np.float32]] = {}
    original = combine_buffers

    def spy(means: dict[int, NDArray[np.float32]], *rest: object) -> Combined:
        seen.update(means)
        return original(means, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(server_round, "combine_buffers", spy)
    federation = Federation.of(9, parameters=120, buffer_size=4, ring_bits=bits, min_survivors=3, quorum=9)
    federation.until(Phase.SUBMIT)
    gone = tuple(buffer[1] for buffer in federation.by_buffer())[:dropouts]
    assert play_on(federation, silent=gone).outcome is Outcome.APPLIED
    for number, buffer in enumerate(federation.by_buffer()):
        np.testing.assert_array_equal(seen[number], plain_mean(federation, buffer))


def test_the_mean_weights_buffers_by_their_survivors() -> None:
    federation = Federation.of(9, parameters=120, buffer_size=4, min_survivors=3, quorum=9)
    federation.until(Phase.SUBMIT)
    gone = (federation.by_buffer()[0][0],)
    result = play_on(federation, silent=gone)
    assert result.combined is not None
    sent = [silo.submitted.values.dequantized for silo in federation.members if silo.submitted]
    np.testing.assert_allclose(result.combined.vector, np.mean(sent, axis=0), atol=1e-6)


def test_a_dealer_of_a_wrong_seed_spoils_its_own_buffer_and_sits_out() -> None:
    federation = attacked()
    cheat = federation.members[0]
    propose_with_bad_shares(federation, cheat, seed=b"\1" * 32)
    result = play_on(federation)
    place = buffer_of(federation, cheat)
    assert result.outcome is Outcome.APPLIED
    assert result.opened == tuple(n for n in range(4) if n != place)
    assert result.discarded == {place: f"{cheat.name}'s shares do not give the secret it announced"}
    assert result.report.failed == {cheat.name}
    assert result.report.complete == set(federation.silos) - {cheat.name}
    note = Noted("discarded", f"buffer {place} was discarded: {result.discarded[place]}", severity="alert")
    assert note in federation.effects


def test_a_dealer_of_a_wrong_mask_key_that_vanishes_spoils_its_own_buffer_and_sits_out() -> None:
    federation = attacked(buffer_size=2, min_survivors=2)
    cheat = federation.members[3]
    propose_with_bad_shares(federation, cheat, key=b"\2" * 32)
    result = play_on(federation)
    assert set(result.opened) == {0, 1, 2, 3}, "its x is not needed while it stays: the round cannot know"
    # The same silo vanishes after its proposal, from a buffer of three that still has two survivors.
    federation = Federation.of(
        13, parameters=80, buffer_size=3, byzantine=1, aggregator="median", min_survivors=2, colluders=0, quorum=12
    )
    federation.open_round()
    cheat = federation.members[3]
    propose_with_bad_shares(federation, cheat, key=b"\2" * 32)
    result = play_on(federation, silent=(cheat,))
    place = buffer_of(federation, cheat)
    assert set(result.discarded) == {place}
    assert "do not give the secret" in result.discarded[place]
    assert result.outcome is Outcome.APPLIED
    assert result.report.failed == {cheat.name}


def test_two_cheats_in_one_buffer_are_both_found_out() -> None:
    federation = attacked()
    first, second = (federation.silos[name] for name in seats(federation.run, 1)[0][:2])
    propose_with_bad_shares(federation, first, seed=b"\1" * 32)
    propose_with_bad_shares(federation, second, seed=b"\2" * 32)
    result = play_on(federation)
    assert buffer_of(federation, first) == buffer_of(federation, second)
    assert result.report.failed == {first.name, second.name}


@pytest.mark.parametrize("unmatched", [1, 2])
def test_a_dealer_sits_out_if_more_than_f_holders_lack_a_matching_share(unmatched: int) -> None:
    federation = attacked()
    cheat = federation.members[0]
    holders = [silo.name for silo in federation.members[1 : 1 + unmatched]]
    propose_with_bad_shares(federation, cheat, unmatched_for=holders)
    result = play_on(federation)
    assert result.outcome is Outcome.APPLIED
    assert result.discarded == {}, "t shares match: the secret is recovered all the same"
    assert result.report.failed == (frozenset() if unmatched == 1 else {cheat.name})


def test_a_dealer_whose_shares_match_for_too_few_holders_spoils_its_own_buffer() -> None:
    federation = attacked()
    cheat = federation.members[0]
    propose_with_bad_shares(federation, cheat, unmatched_for=[silo.name for silo in federation.members[5:]])
    result = play_on(federation)
    place = buffer_of(federation, cheat)
    assert result.discarded == {place: f"5 matching shares of {cheat.name}, 6 are needed"}
    assert result.outcome is Outcome.APPLIED
    assert result.report.failed == {cheat.name}


def test_a_holder_that_reveals_garbage_breaks_no_reconstruction_and_is_not_punished() -> None:
    federation = attacked()
    liar = federation.members[0]
    for silo in federation.members:
        federation.propose(silo)
    for silo in federation.members:
        federation.submit(silo)
    for silo in federation.members:
        federation.confirm(silo)
    federation.effects += federation.round.receive(garbage_shares(federation, liar))
    liar.revealed = federation.members[1].revealed
    result = play_on(federation, silent=(liar,))
    assert result.outcome is Outcome.APPLIED
    assert result.opened == (0, 1, 2, 3)
    assert result.report.failed == frozenset()


def test_a_sum_no_honest_silos_could_have_sent_discards_that_buffer_only() -> None:
    federation = attacked()
    for silo in federation.members:
        federation.propose(silo)
    liar = federation.members[2]
    submit_random_values(federation, liar)
    result = play_on(federation)
    place = buffer_of(federation, liar)
    assert set(result.discarded) == {place}
    assert "leaves the range of 2 honest survivors" in result.discarded[place]
    assert result.outcome is Outcome.APPLIED
    assert result.report.failed == frozenset(), "nobody can tell which of the two it was"


def test_two_spoiled_buffers_of_four_leave_too_few_to_open() -> None:
    federation = attacked()
    for silo in federation.members:
        federation.propose(silo)
    for buffer in federation.by_buffer()[:2]:
        submit_random_values(federation, buffer[0])
    result = play_on(federation)
    reason = "2 buffers could be opened, 3 are needed"
    assert (result.outcome, result.reason, result.opened, result.combined) == (Outcome.SKIPPED, reason, (), None)
    assert RoundEnded(result) in federation.effects


def test_fewer_opened_buffers_than_2f_plus_1_are_written_to_the_log() -> None:
    federation = Federation.of(
        16, parameters=80, byzantine=3, aggregator="median", quorum=16, buffer_size=2, colluders=0, min_survivors=2
    )
    assert preflight(federation.run) == []
    federation.until(Phase.SUBMIT)
    gone = tuple(buffer[0] for buffer in federation.by_buffer()[:2])
    result = play_on(federation, silent=gone)
    assert result.outcome is Outcome.APPLIED
    assert result.combined is not None
    assert result.combined.byzantine == 2
    assert [note.text for note in federation.effects if isinstance(note, Noted) and note.kind == "robustness"] == [
        "6 buffers opened: the rule withstands 2 bad ones, not f = 3; "
        "robustness now rests on the missing silos being the Byzantine ones"
    ]


def test_with_2f_plus_1_opened_buffers_the_log_stays_quiet() -> None:
    federation = attacked()
    for silo in federation.members:
        federation.propose(silo)
    submit_random_values(federation, federation.members[2])
    result = play_on(federation)
    assert result.combined is not None
    assert (len(result.opened), result.combined.byzantine) == (3, 1)
    assert not any(isinstance(note, Noted) and note.kind == "robustness" for note in federation.effects)


def test_a_rule_that_cannot_run_on_what_was_opened_skips_the_round() -> None:
    """Krum guarantees nothing against f = 1 below five rows; of five buffers four were opened."""
    federation = attacked(silos=10, aggregator="krum")
    for silo in federation.members:
        federation.propose(silo)
    spoilt = seats(federation.run, federation.round.manifest.round)[0][0]
    submit_random_values(federation, federation.silos[spoilt])
    result = play_on(federation)
    assert result.outcome is Outcome.SKIPPED
    assert result.reason == "the aggregator refused: krum needs 5 rows to withstand 1 bad ones, and 4 buffers give 4"


@pytest.mark.parametrize("rule", KRUM)
def test_krum_is_not_run_where_two_attackers_would_be_each_others_nearest(rule: str) -> None:
    """Seven buffers pass the preflight against f = 2; of five the two bad ones were chosen every time."""
    rng = np.random.default_rng(0)
    rows = 0.01 + 0.02 * rng.standard_normal((7, 500))
    rows[:2] -= 0.5
    means = dict(enumerate(rows.astype(np.float32)))
    survivors = SurvivorSet(tuple((Survivor(f"silo-{n}", b""),) * 2 for n in range(7)))  # type: ignore[arg-type]
    combined = combine_buffers(means, survivors, rule, "{}", 2, rng)
    assert (combined.byzantine, combined.notes) == (2, ())
    assert combined.vector.mean() > 0
    for opened in (3, 4, 5, 6):
        few = f"{rule} needs . rows to withstand . bad ones, and {opened} buffers give {opened}"
        with pytest.raises(SettingsError, match=few):
            combine_buffers({n: means[n] for n in range(opened)}, survivors, rule, "{}", 2, rng)


def test_rows_are_counted_after_the_pre_steps_of_a_round() -> None:
    settings = json.dumps({"pre": [{"name": "bucketing", "size": 2}]})
    means = {number: np.eye(1, 10, number, np.float32)[0] for number in range(10)}
    survivors = SurvivorSet(tuple((Survivor(f"silo-{n}", b""),) * 2 for n in range(10)))  # type: ignore[arg-type]
    assert combine_buffers(means, survivors, "krum", settings, 1, np.random.default_rng(0)).notes == ()
    with pytest.raises(SettingsError, match="krum needs 7 rows to withstand 2 bad ones, and 10 buffers give 5"):
        combine_buffers(means, survivors, "krum", settings, 2, np.random.default_rng(0))


def test_a_round_with_too_few_proposers_for_krum_is_skipped_before_anybody_sends_values() -> None:
    federation = attacked(silos=10, aggregator="krum", quorum=8)
    gone = seats(federation.run, federation.round.manifest.round)[0][0]
    result = play_on(federation, silent=(federation.silos[gone],))
    reason = "9 silos proposed: krum needs 5 rows to withstand 1 bad ones, and 4 buffers give 4"
    assert (result.outcome, result.reason, result.survivors) == (Outcome.SKIPPED, reason, None)


def test_a_round_that_lost_too_many_buffers_for_krum_opens_none_and_leaves_silos_their_values() -> None:
    """Signatures on this U would prove to silos that their values were opened: nobody is asked for one."""
    federation = attacked(silos=10, aggregator="krum")
    for silo in federation.members:
        federation.propose(silo)
    gone = federation.by_buffer()[0][0]
    result = play_on(federation, silent=(gone,))
    reason = "krum needs 5 rows to withstand 1 bad ones, and 4 buffers give 4"
    assert (result.outcome, result.reason, result.opened, result.confirmations) == (Outcome.SKIPPED, reason, (), ())
    assert result.discarded == {0: "1 survivors, fewer than 2"}
    assert result.report.missed == {gone.name}
    assert all(silo.revealed is None for silo in federation.members)


def test_after_a_round_that_lost_too_many_buffers_for_krum_silos_propose_the_same_training_again() -> None:
    federation = Federation.of(10, parameters=80, byzantine=1, aggregator="krum", quorum=8)
    gone = seats(federation.run, 2)[0][0]
    stage = Theatre(federation, {(2, gone): Phase.SUBMIT})
    assert [update.outcome for update in stage.play(3)] == [Outcome.APPLIED, Outcome.SKIPPED, Outcome.APPLIED]
    sent = [name for name in federation.silos if name != gone]
    assert [(len(stage.trainings[name]), federation.silos[name].memory.given_up) for name in sent] == [(2, 0)] * 9


def test_a_rule_whose_settings_an_earlier_release_took_skips_its_rounds_and_says_why() -> None:
    federation = attacked()
    run = replace(federation.run, aggregator_settings='{"smoothing": 1}')
    assert why_skipped(run, 4) == "The rule median has no setting smoothing: it takes none."


@pytest.mark.parametrize(
    ("opened", "f", "expected"), [(1, 3, 0), (2, 3, 0), (3, 3, 1), (6, 3, 2), (7, 3, 3), (9, 3, 3), (9, 0, 0)]
)
def test_the_rule_runs_with_f_prime(opened: int, f: int, expected: int) -> None:
    means = {number: np.full(3, number, np.float32) for number in range(opened)}
    survivors = SurvivorSet(tuple((Survivor(f"silo-{n}", b""),) * 2 for n in range(opened)))  # type: ignore[arg-type]
    combined = combine_buffers(means, survivors, "median", "{}", f, np.random.default_rng(0))
    assert combined.byzantine == expected
    assert set(combined.distances) == set(means)


def test_an_applied_round_says_all_that_is_to_be_committed() -> None:
    federation = Federation.of(6)
    federation.open_round()
    result = play_on(federation)
    assert (result.outcome, result.reason, result.discarded) == (Outcome.APPLIED, "", {})
    assert result.survivors == federation.round.survivors()
    assert len(result.confirmations) == 6
    assert result.opened == (0, 1, 2)
    assert result.combined is not None
    assert result.combined.vector.size == result.indices.size
    assert result.combined.vector.dtype == np.float32
    assert result.report.roster == federation.round.manifest.names
    assert result.report.answered == set(federation.silos)
    assert result.report.complete == set(federation.silos)
    for silo in federation.members:
        assert silo.proposed is not None
        record = silo.proposed.message.record
        assert result.report.next_session_keys[silo.name][0] == record.next_session_key


def test_recovery_checks_both_secrets_against_what_was_announced() -> None:
    federation = Federation.of(5)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    assert silo.proposed is not None
    proposal, secrets = silo.proposed.message, silo.proposed.secrets
    assert federation.manifest is not None
    t = federation.manifest.threshold
    for secret, value in ((Secret.SEED, secrets.seed.reveal()), (Secret.KEY, secrets.mask_key.secret().reveal())):
        good = dict(enumerate(shamir.split(value, t, 5, silo.rng.bytes), start=1))
        assert recover(proposal, secret, good, t).value.reveal() == value
        bad = dict(enumerate(shamir.split(b"\3" * 32, t, 5, silo.rng.bytes), start=1))
        with pytest.raises(CryptoError) as caught:
            recover(proposal, secret, bad, t)
        assert caught.value.reason == "WRONG_SECRET"


def test_a_share_matches_for_its_own_holder_and_secret_only() -> None:
    federation = Federation.of(5)
    federation.until(Phase.CONFIRM)
    dealer, holder = federation.members[0], federation.members[2]
    assert dealer.proposed is not None
    assert holder.submitted is not None
    proposal = dealer.proposed.message
    seed_share, key_share = holder.submitted.agreement.held[dealer.name]
    assert share_matches(proposal, Secret.SEED, 3, seed_share)
    assert share_matches(proposal, Secret.KEY, 3, key_share)
    assert not share_matches(proposal, Secret.SEED, 3, key_share)
    assert not share_matches(proposal, Secret.SEED, 2, seed_share)


@pytest.mark.parametrize("settings", ["not json", "[]", '{"pre": 3}', '{"unknown": 1}'])
def test_settings_no_rule_can_use_are_refused(settings: str) -> None:
    with pytest.raises(SettingsError):
        configured_rule("median", settings)


@pytest.mark.parametrize("step", PRE_STEPS)
@pytest.mark.parametrize("rule", AGGREGATORS)
def test_every_rule_takes_every_pre_step_over_buffers_of_different_size(rule: str, step: str) -> None:
    """A run with both may pass the preflight, so its rounds must not be skipped for it."""
    means = {number: np.eye(1, 9, number, np.float32)[0] for number in range(9)}
    survivors = SurvivorSet(tuple((Survivor(f"silo-{n}", b""),) * (2 + n % 2) for n in range(9)))  # type: ignore[arg-type]
    settings = json.dumps({"pre": [step]})
    combined = combine_buffers(means, survivors, rule, settings, 1, np.random.default_rng(0))
    assert np.isfinite(combined.vector).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_aggregate_that_is_not_finite_is_refused(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: ConfiguredRule, rows: NDArray[np.float32], **__: object) -> Aggregate:
        return replace(AGGREGATORS["mean"](rows), vector=np.array([value], np.float32))

    monkeypatch.setattr(ConfiguredRule, "__call__", broken)
    means = {number: np.ones(1, np.float32) for number in range(2)}
    with pytest.raises(InvalidInputError) as caught:
        combine_buffers(means, SurvivorSet(((), ())), "mean", "{}", 0, np.random.default_rng(0))
    assert str(caught.value) == "the aggregate is not finite"


@pytest.mark.parametrize(("byzantine", "lacking", "blamed"), [(0, 1, False), (0, 2, True), (1, 1, False), (1, 2, True)])
def test_a_dealer_answers_for_more_holders_without_a_matching_share_than_may_lie_and_one_at_least(
    byzantine: int, lacking: int, blamed: bool
) -> None:
    """With f = 0 too: one holder whose disk or clock is broken must not send an honest dealer away."""
    federation = Federation.of(9, parameters=80, byzantine=byzantine, aggregator="median" if byzantine else "mean", quorum=9)
    federation.open_round()
    dealer, *others = federation.members
    holders = [silo.name for silo in others[:lacking]]
    propose_with_bad_shares(federation, dealer, unmatched_for=holders)
    result = play_on(federation)
    assert result.outcome is Outcome.APPLIED
    assert result.report.failed == ({dealer.name} if blamed else set())
