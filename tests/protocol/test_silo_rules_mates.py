"""Rule 2: whom a silo accepts in the roster before it proposes, and in its buffer before it submits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.coding import encode_coordinates
from fedrep.errors import RefusedError
from fedrep.protocol.manifests import RosterEntry, RoundManifest, SiloName, session_key_message
from fedrep.protocol.messages import Assigned, Phase
from fedrep.protocol.silo_round import Observing, Submitted
from fedrep.protocol.silo_rules import Once, PeerIdentity, Policy
from fedrep.secagg.keys import AgreementKey, generate_signing_key
from tests.protocol.federation import Federation
from tests.protocol.silo_refusal import enter, new_session, own_buffer, refused, submit_to, under, with_buffer

LOW_ORDER = bytes(32)


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
    key = last.pairs.own
    manifest = member_changed(federation, session_signature=last.signing_key.sign(session_key_message(b"other", key)))
    refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=manifest))


@pytest.mark.parametrize("order", [(1, 0, 2, 3, 4), (0, 1, 2, 3, 3)])
def test_a_roster_out_of_order_or_with_a_name_twice_is_refused(order: tuple[int, ...]) -> None:
    federation = Federation.of(5)
    manifest = federation.open_round()
    roster: tuple[RosterEntry, ...] = tuple(manifest.roster[n] for n in order)
    refused("BAD_ROSTER", lambda: enter(federation, federation.members[0], manifest=replace(manifest, roster=roster)))


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


def test_a_silo_without_a_place_in_the_assignment_sends_no_values() -> None:
    """Its proposal may have come too late, and then its coordinates are missing too: it goes on as a holder."""
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    place = own_buffer(honest, silo.name)
    others = tuple(member for member in honest.assignment[place] if member.silo != silo.name)
    assert silo.proposed is not None
    unwanted = np.setdiff1d(np.arange(federation.run.parameters), silo.proposed.coordinates)[:10]
    coordinates = encode_coordinates(unwanted, federation.run.parameters)
    assert isinstance(submit_to(silo, replace(with_buffer(honest, place, others), coordinates=coordinates)), Observing)


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


@pytest.mark.parametrize(("proposers", "step"), [(2, Observing), (3, Submitted), (4, Submitted)])
def test_to_a_buffer_with_fewer_proposers_than_min_survivors_nothing_is_submitted(proposers: int, step: type) -> None:
    federation = Federation.of(8, buffer_size=4)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    assert federation.run.min_survivors == 3
    place = own_buffer(honest, silo.name)
    gone = [p for p in honest.assignment[place] if p.silo != silo.name][: 4 - proposers]
    buffer = tuple(p for p in honest.assignment[place] if p not in gone)
    assert isinstance(submit_to(silo, with_buffer(honest, place, buffer)), step)


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
