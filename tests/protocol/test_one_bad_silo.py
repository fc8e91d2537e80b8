"""Attacks of one silo that once stopped all others, and limits that once refused honest rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.errors import CryptoError
from fedrep.protocol.messages import Outcome, Phase, Proposal, Reveal
from fedrep.protocol.preflight import preflight
from fedrep.protocol.silo_effects import Accepted
from fedrep.protocol.silo_rules import Policy, check_run
from fedrep.secagg.keys import AgreementKey
from tests.protocol.federation import Federation, entropy_from
from tests.protocol.lying_server import LyingServer, seated, submitted_of
from tests.protocol.silo_refusal import refused


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
    assert len(update.evidence.opened) == 3
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
        groups = seated(federation)
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
        own = np.array([2 * number, 2 * number + 1])
        silo.exchange(federation.enter(silo, last_round=0).propose(own, AgreementKey.generate(), entropy_from(silo.rng)))
        assert silo.proposed is not None
        federation.round.receive(silo.proposed.message)
        silo.answer(Proposal, Accepted())
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


def test_one_unsigned_submission_stops_nobody() -> None:
    federation = Federation.of(8)
    federation.until(Phase.SUBMIT)
    liar = federation.members[0]
    assert liar.proposed is not None
    message = submitted_of(liar.proposed, federation.round.consensus_for(liar.name), liar).message
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
    assert update.evidence.survivors is not None
    assert liar.name not in update.evidence.survivors.names()


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
