"""The seven rules a silo enforces itself. Each test shows one lie of the server and fails when its rule is taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from fedrep.coding import encode_coordinates
from fedrep.errors import RefusedError
from fedrep.privacy import CoordinateRelease, Ledger, coordinate_epsilon
from fedrep.protocol.manifests import RosterEntry, RoundManifest, RunManifest, SiloName, session_key_message
from fedrep.protocol.messages import Assigned, Consensus, Phase, Secret, Survivor, SurvivorSet, statement_message
from fedrep.protocol.silo_round import Membership, Ready, renounce
from fedrep.protocol.silo_rules import Once, PeerIdentity, Policy, check_epsilon, check_run
from fedrep.secagg.keys import AgreementKey, generate_signing_key
from fedrep.sparsify import propose
from tests.protocol.federation import Federation, Silo, entropy_from

LOW_ORDER = bytes(32)


def enter(
    federation: Federation,
    silo: Silo,
    *,
    manifest: RoundManifest | None = None,
    peers: Mapping[SiloName, PeerIdentity] | None = None,
    policy: Policy | None = None,
    run: RunManifest | None = None,
    last_round: int | None = None,
    model_hash: bytes | None = None,
) -> Ready:
    assert federation.manifest is not None
    return Ready.enter(
        Membership(silo.name, run or federation.run, policy or federation.policy, silo.signing_key),
        manifest or federation.manifest,
        federation.peers if peers is None else peers,
        silo.sessions,
        last_round=silo.last_round if last_round is None else last_round,
        model_hash=model_hash or federation.model.state.hash,
    )


def under(federation: Federation, run: RunManifest, **changes: object) -> RoundManifest:
    """The manifest as a round of another run, session keys signed for that run: only the run itself can be refused."""
    assert federation.manifest is not None
    roster = tuple(
        replace(
            entry,
            session_signature=federation.silos[entry.name].signing_key.sign(session_key_message(run.digest(), entry.session_key)),
        )
        for entry in federation.manifest.roster
    )
    return replace(federation.manifest, run=run.digest(), roster=roster, **changes)  # type: ignore[arg-type]


def refused(reason: str, act: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        act()
    assert caught.value.reason == reason, str(caught.value)
    return str(caught.value)


def new_session(silo: Silo) -> AgreementKey:
    return AgreementKey.generate(entropy_from(silo.rng))


def submit_to(silo: Silo, consensus: Consensus) -> object:
    assert silo.proposed is not None
    return silo.proposed.on_consensus(consensus, silo.memory.g(), silo.rng)


def own_buffer(consensus: Consensus, name: SiloName) -> int:
    return next(n for n, buffer in enumerate(consensus.assignment) if any(place.silo == name for place in buffer))


def with_buffer(consensus: Consensus, number: int, buffer: tuple[Assigned, ...]) -> Consensus:
    return replace(
        consensus,
        assignment=(*consensus.assignment[:number], buffer, *consensus.assignment[number + 1 :]),
    )


# Rule 1: one proposal, one consensus, one submission, one U, one reveal per round.


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
    assert silo.proposed is not None
    proposed = silo.proposed
    refused("ONCE_PER_ROUND", lambda: proposed.observe(honest))


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


# Rule 2, before proposing: who may be in the roster.


def member_changed(federation: Federation, **changes: object) -> RoundManifest:
    """The manifest with another last roster entry."""
    assert federation.manifest is not None
    *others, last = federation.manifest.roster
    return replace(federation.manifest, roster=(*others, replace(last, **changes)))  # type: ignore[arg-type]


def peer_changed(federation: Federation, **changes: object) -> dict[SiloName, PeerIdentity]:
    last = federation.members[-1].name
    return {**federation.peers, last: replace(federation.peers[last], **changes)}  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["server", "evaluator", "admin", "viewer", ""])
def test_only_certificates_of_role_silo_are_roster_members(role: str) -> None:
    federation = Federation.of(5)
    federation.open_round()
    text = refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], peers=peer_changed(federation, role=role)))
    assert "silo-04" in text


def test_a_revoked_or_expired_certificate_is_no_roster_member() -> None:
    federation = Federation.of(5)
    federation.open_round()
    peers = peer_changed(federation, problem="was revoked")
    assert "was revoked" in refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], peers=peers))


def test_a_certificate_of_another_name_or_fingerprint_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    first = federation.members[0]
    refused("BAD_ROSTER", lambda: enter(federation, first, peers=peer_changed(federation, name=SiloName("silo-03"))))
    refused("BAD_ROSTER", lambda: enter(federation, first, peers=peer_changed(federation, fingerprint=bytes(32))))
    missing = {name: peer for name, peer in federation.peers.items() if name != "silo-04"}
    refused("BAD_ROSTER", lambda: enter(federation, first, peers=missing))


def test_two_names_with_one_key_are_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    sibling = federation.members[1]
    entry = federation.members[-1]
    key = new_session(sibling)
    signature = sibling.signing_key.sign(session_key_message(federation.run.digest(), key.public))
    manifest = member_changed(federation, session_key=key.public, session_signature=signature)
    peers = {**federation.peers, entry.name: replace(entry.identity, verify_key=sibling.signing_key.verify_key)}
    text = refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest, peers=peers))
    assert "shares its key" in text


def test_a_silo_the_admin_did_not_list_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    shorter = replace(federation.run, silos=federation.run.silos[:-1])
    manifest = under(federation, shorter)
    text = refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest, run=shorter))
    assert "not on the run's list" in text


def test_with_a_pinned_roster_file_nobody_else_is_trusted() -> None:
    federation = Federation.of(5)
    federation.open_round()
    first = federation.members[0]
    everyone = frozenset(silo.identity.fingerprint for silo in federation.members)
    enter(federation, first, policy=Policy(pinned_fingerprints=everyone))
    fewer = everyone - {federation.members[-1].identity.fingerprint}
    refused("BAD_ROSTER", lambda: enter(federation, first, policy=Policy(pinned_fingerprints=fewer)))


def test_a_low_order_session_key_is_refused_even_when_its_owner_signed_it() -> None:
    federation = Federation.of(5)
    federation.open_round()
    signature = federation.members[-1].signing_key.sign(session_key_message(federation.run.digest(), LOW_ORDER))
    manifest = member_changed(federation, session_key=LOW_ORDER, session_signature=signature)
    assert "low order" in refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))


def test_a_session_key_its_owner_did_not_sign_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    key = AgreementKey.generate()
    of_the_server = generate_signing_key("ed25519").sign(session_key_message(federation.run.digest(), key.public))
    manifest = member_changed(federation, session_key=key.public, session_signature=of_the_server)
    refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))


def test_a_session_key_signed_for_another_run_is_refused() -> None:
    federation = Federation.of(5)
    federation.open_round()
    last = federation.members[-1]
    key = next(iter(last.sessions))
    manifest = member_changed(federation, session_signature=last.signing_key.sign(session_key_message(b"other", key)))
    refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))


@pytest.mark.parametrize("order", [(1, 0, 2, 3, 4), (0, 1, 2, 3, 3)])
def test_a_roster_out_of_order_or_with_a_name_twice_is_refused(order: tuple[int, ...]) -> None:
    federation = Federation.of(5)
    manifest = federation.open_round()
    roster: tuple[RosterEntry, ...] = tuple(manifest.roster[n] for n in order)
    refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=replace(manifest, roster=roster)))


# Rule 2, before submitting: what the consensus and the own buffer may be.


def test_a_consensus_without_the_own_proposal_is_refused() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    assert silo.proposed is not None
    others = np.setdiff1d(np.arange(federation.run.parameters), silo.proposed.coordinates[:1])[:10]
    lie = replace(honest, coordinates=encode_coordinates(others, federation.run.parameters))
    refused("PROPOSAL_LEFT_OUT", lambda: submit_to(silo, lie))


def test_a_consensus_larger_than_all_proposals_together_is_refused() -> None:
    federation = Federation.of(6, coordinates=12)
    manifest = federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    everything = encode_coordinates(np.arange(federation.run.parameters), federation.run.parameters)
    assert len(manifest.roster) * manifest.per_silo == 12 < federation.run.parameters
    refused("CONSENSUS_TOO_LARGE", lambda: submit_to(silo, replace(honest, coordinates=everything)))


def test_an_assignment_with_a_name_outside_the_roster_is_refused() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    stranger = (*honest.assignment, (Assigned(SiloName("nobody"), bytes(32)), Assigned(SiloName("noone"), bytes(32))))
    refused("BAD_ASSIGNMENT", lambda: submit_to(silo, replace(honest, assignment=stranger)))


def test_an_assignment_that_names_a_silo_in_two_buffers_is_refused() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    elsewhere = (own_buffer(honest, silo.name) + 1) % len(honest.assignment)
    mate = next(place for place in honest.assignment[own_buffer(honest, silo.name)] if place.silo != silo.name)
    refused("BAD_ASSIGNMENT", lambda: submit_to(silo, with_buffer(honest, elsewhere, (*honest.assignment[elsewhere], mate))))


def test_the_own_record_must_stand_in_the_assignment_unchanged() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    place = own_buffer(honest, silo.name)
    forged = tuple(replace(p, record_digest=bytes(32)) if p.silo == silo.name else p for p in honest.assignment[place])
    refused("RECORD_CHANGED", lambda: submit_to(silo, with_buffer(honest, place, forged)))


def test_a_buffer_below_min_survivors_is_refused() -> None:
    federation = Federation.of(8, buffer_size=4)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    assert federation.run.min_survivors == 3
    place = own_buffer(honest, silo.name)
    mates = [p for p in honest.assignment[place] if p.silo != silo.name]
    own = next(p for p in honest.assignment[place] if p.silo == silo.name)
    refused("BUFFER_TOO_SMALL", lambda: submit_to(silo, with_buffer(honest, place, (own, mates[0]))))


def test_mates_without_a_record_signed_under_the_own_manifest_are_refused() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    record = honest.mates[0]
    elsewhere = federation.silos[record.silo].signing_key.sign(record.digest(b"another C1"))
    lies = (
        (),
        (replace(record, signature=b""),),
        (replace(record, signature=elsewhere),),
        (replace(record, mask_key=AgreementKey.generate().public),),
        (replace(record, silo=SiloName("silo-05")),),
    )
    for mates in lies:
        assert silo.proposed is not None
        silo.proposed = replace(silo.proposed, once=Once())
        with pytest.raises(RefusedError, match="mate"):
            submit_to(silo, replace(honest, mates=mates))


def test_a_mate_that_signed_two_records_is_refused_with_the_one_that_is_not_assigned() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    second = replace(honest.mates[0], mask_key=AgreementKey.generate().public)
    signature = federation.silos[second.silo].signing_key.sign(second.digest(federation.round.c1))
    refused("BAD_MATE", lambda: submit_to(silo, replace(honest, mates=(replace(second, signature=signature),))))


def test_a_mate_with_a_key_the_server_made_is_refused_although_the_assignment_fits_it() -> None:
    """The server swaps a mate's mask key for its own and puts the digest of that record into the assignment."""
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    place = own_buffer(honest, silo.name)
    forged = replace(honest.mates[0], mask_key=AgreementKey.generate().public)
    buffer = tuple(
        replace(p, record_digest=forged.digest(federation.round.c1)) if p.silo == forged.silo else p
        for p in honest.assignment[place]
    )
    lie = replace(with_buffer(honest, place, buffer), mates=(forged, *honest.mates[1:]))
    refused("BAD_MATE", lambda: submit_to(silo, lie))


def test_a_mate_with_a_low_order_mask_key_is_refused() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    place = own_buffer(honest, silo.name)
    unsigned = replace(honest.mates[0], mask_key=LOW_ORDER)
    digest = unsigned.digest(federation.round.c1)
    forged = replace(unsigned, signature=federation.silos[unsigned.silo].signing_key.sign(digest))
    buffer = tuple(replace(p, record_digest=digest) if p.silo == forged.silo else p for p in honest.assignment[place])
    lie = replace(with_buffer(honest, place, buffer), mates=(forged, *honest.mates[1:]))
    assert "low order" in refused("BAD_MATE", lambda: submit_to(silo, lie))


# Rule 3: what U may be.


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


# Rule 4: what may be revealed.


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


# Rule 5: how small a sum may get, and that two survivor sets cannot both be confirmed.


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


# Rule 6: rounds only go up.


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
    refused("SESSION_KEY_LOST", lambda: enter(federation, first))


def test_a_holder_that_revealed_never_states_that_it_did_not() -> None:
    federation = Federation.of(5)
    member = federation.membership(federation.silos[SiloName("silo-00")])
    statement = renounce(member, 7, last_round=7, revealed=(5, 6))
    key = member.signing_key.verify_key
    key.verify(statement.signature, statement_message(federation.run.digest(), 7, SiloName("silo-00")))
    refused("REVEALED", lambda: renounce(member, 6, last_round=7, revealed=(5, 6)))


def test_a_holder_states_nothing_about_rounds_it_was_not_in_or_may_have_forgotten() -> None:
    federation = Federation.of(5)
    member = federation.membership(federation.silos[SiloName("silo-00")])
    refused("NO_STATEMENT", lambda: renounce(member, 8, last_round=7, revealed=()))
    renounce(member, 1001, last_round=2000, revealed=())
    refused("NO_STATEMENT", lambda: renounce(member, 1000, last_round=2000, revealed=()))


# Rule 7: the silo's own policy.


@pytest.mark.parametrize(
    ("policy", "run_changes"),
    [
        (Policy(smallest_buffer=3), {}),
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
    run = replace(federation.run, smallest_range=0.1)
    first, manifest = federation.members[0], under(federation, run, clip_range=0.1)
    enter(federation, first, manifest=manifest, run=run, policy=Policy(smallest_range=0.1))
    lower = replace(manifest, clip_range=0.09)
    text = refused("ROUND_OUTSIDE_POLICY", lambda: enter(federation, first, manifest=lower, run=run))
    assert "range 0.09" in text


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
