"""Named attacks of a server that lies, each a test. All of them worked on some earlier or other protocol; none may work here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.errors import CryptoError, InvalidInputError, OutOfPhaseError, RefusedError
from fedrep.protocol.error_memory import ErrorMemory, Fate, Pending
from fedrep.protocol.manifests import RosterEntry, RoundManifest, SiloName, session_key_message
from fedrep.protocol.messages import Outcome, Phase, Reveal, Secret, Statement, SurvivorSet, Update, confirmation_message
from fedrep.protocol.preflight import preflight
from fedrep.protocol.silo_round import Ready, renounce
from fedrep.protocol.silo_rules import Once, Policy, check_run
from fedrep.secagg.keys import AgreementKey, SecretBytes, derive
from fedrep.secagg.masking import pair_mask, self_mask
from fedrep.sparsify import union
from tests.protocol.federation import Federation, Silo, fingerprint_of
from tests.protocol.lying_server import LyingServer, plain, solved_from_three_groups


def refused(reason: str, act: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        act()
    assert caught.value.reason == reason, str(caught.value)
    return str(caught.value)


def pairs(silos: list[Silo]) -> list[list[Silo]]:
    return [silos[n : n + 2] for n in range(0, len(silos), 2)]


def test_the_lying_server_of_these_tests_does_read_a_silo_once_it_has_both_secrets() -> None:
    """The control: without it, an attack that fails would prove nothing."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = pairs(federation.members)
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


# Assignments and consensus sets.


def test_a_silo_shown_another_assignment_than_the_rest_is_not_read() -> None:
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    victim, *rest = federation.members
    told_victim = [[victim, rest[0]], rest[1:3], rest[3:]]
    told_rest = [[victim, rest[0], rest[1]], rest[2:]]
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
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    victim, *rest = federation.members
    told_victim = [[victim, rest[0]], rest[1:3], rest[3:]]
    told_rest = [[victim, rest[0], rest[1]], rest[2:]]
    server.show(victim, told_victim)
    for silo in rest:
        server.show(silo, told_rest)
    assert server.try_to_confirm(rest, server.survivors(told_rest, without=[victim])) == rest
    assert server.try_to_reveal(rest) == rest
    assert server.secret(victim.name, Secret.KEY) is not None
    own = SurvivorSet(tuple(b if n == 0 else () for n, b in enumerate(server.survivors(told_victim, without=rest).buffers)))
    assert server.try_to_confirm([victim], own) == [victim]
    assert server.try_to_reveal([victim]) == []
    assert server.secret(victim.name, Secret.SEED) is None
    assert server.read(victim) is None


@pytest.mark.parametrize("told_a", range(7))
def test_two_consensus_sets_in_one_round_are_not_opened_by_one_seed(told_a: int) -> None:
    """However the server splits the silos, each part refuses the other's survivors, and only one part can reach t."""
    federation = Federation.of(6, coordinates=60)
    server = LyingServer.with_proposals(federation)
    members = federation.members
    groups = pairs(members)
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
    members = federation.members
    server.show(members[0], pairs(members))
    refused("ONCE_PER_ROUND", lambda: server.show(members[0], pairs([members[0], *members[:0:-1]])))


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
    federation.train(victim)
    assert victim.ready is not None
    session = AgreementKey.generate()
    victim.proposed = victim.ready.propose(np.arange(manifest.per_silo), session, lambda n: victim.rng.bytes(n))
    with pytest.raises(CryptoError):
        federation.round.receive(victim.proposed.message)
    others = {silo.name: silo.proposed.message for silo in federation.members if silo.proposed is not None}
    server = LyingServer(federation, proposals=others)
    indices = union([server.indices(), victim.proposed.coordinates])[: 6 * manifest.per_silo]
    refused("RECORD_CHANGED", lambda: server.show(victim, pairs(federation.members), indices))


def test_silos_sent_different_models_can_be_combined_with_nobody() -> None:
    """A model on which the mates' updates vanish would leave the victim alone in the sum. The model's hash is part of C1."""
    federation = Federation.of(6)
    manifest = federation.open_round()
    victim, mate, *rest = federation.members
    trap = replace(manifest, model_hash=b"t" * 32)
    for silo in (mate, *rest):
        silo.ready = Ready.enter(
            federation.membership(silo), trap, federation.peers, silo.sessions, last_round=0, model_hash=b"t" * 32
        )
        federation.train(silo)
        silo.proposed = silo.ready.propose(
            np.arange(manifest.per_silo),
            AgreementKey.generate(),
            lambda n, s=silo: s.rng.bytes(n),  # type: ignore[misc]
        )
    federation.propose(victim)
    proposals = {silo.name: silo.proposed.message for silo in federation.members if silo.proposed is not None}
    server = LyingServer(federation, proposals=proposals)
    refused("BAD_MATE", lambda: server.show(victim, [[victim, mate], rest[:2], rest[2:]]))
    assert server.consensus(victim, [[victim, mate]]).shares[1][0] == mate.name


# Survivor sets.


@pytest.mark.parametrize("told_alive", range(7))
def test_a_victim_listed_as_active_to_some_and_as_dropped_to_others_loses_one_secret_at_most(told_alive: int) -> None:
    """Flower's server gets both secrets this way. Here whoever reaches t signatures reveals one kind, and the rest nothing."""
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    members = federation.members
    victim = members[5]
    groups = [members[:3], members[3:]]
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
        members = federation.members
        colluder, victim = members[0], members[7]
        groups = [members[:4], members[4:]]
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
    groups = [members[:3], members[3:]]
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
    colluder, victim = members[0], members[1]
    groups = [members[:4], members[4:]]
    for silo in members:
        server.show(silo, groups)
    server.try_to_confirm(members, server.survivors(groups, without=members[2:4]))
    assert server.try_to_reveal(members) == members
    assert server.secret(victim.name, Secret.SEED) is None
    assert server.secret(colluder.name, Secret.SEED) is not None
    assert server.read(victim) is None
    assert all(dealer not in {silo.name for silo in groups[0]} for dealer, _ in server.shares)


# Keys, rosters and replays.


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
    victim, one, two, *rest = federation.members
    records = [server.proposals[silo.name].record for silo in (one, two)]
    for silo, other in ((one, records[1]), (two, records[0])):
        proposal = server.proposals[silo.name]
        server.proposals[silo.name] = replace(proposal, record=replace(proposal.record, mask_key=other.mask_key))
    refused("BAD_MATE", lambda: server.show(victim, [[victim, one, two], rest]))


def test_a_mates_record_replayed_from_an_older_round_is_refused() -> None:
    """Its old mask key may be known by now: the holders revealed it when the mate dropped out."""
    federation = Federation.of(6)
    old = LyingServer.with_proposals(federation).proposals
    server = LyingServer.with_proposals(federation)
    victim, mate, *rest = federation.members
    server.proposals[mate.name] = replace(server.proposals[mate.name], record=old[mate.name].record)
    refused("BAD_MATE", lambda: server.show(victim, [[victim, mate], rest[:2], rest[2:]]))


def test_shares_replayed_from_an_older_round_do_not_open() -> None:
    federation = Federation.of(6)
    old = LyingServer.with_proposals(federation).proposals
    server = LyingServer.with_proposals(federation)
    groups = pairs(federation.members)
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
    old = server.consensus(silo, pairs(federation.members))
    LyingServer.with_proposals(federation)
    assert silo.proposed is not None
    step = silo.proposed
    refused("WRONG_ROUND", lambda: step.on_consensus(old, silo.memory.g(), silo.rng))


def test_submission_signatures_and_confirmations_of_an_older_round_do_not_count() -> None:
    federation = Federation.of(6)
    rounds = []
    for _ in range(2):
        server = LyingServer.with_proposals(federation)
        groups = pairs(federation.members)
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


def test_an_older_session_key_shown_again_is_one_this_silo_no_longer_holds() -> None:
    federation = Federation.of(6)
    old = federation.open_round()
    silo = federation.members[0]
    federation.propose(silo)
    silo.sessions = {public: key for public, key in silo.sessions.items() if public != old.roster[0].session_key}
    manifest = replace(old, round=old.round + 1)
    refused("SESSION_KEY_LOST", lambda: federation.enter(silo, manifest))


def test_a_roster_of_one_is_refused_by_the_silos_default_policy() -> None:
    federation = Federation.of(6)
    manifest = federation.open_round()
    alone = replace(manifest, roster=manifest.roster[:1], per_silo=manifest.coordinates)
    refused("ROUND_OUTSIDE_POLICY", lambda: federation.enter(federation.members[0], alone))


def test_a_buffer_of_one_is_refused_whatever_the_run_says() -> None:
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    victim, *rest = federation.members
    refused("BUFFER_TOO_SMALL", lambda: server.show(victim, [[victim], rest]))


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
    federation.train(bad)
    assert bad.ready is not None
    honest = bad.ready.propose(np.arange(bad.ready.manifest.per_silo), AgreementKey.generate(), lambda n: bad.rng.bytes(n))
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
    victim, mate, *rest = federation.members
    groups = [[victim, mate], rest[:2], rest[2:]]
    own = server.proposals[victim.name]
    reflected = replace(server.proposals[mate.name], sealed_shares=(own.sealed_shares[1], *own.sealed_shares[1:]))
    server.proposals[mate.name] = reflected
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
    victim, mate, *rest = federation.members
    proposal = server.proposals[mate.name]
    mine = AgreementKey.generate()
    server.proposals[mate.name] = replace(proposal, record=replace(proposal.record, mask_key=mine.public))
    refused("BAD_MATE", lambda: server.show(victim, [[victim, mate], rest[:2], rest[2:]]))


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


# Outcomes that are not true.


def outcome(federation: Federation, kind: Outcome = Outcome.SKIPPED, **changes: object) -> Update:
    """An outcome of the current round without any proof; the model does not change."""
    state = federation.model.state
    bare = Update(
        run=federation.run.digest(),
        round=federation.round_number,
        outcome=kind,
        reason="",
        coordinates=b"",
        levels=b"",
        scale=0.0,
        downlink_bits=16,
        survivors=None,
        confirmations=(),
        statements=(),
        opened=(),
        model_version=state.version,
        model_hash=state.hash,
        chain=state.chain,
    )
    return replace(bare, **changes)  # type: ignore[arg-type]


def trusting(memory: ErrorMemory, update: Update) -> ErrorMemory:
    """What an earlier draft did: take the values back because the server says that they were not used."""
    pending = next(p for p in memory.pending if p.round == update.round)
    restored = memory.residual.copy()
    restored[pending.indices] += pending.sent
    return replace(memory, residual=restored, pending=())


@pytest.mark.parametrize("kind", [Outcome.SKIPPED, Outcome.APPLIED])
@pytest.mark.parametrize("believed", [True, False])
def test_three_false_outcomes_do_not_let_the_server_solve_for_a_silo(kind: Outcome, believed: bool) -> None:
    """False "skipped", or "applied without you". Four silos in pairs, re-paired twice, on all coordinates the server may ask for.

    (v + a) + (v + b) - (a + b) = 2v if they send the same values three times; a silo that believes the server does.
    """
    federation = Federation.of(4, parameters=48, coordinates=48, seed=3)
    rng = np.random.default_rng(1)
    federation.updates = {name: rng.normal(scale=0.1, size=48).astype(np.float32) for name in federation.silos}
    v, a, b, c = federation.silos.values()
    sums: dict[tuple[str, str], NDArray[np.float64]] = {}
    for groups in ([[v, a], [b, c]], [[v, b], [a, c]], [[v, c], [a, b]]):
        server = LyingServer.with_proposals(federation)
        for silo in federation.members:
            silo.memory = silo.memory.submitted(Pending.of(server.show(silo, groups, np.arange(48))))
        survivors = server.survivors(groups)
        assert server.try_to_confirm(federation.members, survivors) == federation.members
        assert server.try_to_reveal(federation.members) == federation.members
        for one, two in groups:
            assert one.submitted is not None
            assert two.submitted is not None
            sums[(one.name, two.name)] = one.submitted.values.dequantized.astype(float) + two.submitted.values.dequantized
        lie = outcome(federation, kind, survivors=SurvivorSet(((), ())), confirmations=server.signatures())
        for silo in federation.members:
            silo.memory = trusting(silo.memory, lie) if believed else silo.memory.settle(lie)[0]
    solved = solved_from_three_groups(sums, v.name, a.name, b.name)
    error = float(np.abs(solved - federation.updates[v.name]).max())
    assert (error < 1e-3) if believed else (error > 0.05)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.999, 1.0), (2.0, 0.0, 0.7)])
def test_a_server_that_holds_the_model_still_is_a_known_leak(noise: float, least: float, most: float) -> None:
    """Not prevented: "applied" with G = 0 is no lie a silo can see, and training again gives the same update again.

    Without noise in local training three re-paired rounds give it away; minibatch noise of twice its size hides most of it.
    """
    federation = Federation.of(4, parameters=480, coordinates=480, seed=3)
    rng = np.random.default_rng(1)
    persistent = {name: rng.normal(scale=0.1, size=480) for name in federation.silos}
    v, a, b, c = federation.silos.values()
    sums: dict[tuple[str, str], NDArray[np.float64]] = {}
    for version, groups in enumerate(([[v, a], [b, c]], [[v, b], [a, c]], [[v, c], [a, b]])):
        federation.model = replace(federation.model, state=replace(federation.model.state, version=version))
        federation.updates = {
            name: (update + rng.normal(scale=0.1 * noise, size=480)).astype(np.float32) for name, update in persistent.items()
        }
        server = LyingServer.with_proposals(federation)
        for silo in federation.members:
            silo.memory = silo.memory.submitted(Pending.of(server.show(silo, groups, np.arange(480))))
        for one, two in groups:
            assert one.submitted is not None
            assert two.submitted is not None
            sums[(one.name, two.name)] = one.submitted.values.dequantized.astype(float) + two.submitted.values.dequantized
        told = outcome(federation, Outcome.APPLIED, survivors=server.survivors(groups), opened=(0, 1))
        for silo in federation.members:
            silo.memory, fate = silo.memory.settle(told)
            assert fate is Fate.USED
    solved = solved_from_three_groups(sums, v.name, a.name, b.name)
    assert least <= float(np.corrcoef(solved, persistent[v.name])[0, 1]) <= most


def test_a_crash_between_reveal_and_update_neither_resends_nor_lies() -> None:
    """After the restart only the disk is left: round number, "revealed", residual and pending values."""
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    silo = federation.members[0]
    for member in federation.members:
        if federation.round.phase is Phase.REVEAL:
            federation.reveal(member)
    disk = silo.memory
    assert len(disk.pending) == 1
    assert federation.manifest is not None
    manifest = federation.manifest
    silo.ready = silo.proposed = silo.submitted = silo.confirmed = silo.revealed = None
    refused("ROUND_NOT_LATER", lambda: federation.enter(silo, manifest))
    member = federation.membership(silo)
    refused("REVEALED", lambda: renounce(member, manifest.round, last_round=silo.last_round, revealed=(manifest.round,)))
    federation.finish()
    after, fate = disk.settle(outcome(federation))
    assert fate is Fate.UNDECIDED
    assert after is disk
    assert silo.memory.pending == ()
    np.testing.assert_array_equal(silo.memory.residual, disk.residual)


def test_a_restarted_holder_does_not_sign_a_second_survivor_set() -> None:
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = pairs(federation.members)
    for silo in federation.members:
        server.show(silo, groups)
    server.try_to_confirm(federation.members, server.survivors(groups))
    holder = federation.members[0]
    assert federation.manifest is not None
    manifest = federation.manifest
    refused("ROUND_NOT_LATER", lambda: federation.enter(holder, manifest))
    watcher = Federation.of(6)
    manifest = watcher.open_round()
    late = watcher.members[0]
    for silo in watcher.members[1:]:
        watcher.propose(silo)
    watcher.deadline()
    watcher.observe(late)
    refused("ROUND_NOT_LATER", lambda: watcher.enter(late, manifest))


# One silo that misbehaves must not stop the others.


def test_one_wrong_share_breaks_no_reconstruction() -> None:
    federation = Federation.of(7)
    federation.until(Phase.REVEAL)
    liar = federation.members[0]
    assert liar.confirmed is not None
    honest = liar.confirmed.on_signatures(federation.round.confirmations()).message
    garbage = tuple(replace(share, share=bytes(33)) for share in honest.shares)
    federation.round.receive(Reveal(liar.name, honest.run, honest.round, garbage))
    for silo in federation.members[1:]:
        if federation.round.phase is Phase.REVEAL:
            federation.reveal(silo)
    update = federation.finish()
    assert update.outcome is Outcome.APPLIED
    assert len(update.opened) == 3
    result = federation.round.result
    assert result is not None
    assert result.combined is not None
    sent = [silo.submitted.values.dequantized for silo in federation.members if silo.submitted is not None]
    np.testing.assert_allclose(result.combined.vector, np.mean(sent, axis=0), atol=1e-6)


def test_holders_cannot_be_ground_because_everyone_is_one() -> None:
    """Shares go to every silo of the roster; no hash, seed or order of the server decides who holds what."""
    for seed in range(3):
        federation = Federation.of(5, seed=seed)
        server = LyingServer.with_proposals(federation)
        groups = [federation.members]
        holders = [server.show(silo, groups).agreement.held.keys() for silo in federation.members]
        assert all(set(held) == set(federation.run.silos) for held in holders)


def test_an_honest_round_is_not_refused_when_k_does_not_divide_evenly() -> None:
    """K = 17, m = 8: with ceil, eight silos would propose 24 coordinates, more than K, and every consensus would be refused."""
    federation = Federation.of(8, parameters=200, coordinates=17)
    manifest = federation.open_round()
    assert manifest.per_silo == 2
    federation = Federation.of(8, parameters=200, coordinates=17)
    update = federation.play()
    assert update.outcome is Outcome.APPLIED, update.reason
    result = federation.round.result
    assert result is not None
    assert result.indices.size <= 16


def test_a_consensus_of_exactly_m_k_coordinates_is_accepted() -> None:
    federation = Federation.of(6, coordinates=12)
    federation.open_round()
    for number, silo in enumerate(federation.members):
        federation.train(silo)
        assert silo.ready is not None
        silo.proposed = silo.ready.propose(
            np.array([2 * number, 2 * number + 1]),
            AgreementKey.generate(),
            lambda n, s=silo: s.rng.bytes(n),  # type: ignore[misc]
        )
        federation.round.receive(silo.proposed.message)
    for silo in federation.members:
        federation.submit(silo)
    assert federation.round.phase is Phase.CONFIRM


def test_the_minimum_is_the_runs_and_no_silo_chooses_its_own() -> None:
    """When silos enforced different minima, the strict ones revealed less than others needed. Now the same U, the same shares."""
    federation = Federation.of(9, buffer_size=3, colluders=0, min_survivors=2)
    policies = [Policy(), Policy(smallest_buffer=3), Policy(smallest_roster=4), Policy(largest_fraction=0.9)]
    assert not any("surviv" in name for name in Policy.__dataclass_fields__)
    federation.open_round()
    for number, silo in enumerate(federation.members):
        federation.policy = policies[number % 4]
        federation.enter(silo)
        federation.propose(silo)
    missing = federation.by_buffer()[0][0]
    present = [silo for silo in federation.members if silo is not missing]
    for silo in present:
        federation.submit(silo)
    federation.deadline()
    for silo in present:
        federation.confirm(silo)
    reveals = []
    for silo in present:
        assert silo.confirmed is not None
        message = silo.confirmed.on_signatures(federation.round.confirmations()).message
        reveals.append({(share.dealer, share.secret) for share in message.shares})
    assert all(each == reveals[0] for each in reveals)
    assert len(reveals[0]) == 9
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(federation.run, Policy(smallest_buffer=4), "silo-00"))


def test_one_false_statement_stops_nobody() -> None:
    """A Byzantine holder renounces and reveals all the same; the round is applied and no value is taken back."""
    federation = Federation.of(8, byzantine=1, aggregator="median")
    federation.until(Phase.REVEAL)
    for silo in federation.members:
        if federation.round.phase is Phase.REVEAL:
            federation.reveal(silo)
    liar = federation.members[0]
    statement: Statement = renounce(federation.membership(liar), 1, last_round=1, revealed=())
    before = {silo.name: silo.memory for silo in federation.members}
    update = federation.finish()
    assert update.outcome is Outcome.APPLIED
    for silo in federation.members:
        memory, fate = before[silo.name].settle(replace(update, statements=(statement,)))
        assert fate is Fate.USED
        memory, fate = before[silo.name].settle(outcome(federation, statements=(statement,)))
        assert fate is Fate.UNDECIDED
        assert memory is before[silo.name]


def test_one_unsigned_submission_stops_nobody() -> None:
    federation = Federation.of(8)
    federation.until(Phase.SUBMIT)
    liar = federation.members[0]
    assert liar.proposed is not None
    message = liar.proposed.on_consensus(federation.round.consensus_for(liar.name), liar.memory.g(), liar.rng).message
    with pytest.raises(CryptoError):
        federation.round.receive(replace(message, signature=b"unsigned"))
    for silo in federation.members[1:]:
        federation.submit(silo)
    federation.deadline()
    for silo in federation.members[1:]:
        federation.confirm(silo)
    for silo in federation.members[1:]:
        if federation.round.phase is Phase.REVEAL:
            federation.reveal(silo)
    update = federation.finish()
    assert update.outcome is Outcome.APPLIED
    assert update.survivors is not None
    assert liar.name not in update.survivors.names()


def test_a_robust_rule_never_runs_with_f_of_zero_and_an_attacker_inside() -> None:
    """m = 6, s = 2, f = 1: three buffers, and one that fails to open would leave two, hence f' = 0."""
    federation = Federation.of(6, byzantine=1, aggregator="median", quorum=6)
    assert any("buffers" in problem for problem in preflight(federation.run))
    federation.until(Phase.SUBMIT)
    alive = [silo for buffer in federation.by_buffer()[1:] for silo in buffer] + federation.by_buffer()[0][:1]
    for silo in alive:
        federation.submit(silo)
    federation.deadline()
    for silo in alive:
        federation.confirm(silo)
    result = federation.round.result
    assert result is not None
    assert result.outcome is Outcome.SKIPPED
    for silo in alive:
        assert silo.confirmed is not None
        assert silo.confirmed.on_signatures(federation.round.confirmations()).message.shares == ()


def test_retraining_on_restored_values_does_not_happen_while_the_model_stays() -> None:
    """An earlier draft trained again after a skipped round, on top of what it had taken back, and diverged after two."""
    federation = Federation.of(6)
    norms = []
    for _ in range(4):
        federation.until(Phase.CONFIRM)
        everyone = federation.round.survivors()
        thin = SurvivorSet(tuple(buffer[:1] for buffer in everyone.buffers))
        confirmations = []
        for silo in federation.members:
            assert silo.submitted is not None
            confirmed = silo.submitted.on_survivors(thin)
            confirmations.append((silo.name, confirmed.message.signature))
        for silo in federation.members:
            proof = outcome(federation, survivors=thin, confirmations=tuple(confirmations))
            silo.memory, fate = silo.memory.settle(proof)
            assert fate is Fate.RESTORED
            assert not silo.memory.needs_training(federation.model.state.version)
        norms.append(float(np.linalg.norm(federation.members[0].memory.g())))
    np.testing.assert_allclose(norms, norms[0], rtol=1e-5)


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
    federation.train(one)
    assert one.ready is not None
    message = one.ready.propose(
        np.arange(one.ready.manifest.per_silo), AgreementKey.generate(), lambda n: one.rng.bytes(n)
    ).message
    with pytest.raises((CryptoError, InvalidInputError)):
        federation.round.receive(replace(message, silo=two.name))


def test_pending_values_of_one_silo_are_not_settled_by_anothers_round() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    silo = federation.members[0]
    assert silo.submitted is not None
    pending = Pending.of(silo.submitted)
    memory = ErrorMemory(np.zeros(64, np.float32), pending=(pending,))
    foreign = outcome(federation, run=b"another run")
    assert memory.settle(foreign) == (memory, None)


def random_groups(members: list[Silo], rng: np.random.Generator, smallest: int) -> list[list[Silo]]:
    order = [members[n] for n in rng.permutation(len(members))]
    cut = int(rng.integers(smallest, len(members) - smallest + 1)) if len(members) >= 2 * smallest else len(members)
    return [group for group in (order[:cut], order[cut:]) if group]


@pytest.mark.parametrize("colluding", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_server_shows_to_whom_it_reads_nobody(seed: int, colluding: int) -> None:
    """Random lies: two assignments, a survivor set of its own for each holder, all signatures for all, colluders who sign all."""
    rng = np.random.default_rng(seed)
    federation = Federation.of(7, seed=seed, buffer_size=3, colluders=colluding, min_survivors=2 + colluding, quorum=5)
    server = LyingServer.with_proposals(federation, list(federation.silos.values())[:colluding])
    members = federation.members
    shown = [random_groups(members, rng, federation.run.min_survivors) for _ in range(2)]
    split = rng.choice(2, size=len(members), p=[0.8, 0.2] if seed % 2 else [1.0, 0.0])
    told = {silo.name: shown[choice] for silo, choice in zip(members, split, strict=True)}
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
