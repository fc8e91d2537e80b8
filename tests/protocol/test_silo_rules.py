"""The rules a silo enforces itself: one of each step, survivors, reveals, minima, rounds. Each test fails without its rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Phase, Secret, SurvivorSet
from fedrep.protocol.silo_rules import Policy, check_run, may_state
from fedrep.secagg.keys import AgreementKey
from fedrep.sparsify import propose
from tests.protocol.federation import Federation, Silo, entropy_from
from tests.protocol.silo_refusal import enter, new_session, refused, submit_to, under


def test_a_silo_proposes_once_per_round() -> None:
    federation = Federation.of(5)
    federation.until(Phase.PROPOSE)
    silo = federation.members[0]
    ready = silo.ready
    assert ready is not None
    coordinates = propose(silo.rng.normal(size=64).astype(np.float32), ready.manifest.per_silo, 0.5, silo.rng)
    ready.propose(coordinates, new_session(silo), entropy_from(silo.rng))
    refused("ONCE_PER_ROUND", lambda: ready.propose(coordinates, new_session(silo), entropy_from(silo.rng)))
    refused("ONCE_PER_ROUND", ready.watch)


def test_a_silo_submits_to_one_consensus_per_round() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    consensus = federation.round.consensus_for(silo.name)
    submit_to(silo, consensus)
    refused("ONCE_PER_ROUND", lambda: submit_to(silo, consensus))


def test_a_silo_that_refused_a_consensus_is_not_shown_a_better_one() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    refused("BAD_MATE", lambda: submit_to(silo, replace(honest, mates=())))
    refused("ONCE_PER_ROUND", lambda: submit_to(silo, honest))


def test_a_silo_signs_one_survivor_set_per_round() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    submitted = federation.members[0].submitted
    assert submitted is not None
    everyone = federation.round.survivors()
    fewer = SurvivorSet((everyone.buffers[0][:1], *everyone.buffers[1:]))
    submitted.on_survivors(everyone)
    refused("ONCE_PER_ROUND", lambda: submitted.on_survivors(fewer))


def test_a_holder_that_only_observes_signs_one_survivor_set_too() -> None:
    federation = Federation.of(7)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    watcher = federation.members[0]
    federation.observe(watcher)
    for silo in federation.members[1:]:
        federation.submit(silo)
    observing = watcher.observing
    assert observing is not None
    everyone = federation.round.survivors()
    observing.on_survivors(everyone)
    refused("ONCE_PER_ROUND", lambda: observing.on_survivors(SurvivorSet(((),) * len(everyone.buffers))))


def test_a_silo_reveals_once_per_round() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    confirmed = next(silo.confirmed for silo in federation.members if silo.confirmed is not None)
    confirmed.on_signatures(federation.round.confirmations())
    refused("ONCE_PER_ROUND", lambda: confirmed.on_signatures(federation.round.confirmations()))


def test_a_survivor_who_did_not_sign_its_submission_is_not_confirmed() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    submitted = federation.members[0].submitted
    assert submitted is not None
    honest = federation.round.survivors()
    number = 1 - submitted.place if submitted.place < 2 else 0
    forged = (replace(honest.buffers[number][0], signature=b"forged"), *honest.buffers[number][1:])
    buffers = tuple(forged if n == number else buffer for n, buffer in enumerate(honest.buffers))
    refused("BAD_SURVIVORS", lambda: submitted.on_survivors(SurvivorSet(buffers)))


def test_a_survivor_outside_its_buffer_or_twice_is_not_confirmed() -> None:
    for lie in ("moved", "twice", "missing buffer"):
        federation = Federation.of(6)
        federation.until(Phase.CONFIRM)
        submitted = federation.members[0].submitted
        assert submitted is not None
        first, second, *others = federation.round.survivors().buffers
        buffers = {
            "moved": ((*first, second[0]), second[1:], *others),
            "twice": ((*first, first[0]), second, *others),
            "missing buffer": (first, second, *others[:-1]),
        }[lie]
        refused("BAD_SURVIVORS", lambda s=submitted, b=buffers: s.on_survivors(SurvivorSet(b)))  # type: ignore[misc]


def test_nothing_is_revealed_without_t_confirmations_of_the_same_survivors() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    assert federation.manifest is not None
    t = federation.manifest.threshold
    confirmed = federation.members[0].confirmed
    assert confirmed is not None
    others = [item for item in federation.round.confirmations() if item[0] != federation.members[0].name]
    refused("TOO_FEW_CONFIRMATIONS", lambda: confirmed.on_signatures(tuple(others[: t - 2])))


def test_one_holder_counted_many_times_is_one_holder() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    confirmed = federation.members[0].confirmed
    assert confirmed is not None
    one = next(item for item in federation.round.confirmations() if item[0] != federation.members[0].name)
    refused("TOO_FEW_CONFIRMATIONS", lambda: confirmed.on_signatures((one,) * 20))


def test_confirmations_of_strangers_or_with_forged_signatures_do_not_count() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    confirmed = federation.members[0].confirmed
    assert confirmed is not None
    signature = federation.round.confirmations()[0][1]
    strangers = tuple((SiloName(f"stranger-{n}"), signature) for n in range(9))
    forged = tuple((silo.name, b"forged") for silo in federation.members)
    refused("TOO_FEW_CONFIRMATIONS", lambda: confirmed.on_signatures(strangers + forged))


def survivors_after_dropouts(federation: Federation, gone: int) -> Silo:
    """A round in which the first `gone` silos of the first buffer never submit; a holder from elsewhere, ready to reveal."""
    federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
    first = federation.by_buffer()[0]
    missing = {silo.name for silo in first[:gone]}
    present = [silo for silo in federation.members if silo.name not in missing]
    for silo in present:
        federation.submit(silo)
    federation.deadline()
    for silo in present:
        federation.confirm(silo)
    return next(silo for silo in present if silo not in first)


def test_of_one_silo_only_one_secret_is_revealed_b_of_survivors_and_x_of_the_others() -> None:
    federation = Federation.of(9, buffer_size=4)
    holder = survivors_after_dropouts(federation, 1)
    federation.reveal(holder)
    assert holder.revealed is not None
    revealed = holder.revealed.message.shares
    alive = federation.round.survivors().names()
    assert len({share.dealer for share in revealed}) == len(revealed) == 9
    assert {share.secret for share in revealed if share.dealer in alive} == {Secret.SEED}
    assert {share.secret for share in revealed if share.dealer not in alive} == {Secret.KEY}


def test_nothing_is_revealed_about_a_buffer_with_too_few_survivors() -> None:
    federation = Federation.of(12, buffer_size=4)
    holder = survivors_after_dropouts(federation, 2)
    small = {silo.name for silo in federation.by_buffer()[0]}
    assert len(federation.round.survivors().buffers[0]) == 2 < federation.run.min_survivors
    federation.reveal(holder)
    assert holder.revealed is not None
    dealers = {share.dealer for share in holder.revealed.message.shares}
    assert dealers == set(federation.run.silos) - small


def test_nothing_at_all_is_revealed_unless_enough_buffers_survive() -> None:
    """With f = 1 at least three buffers must be opened: two could hide nobody from an attacker inside."""
    federation = Federation.of(8, byzantine=1, aggregator="median", quorum=8)
    federation.until(Phase.SUBMIT)
    buffers = federation.by_buffer()
    alive = [silo for buffer in buffers[2:] for silo in buffer] + [buffers[0][0], buffers[1][0]]
    for silo in alive:
        federation.submit(silo)
    federation.deadline()
    for silo in alive:
        federation.confirm(silo)
    holder = buffers[2][0]
    assert holder.confirmed is not None
    shares = holder.confirmed.on_signatures(federation.round.confirmations()).message.shares
    assert shares == ()


@pytest.mark.parametrize(("colluders", "least"), [(0, 2), (1, 3), (3, 5)])
def test_min_survivors_must_exceed_the_colluders_by_two(colluders: int, least: int) -> None:
    federation = Federation.of(12, buffer_size=6)
    run = replace(federation.run, colluders=colluders, min_survivors=least)
    check_run(run, Policy(), "silo-00")
    short = replace(run, min_survivors=least - 1)
    assert f"at least {least}" in refused("RUN_OUTSIDE_POLICY", lambda: check_run(short, Policy(), "silo-00"))


def test_negative_colluders_do_not_lower_the_minimum() -> None:
    run = replace(Federation.of(6).run, colluders=-1, min_survivors=1)
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, Policy(), "silo-00"))


def test_the_rules_of_the_run_are_checked_on_entering_every_round() -> None:
    """A daemon that forgot to check the run when it joined must not get past its first round."""
    federation = Federation.of(6)
    federation.open_round()
    weak = replace(federation.run, min_survivors=1)
    manifest = under(federation, weak)
    refused("RUN_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0], manifest=manifest, run=weak))


@pytest.mark.parametrize(("colluders", "byzantine", "allowed"), [(1, 0, True), (0, 1, True), (1, 1, False), (2, 0, False)])
def test_a_roster_in_which_two_survivor_sets_could_be_confirmed_is_refused(colluders: int, byzantine: int, allowed: bool) -> None:
    """m = 4, t = 3: two sets of three holders share two."""
    federation = Federation.of(4)
    federation.open_round()
    run = replace(federation.run, colluders=colluders, byzantine=byzantine, min_survivors=colluders + 2)
    manifest = under(federation, run, byzantine=byzantine)
    if allowed:
        enter(federation, federation.members[0], manifest=manifest, run=run)
    else:
        text = refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, federation.members[0], manifest=manifest, run=run))
        assert "two different survivor sets" in text


def test_a_round_that_is_not_later_than_the_last_one_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    first = federation.members[0]
    enter(federation, first, last_round=federation.round_number - 1)
    refused("ROUND_NOT_LATER", lambda: enter(federation, first, last_round=federation.round_number))
    refused("ROUND_NOT_LATER", lambda: enter(federation, first, last_round=federation.round_number + 5))


def test_a_restarted_process_that_lost_its_session_key_sits_the_round_out() -> None:
    federation = Federation.of(5)
    federation.open_round()
    first = federation.members[0]
    first.sessions = {key.public: key for key in [AgreementKey.generate()]}
    first.pairs.forget()
    refused("SESSION_KEY_LOST", lambda: enter(federation, first))


def test_a_holder_that_revealed_never_states_that_it_did_not() -> None:
    assert may_state(7, last_round=7, revealed=(5, 6))
    assert not may_state(6, last_round=7, revealed=(5, 6))


def test_a_holder_states_nothing_about_rounds_it_was_not_in_or_may_have_forgotten() -> None:
    assert not may_state(8, last_round=7, revealed=())
    assert may_state(1001, last_round=2000, revealed=())
    assert not may_state(1000, last_round=2000, revealed=())
