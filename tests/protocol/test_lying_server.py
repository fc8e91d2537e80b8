"""Attacks of a server that shows its silos different things. All of them worked on some earlier or other protocol."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.errors import CryptoError, OutOfPhaseError, RefusedError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Phase, Secret, confirmation_message
from fedrep.protocol.silo_round import Ready
from fedrep.protocol.silo_rules import Once, Policy, check_run
from fedrep.secagg.keys import AgreementKey, SecretBytes
from fedrep.secagg.masking import pair_mask, self_mask
from fedrep.sparsify import union
from tests.protocol.federation import Federation, Silo
from tests.protocol.lying_server import LyingServer, leaving_out, plain, seated
from tests.protocol.silo_refusal import refused


def test_the_lying_server_of_these_tests_does_read_a_silo_once_it_has_both_secrets() -> None:
    """The control: without it, an attack that fails would prove nothing."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    for silo in federation.members:
        server.show(silo, groups)
    victim = federation.members[0]
    for number, holder in enumerate(federation.members, start=1):
        assert holder.submitted is not None
        seed, key = holder.submitted.agreement.held[victim.name]
        server.shares.setdefault((victim.name, Secret.SEED), {})[number] = seed
        server.shares.setdefault((victim.name, Secret.KEY), {})[number] = key
    read = server.read(victim)
    assert read is not None
    assert read.tobytes() == plain(victim)


def test_a_silo_shown_other_groups_than_the_seats_submits_nothing() -> None:
    """With one grouping per epoch there is nothing to subtract sums of other groups from."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    members = federation.members
    honest = {frozenset(silo.name for silo in group) for group in seated(federation)}
    for mate in members[1:]:
        others = [silo for silo in members[1:] if silo is not mate]
        groups = [[members[0], mate], others[:2], others[2:]]
        if {frozenset(silo.name for silo in group) for group in groups} != honest:
            assert members[0].proposed is not None
            members[0].proposed = replace(members[0].proposed, once=Once())
            refused("WRONG_SEATS", lambda groups=groups: server.show(members[0], groups))  # type: ignore[misc]


def test_a_silo_shown_another_assignment_than_the_rest_is_not_read() -> None:
    """The seats leave one lie: that somebody of another buffer did not propose. It gives another C2, hence other masks."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    told_rest = seated(federation)
    victim = told_rest[0][0]
    rest = [silo for silo in federation.members if silo is not victim]
    told_victim = leaving_out(told_rest[1][0], told_rest)
    server.show(victim, told_victim)
    for silo in rest:
        server.show(silo, told_rest)
    with_victim = server.survivors(told_rest)
    assert victim.name in with_victim.names()
    for silo in rest:
        assert silo.submitted is not None
        refused("BAD_SURVIVORS", lambda silo=silo: server.confirm(silo, with_victim))  # type: ignore[misc]


def test_a_silo_shown_another_assignment_and_then_called_dropped_keeps_its_self_mask() -> None:
    """The rest reveals its mask key, which is right for a silo that vanished; nobody reveals its seed."""
    federation = Federation.of(6, buffer_size=3, min_survivors=2, colluders=0)
    server = LyingServer.with_proposals(federation)
    told_rest = seated(federation)
    victim = told_rest[0][0]
    rest = [silo for silo in federation.members if silo is not victim]
    told_victim = leaving_out(told_rest[1][0], told_rest)
    server.show(victim, told_victim)
    for silo in rest:
        server.show(silo, told_rest)
    assert server.try_to_confirm(rest, server.survivors(told_rest, without=[victim])) == rest
    assert server.try_to_reveal(rest) == rest
    assert server.secret(victim.name, Secret.KEY) is not None
    assert server.try_to_confirm([victim], server.survivors(told_victim, without=rest)) == [victim]
    assert server.try_to_reveal([victim]) == []
    assert server.secret(victim.name, Secret.SEED) is None
    assert server.read(victim) is None


@pytest.mark.parametrize("told_a", range(7))
def test_two_consensus_sets_in_one_round_are_not_opened_by_one_seed(told_a: int) -> None:
    """However the server splits the silos, each part refuses the other's survivors, and only one part can reach t."""
    federation = Federation.of(6, coordinates=60)
    server = LyingServer.with_proposals(federation)
    members = federation.members
    groups = seated(federation)
    set_a = server.indices()
    set_b = union([set_a, np.setdiff1d(np.arange(federation.run.parameters), set_a)[:1]])
    part_a, part_b = members[:told_a], members[told_a:]
    for silo in part_a:
        server.show(silo, groups, set_a)
    for silo in part_b:
        server.show(silo, groups, set_b)
    if part_a and part_b:
        everyone = server.survivors(groups)
        for silo in members:
            assert silo.submitted is not None
            step = replace(silo.submitted, once=Once())
            refused("BAD_SURVIVORS", lambda step=step: step.on_survivors(everyone))  # type: ignore[misc]
    assert server.try_to_confirm(part_a, server.survivors(groups, without=part_b)) == part_a
    assert server.try_to_confirm(part_b, server.survivors(groups, without=part_a)) == part_b
    revealed = server.try_to_reveal(members)
    assert revealed in ([], part_a, part_b)
    assert all(server.secret(s.name, Secret.SEED) is None or server.secret(s.name, Secret.KEY) is None for s in members)
    assert all(server.read(silo) is None for silo in members)


def test_a_second_consensus_is_refused_by_the_silo_that_answered_the_first() -> None:
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    silo, other = groups[0][0], groups[1][0]
    server.show(silo, groups)
    refused("ONCE_PER_ROUND", lambda: server.show(silo, leaving_out(other, groups)))


def test_one_seed_gives_unrelated_masks_under_two_consensus_sets() -> None:
    seed = SecretBytes(b"s" * 32)
    assert self_mask(seed, "a", b"C2", 0).key != self_mask(seed, "a", b"C2'", 0).key
    x, y = AgreementKey.generate(), AgreementKey.generate()
    assert pair_mask(x, "a", "b", y.public, b"C2", 0).key != pair_mask(x, "a", "b", y.public, b"C2'", 0).key


def test_silos_shown_different_manifests_can_be_combined_with_nobody() -> None:
    """Same round, another clip range: another C1, so neither records nor shares cross over."""
    federation = Federation.of(6)
    manifest = federation.open_round()
    victim = federation.members[0]
    federation.enter(victim, replace(manifest, clip_range=2.0))
    for silo in federation.members:
        if silo is not victim:
            federation.propose(silo)
    assert victim.ready is not None
    session = AgreementKey.generate()
    victim.proposed = victim.ready.propose(np.arange(manifest.per_silo), session, lambda n: victim.rng.bytes(n))
    with pytest.raises(CryptoError):
        federation.round.receive(victim.proposed.message)
    others = {silo.name: silo.proposed.message for silo in federation.members if silo.proposed is not None}
    server = LyingServer(federation, proposals=others)
    indices = union([server.indices(), victim.proposed.coordinates])[: 6 * manifest.per_silo]
    refused("RECORD_CHANGED", lambda: server.show(victim, seated(federation), indices))


def test_silos_sent_different_models_can_be_combined_with_nobody() -> None:
    """A model on which the mates' updates vanish would leave the victim alone in the sum. The model's hash is part of C1."""
    federation = Federation.of(6)
    manifest = federation.open_round()
    groups = seated(federation)
    victim, mate = groups[0]
    trap = replace(manifest, model_hash=b"t" * 32)
    for silo in federation.members:
        if silo is victim:
            continue
        federation.train(silo)
        silo.ready = Ready.enter(
            federation.membership(silo),
            trap,
            federation.peers,
            silo.sessions,
            last_round=0,
            model_hash=b"t" * 32,
            pairs=silo.pairs,
        )
        silo.proposed = silo.ready.propose(
            np.arange(manifest.per_silo),
            AgreementKey.generate(),
            lambda n, s=silo: s.rng.bytes(n),  # type: ignore[misc]
        )
    federation.propose(victim)
    proposals = {silo.name: silo.proposed.message for silo in federation.members if silo.proposed is not None}
    server = LyingServer(federation, proposals=proposals)
    refused("BAD_MATE", lambda: server.show(victim, groups))
    assert server.consensus(victim, [[victim, mate]]).shares[1][0] == mate.name


@pytest.mark.parametrize("told_alive", range(7))
def test_a_victim_listed_as_active_to_some_and_as_dropped_to_others_loses_one_secret_at_most(told_alive: int) -> None:
    """Flower's server gets both secrets this way. Here whoever reaches t signatures reveals one kind, and the rest nothing."""
    federation = Federation.of(6, buffer_size=3, min_survivors=2, colluders=0)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
    members = [silo for group in groups for silo in group]
    victim = members[5]
    for silo in members:
        server.show(silo, groups)
    alive, dropped = server.survivors(groups), server.survivors(groups, without=[victim])
    server.try_to_confirm(members[:told_alive], alive)
    server.try_to_confirm(members[told_alive:], dropped)
    revealed = server.try_to_reveal(members)
    assert len(revealed) in (0, 5, 6)
    seed, key = server.secret(victim.name, Secret.SEED), server.secret(victim.name, Secret.KEY)
    assert seed is None or key is None
    assert server.read(victim) is None


def test_with_a_colluder_that_signs_everything_still_only_one_survivor_set_is_opened() -> None:
    """m = 8, t = 6, c = 1: the colluder signs both sets, and 2t - m > c leaves an honest holder in both majorities."""
    for told_alive in (2, 5, 6, 7):
        federation = Federation.of(8, buffer_size=4, seed=told_alive)
        assert federation.run.colluders == 1
        server = LyingServer.with_proposals(federation, colluders=[federation.silos[SiloName("silo-00")]])
        colluder = federation.silos[SiloName("silo-00")]
        groups = sorted(seated(federation), key=lambda group: colluder not in group)
        victim = groups[1][-1]
        members = [colluder, *(silo for silo in federation.members if silo not in (colluder, victim)), victim]
        groups = seated(federation)
        for silo in members:
            server.show(silo, groups)
        sets = (server.survivors(groups), server.survivors(groups, without=[victim]))
        for told, survivors in ((members[1:told_alive], sets[0]), (members[told_alive:], sets[1])):
            server.try_to_confirm(told, survivors)
        assert colluder.submitted is not None
        both = [replace(colluder.submitted, once=Once()).on_survivors(each) for each in sets]
        for silo in members[1:]:
            assert silo.confirmed is not None
            for forged in both:
                step = replace(silo.confirmed, once=Once())
                signatures = (*server.signatures(), (colluder.name, forged.message.signature))
                try:
                    server.learn(step.on_signatures(signatures).message)
                except RefusedError:
                    continue
        assert server.secret(victim.name, Secret.SEED) is None or server.secret(victim.name, Secret.KEY) is None
        assert server.read(victim) is None


def test_a_late_submission_after_the_set_closed_is_refused_and_stays_masked() -> None:
    """The silo is only slow. The holders reveal its mask key, and what arrives afterwards keeps its self mask."""
    federation = Federation.of(6, buffer_size=3, min_survivors=2, colluders=0)
    server = LyingServer.with_proposals(federation)
    members = federation.members
    slow, rest = members[0], members[1:]
    groups = seated(federation)
    for silo in rest:
        server.show(silo, groups)
    closed = server.survivors(groups)
    server.try_to_confirm(rest, closed)
    server.try_to_reveal(rest)
    server.show(slow, groups)
    assert server.secret(slow.name, Secret.KEY) is not None
    assert server.read(slow) is None
    honest = Federation.of(6)
    honest.until(Phase.SUBMIT)
    for silo in honest.members[1:]:
        honest.submit(silo)
    honest.deadline()
    late = honest.members[0]
    with pytest.raises(OutOfPhaseError):
        honest.submit(late)


def test_two_survivors_of_whom_one_colludes_are_not_opened_at_buffer_size_four() -> None:
    federation = Federation.of(8, buffer_size=4)
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(replace(federation.run, min_survivors=2), Policy(), "silo-00"))
    server = LyingServer.with_proposals(federation, colluders=[federation.silos[SiloName("silo-00")]])
    members = federation.members
    colluder, groups = members[0], seated(federation)
    together = next(group for group in groups if colluder in group)
    victim, *called_dropped = [silo for silo in together if silo is not colluder]
    for silo in members:
        server.show(silo, groups)
    server.try_to_confirm(members, server.survivors(groups, without=called_dropped))
    assert server.try_to_reveal(members) == members
    assert server.secret(victim.name, Secret.SEED) is None
    assert server.secret(colluder.name, Secret.SEED) is not None
    assert server.read(victim) is None
    assert all(dealer not in {silo.name for silo in together} for dealer, _ in server.shares)


@pytest.mark.parametrize("colluding", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_server_shows_to_whom_it_reads_nobody(seed: int, colluding: int) -> None:
    """Random lies: two assignments, a survivor set of its own for each holder, all signatures for all, colluders who sign all."""
    rng = np.random.default_rng(seed)
    federation = Federation.of(7, seed=seed, buffer_size=3, colluders=colluding, min_survivors=2 + colluding, quorum=5)
    server = LyingServer.with_proposals(federation, list(federation.silos.values())[:colluding])
    members = federation.members
    larger = max(seated(federation), key=len)
    left_out = larger[int(rng.integers(len(larger)))]
    shown = [seated(federation), leaving_out(left_out, seated(federation))]
    split = rng.choice(2, size=len(members), p=[0.8, 0.2] if seed % 2 else [1.0, 0.0])
    told = {silo.name: shown[choice] for silo, choice in zip(members, split, strict=True)}
    told[left_out.name] = shown[0]
    for silo in members:
        server.show(silo, told[silo.name])
    signatures = []
    for silo in members:
        elsewhere = [mate for mate in members if told[mate.name] is not told[silo.name]]
        called_dropped = [members[-1]] if rng.random() < seed / 5 else []
        assert server.try_to_confirm([silo], server.survivors(told[silo.name], without=elsewhere + called_dropped)) == [silo]
        assert silo.confirmed is not None
        signatures.append((silo.name, silo.confirmed.message.signature))
    honest = members[colluding:]
    for silo in honest:
        assert silo.confirmed is not None
        theirs = [(name, colluder_signature(federation.silos[name], silo)) for name in server.colluders]
        try:
            server.learn(silo.confirmed.on_signatures((*signatures, *theirs)).message)
        except RefusedError:
            continue
    for silo in honest:
        assert server.secret(silo.name, Secret.SEED) is None or server.secret(silo.name, Secret.KEY) is None
        assert server.read(silo) is None
    for groups in shown:
        for group in groups:
            own = [silo for silo in group if silo in honest and told[silo.name] is groups]
            assert sum(server.secret(silo.name, Secret.SEED) is not None for silo in own) != 1


def colluder_signature(colluder: Silo, holder: Silo) -> bytes:
    """Whatever the holder confirmed, the colluder confirms too."""
    assert holder.confirmed is not None
    message = confirmation_message(holder.confirmed.agreement.c2, holder.confirmed.survivors)
    return colluder.signing_key.sign(message)
