"""Attacks of a server with other keys, certificates and rosters, or with messages of older rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.errors import CryptoError, InvalidInputError, RefusedError
from fedrep.protocol.manifests import RosterEntry, RoundManifest, session_key_message
from fedrep.protocol.messages import Phase
from fedrep.protocol.silo_round import Observing, Ready
from fedrep.secagg.keys import AgreementKey, SecretBytes, derive
from fedrep.secagg.masking import pair_mask, self_mask
from tests.protocol.federation import Federation, fingerprint_of
from tests.protocol.lying_server import LyingServer, leaving_out, seated
from tests.protocol.silo_refusal import refused


def test_session_keys_swapped_between_two_silos_are_refused() -> None:
    federation = Federation.of(6)
    manifest = federation.open_round()
    one, two, *others = manifest.roster
    roster: tuple[RosterEntry, ...] = (
        replace(one, session_key=two.session_key, session_signature=two.session_signature),
        replace(two, session_key=one.session_key, session_signature=one.session_signature),
        *others,
    )
    for silo in federation.members:
        refused("BAD_ROSTER", lambda s=silo: federation.enter(s, replace(manifest, roster=roster)))  # type: ignore[misc]


def test_mask_keys_swapped_between_two_mates_are_refused() -> None:
    federation = Federation.of(6, buffer_size=3, min_survivors=2, colluders=0)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    victim, one, two = groups[0]
    records = [server.proposals[silo.name].record for silo in (one, two)]
    for silo, other in ((one, records[1]), (two, records[0])):
        proposal = server.proposals[silo.name]
        server.proposals[silo.name] = replace(proposal, record=replace(proposal.record, mask_key=other.mask_key))
    refused("BAD_MATE", lambda: server.show(victim, groups))


def test_a_mates_record_replayed_from_an_older_round_is_refused() -> None:
    """Its old mask key may be known by now: the holders revealed it when the mate dropped out."""
    federation = Federation.of(6)
    old = LyingServer.with_proposals(federation).proposals
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    victim, mate = groups[0]
    server.proposals[mate.name] = replace(server.proposals[mate.name], record=old[mate.name].record)
    refused("BAD_MATE", lambda: server.show(victim, groups))


def test_shares_replayed_from_an_older_round_do_not_open() -> None:
    """Not even when both rounds list the same session keys: C1 is in the shares' key and associated data."""
    federation = Federation.of(6, reshuffle_every=10)
    old = LyingServer.with_proposals(federation).proposals
    for silo in federation.members:
        silo.listed = silo.pairs.own
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    holder, dealer = federation.members[:2]
    stale = replace(server.proposals[dealer.name], sealed_shares=old[dealer.name].sealed_shares)
    server.proposals[dealer.name] = stale
    held = server.show(holder, groups).agreement.held
    assert dealer.name not in held
    assert len(held) == 5


def test_a_consensus_replayed_from_an_older_round_is_refused() -> None:
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    silo = federation.members[0]
    old = server.consensus(silo, seated(federation))
    LyingServer.with_proposals(federation)
    assert silo.proposed is not None
    step = silo.proposed
    refused("WRONG_ROUND", lambda: step.on_consensus(old, silo.g, silo.rng))


def test_submission_signatures_and_confirmations_of_an_older_round_do_not_count() -> None:
    """Both rounds are of one epoch, so that nothing but C2 tells them apart."""
    federation = Federation.of(6, reshuffle_every=10)
    rounds = []
    for _ in range(2):
        server = LyingServer.with_proposals(federation)
        groups = seated(federation)
        for silo in federation.members:
            server.show(silo, groups)
        rounds.append((server, groups))
        if len(rounds) == 1:
            server.try_to_confirm(federation.members, server.survivors(groups))
            old = server.signatures()
    (first, groups), (second, _) = rounds
    silo, other = federation.members[:2]
    refused("BAD_SURVIVORS", lambda: second.confirm(other, first.survivors(groups)))
    confirmed = second.confirm(silo, second.survivors(groups))
    refused("TOO_FEW_CONFIRMATIONS", lambda: confirmed.on_signatures(old))


def test_an_older_manifest_shown_again_is_refused() -> None:
    federation = Federation.of(6)
    old = federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
    for silo in federation.members:
        refused("ROUND_NOT_LATER", lambda s=silo: federation.enter(s, old))  # type: ignore[misc]


def test_a_session_key_shown_again_after_its_session_is_one_this_silo_no_longer_holds() -> None:
    federation = Federation.of(6)
    old = federation.open_round()
    silo = federation.members[0]
    federation.propose(silo)
    manifest = replace(old, round=old.round + federation.run.session_rounds)
    refused("SESSION_KEY_LOST", lambda: federation.enter(silo, manifest))


def test_a_roster_of_one_is_refused_by_the_silos_default_policy() -> None:
    federation = Federation.of(6)
    manifest = federation.open_round()
    alone = replace(manifest, roster=manifest.roster[:1], per_silo=manifest.coordinates)
    refused("ROUND_OUTSIDE_POLICY", lambda: federation.enter(federation.members[0], alone))


@pytest.mark.parametrize("minimum", [2, 1])
def test_nobody_submits_to_a_buffer_of_one_whatever_the_run_says(minimum: int) -> None:
    """That the mate did not propose may even be true: the silo goes on as a holder, with nothing to send."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    victim, mate = seated(federation)[0]
    assert victim.proposed is not None
    ready = victim.proposed.ready
    weak = replace(ready, member=replace(ready.member, run=replace(ready.member.run, min_survivors=minimum)))
    alone = server.consensus(victim, leaving_out(mate, seated(federation)))
    step = replace(victim.proposed, ready=weak).on_consensus(alone, victim.g, victim.rng)
    assert isinstance(step, Observing)


@pytest.mark.parametrize("role", ["server", "evaluator"])
def test_a_server_or_evaluator_certificate_used_as_a_buffer_mate_stops_every_silo(role: str) -> None:
    """Even if the admin's list of silos holds the name: the role in the certificate decides."""
    federation = Federation.of(6)
    manifest = federation.open_round()
    impostor = federation.members[5]
    peers = {**federation.peers, impostor.name: replace(impostor.identity, role=role)}
    for silo in federation.members[:5]:
        member = federation.membership(silo)
        with pytest.raises(RefusedError, match="only silos may be mates") as caught:
            Ready.enter(
                member, manifest, peers, silo.sessions, last_round=silo.last_round, model_hash=federation.model.state.hash
            )
        assert caught.value.reason == "BAD_ROSTER"


def test_a_low_order_session_key_stops_nobody_but_its_owner() -> None:
    """The server refuses the proposal that announces it; had it not, the silos would refuse the manifest that lists it."""
    federation = Federation.of(6)
    federation.open_round()
    bad = federation.members[5]
    low = bytes(32)
    for silo in federation.members[:5]:
        federation.propose(silo)
    honest = federation.prepare(bad)
    record = replace(honest.message.record, next_session_key=low)
    record = replace(record, signature=bad.signing_key.sign(record.digest(federation.round.c1)))
    message = replace(
        honest.message,
        record=record,
        next_session_signature=bad.signing_key.sign(session_key_message(federation.run.digest(), low)),
    )
    with pytest.raises(CryptoError):
        federation.round.receive(message)
    federation.deadline()
    assert federation.round.phase is Phase.SUBMIT


def test_a_silos_own_ciphertext_reflected_to_it_as_its_mates_does_not_open() -> None:
    """If it opened, the silo would reveal a share of its own key as one of its mate's seed."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    victim, mate = groups[0]
    own = server.proposals[victim.name].sealed_shares
    numbers = {silo.name: number for number, silo in enumerate(federation.members)}
    sealed = list(server.proposals[mate.name].sealed_shares)
    sealed[numbers[victim.name]] = own[numbers[mate.name]]
    server.proposals[mate.name] = replace(server.proposals[mate.name], sealed_shares=tuple(sealed))
    held = server.show(victim, groups).agreement.held
    assert mate.name not in held
    assert held[victim.name] != held.get(mate.name)


def test_keys_relayed_without_their_owners_signature_are_refused_at_both_places() -> None:
    """Flower relays keys unsigned: its server can hand out its own and sit between any two clients."""
    federation = Federation.of(6)
    manifest = federation.open_round()
    entries = [replace(entry, session_key=AgreementKey.generate().public) for entry in manifest.roster[1:]]
    substituted: RoundManifest = replace(manifest, roster=(manifest.roster[0], *entries))
    refused("BAD_ROSTER", lambda: federation.enter(federation.members[0], substituted))
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    victim, mate = groups[0]
    proposal = server.proposals[mate.name]
    mine = AgreementKey.generate()
    server.proposals[mate.name] = replace(proposal, record=replace(proposal.record, mask_key=mine.public))
    refused("BAD_MATE", lambda: server.show(victim, groups))


def test_mask_keys_carry_256_bits_and_every_bit_of_the_secret_counts() -> None:
    """Flower folds its seeds to about 28 bits. Here each of 256 one-bit changes of a seed gives a whole other key."""
    base = bytearray(32)
    seeds = [bytes(base)]
    for bit in range(256):
        changed = bytearray(base)
        changed[bit // 8] ^= 1 << (bit % 8)
        seeds.append(bytes(changed))
    keys = [self_mask(SecretBytes(seed), "a", b"C2", 0).key.reveal() for seed in seeds]
    assert all(len(key) == 32 for key in keys)
    words = {key[start : start + 8] for key in keys for start in range(0, 32, 8)}
    assert len(words) == 4 * 257
    ones = np.unpackbits(np.frombuffer(b"".join(keys), np.uint8)).reshape(257, 256).mean(axis=0)
    assert 0.3 < ones.min() < ones.max() < 0.7
    x, y = AgreementKey.generate(), AgreementKey.generate()
    expected = derive(x.exchange(y.public), "pair", b"C2", 0, "a", "b")
    assert pair_mask(x, "a", "b", y.public, b"C2", 0).key.reveal() == expected
    assert len(expected) == 32


def test_a_name_is_bound_to_its_fingerprint() -> None:
    """Two silos that swap certificates in the roster are both refused, although both certificates are valid."""
    federation = Federation.of(6)
    manifest = federation.open_round()
    one, two, *others = manifest.roster
    roster = (replace(one, fingerprint=fingerprint_of(two.name)), replace(two, fingerprint=fingerprint_of(one.name)), *others)
    refused("BAD_ROSTER", lambda: federation.enter(federation.members[3], replace(manifest, roster=roster)))


def test_a_proposal_under_another_silos_name_is_refused() -> None:
    federation = Federation.of(6)
    federation.open_round()
    one, two = federation.members[:2]
    message = federation.prepare(one).message
    with pytest.raises((CryptoError, InvalidInputError)):
        federation.round.receive(replace(message, silo=two.name))
