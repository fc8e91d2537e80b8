"""Attacks of a server that lies about how a round ended, and what restarts and proofs make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.protocol.error_memory import Fate, judge
from fedrep.protocol.messages import Evidence, Outcome, Phase, Submission, SurvivorSet
from fedrep.protocol.silo_effects import Accepted, Concluded, Confirmations, GetConsensus, GetSurvivors, GetUpdate
from fedrep.protocol.silo_rules import may_state
from tests.protocol.federation import Federation
from tests.protocol.lying_server import LyingServer, outcome, seated, solved_from_three_groups, statement_of
from tests.protocol.silo_refusal import refused


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.999, 1.0), (2.0, 0.0, 0.7)])
def test_a_server_that_holds_the_model_still_is_a_known_leak(noise: float, least: float, most: float) -> None:
    """Not prevented: "applied" with G = 0 is no lie a silo can see, and training again gives the same update again.

    Without noise in local training three groupings, each an epoch of its own, give it away; minibatch noise of twice its size
    hides most of it.
    """
    federation = Federation.of(4, parameters=480, coordinates=480, seed=3, reshuffle_every=1)
    rng = np.random.default_rng(1)
    persistent = {name: rng.normal(scale=0.1, size=480) for name in federation.silos}
    sums: dict[tuple[str, str], NDArray[np.float64]] = {}
    while len(sums) < 6:
        federation.model = replace(federation.model, state=replace(federation.model.state, version=federation.round_number))
        federation.updates = {
            name: (update + rng.normal(scale=0.1 * noise, size=480)).astype(np.float32) for name, update in persistent.items()
        }
        server = LyingServer.with_proposals(federation)
        for one, two in seated(federation):
            sent = [server.show(silo, seated(federation), np.arange(480)).values.dequantized for silo in (one, two)]
            sums[(one.name, two.name)] = np.sum(sent, axis=0, dtype=float)
    v, a, b, _ = federation.silos
    solved = solved_from_three_groups(sums, v, a, b)
    assert least <= float(np.corrcoef(solved, persistent[v])[0, 1]) <= most


def test_a_crash_between_reveal_and_update_neither_resends_nor_lies() -> None:
    """After the restart only the disk is left; it knows that the silo revealed, and that its values were opened."""
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    silo = federation.members[0]
    federation.reveal(silo)
    assert silo.memory.pending is None, "t holders signed U: the silo knows its values as opened when it reveals"
    residual = silo.memory.residual.copy()
    assert federation.manifest is not None
    number = federation.manifest.round
    silo.player.restart()
    refused("ROUND_NOT_LATER", lambda: federation.enter(silo))
    assert not may_state(number, last_round=silo.last_round, revealed=silo.machine.state.journal.revealed)
    silo.player.start()
    federation.answer_join(silo, None)
    assert silo.player.waits_for(GetUpdate), "it asks how the round ended"
    silo.player.answer(GetUpdate, Concluded(outcome(federation), None, "running"))
    assert not any(isinstance(message, GetUpdate) and message.statement for message in silo.player.wire)
    np.testing.assert_array_equal(silo.memory.residual, residual)


def test_a_restarted_holder_does_not_sign_a_second_survivor_set() -> None:
    federation = Federation.of(6)
    server = LyingServer.with_proposals(federation)
    groups = seated(federation)
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


def test_one_false_statement_stops_nobody() -> None:
    """A Byzantine holder renounces and reveals all the same; the round is applied and no value is taken back."""
    federation = Federation.of(8, byzantine=1, aggregator="median")
    federation.until(Phase.REVEAL)
    pending = {silo.name: silo.memory.pending for silo in federation.members}
    for silo in federation.members:
        if federation.round.phase is Phase.REVEAL:
            federation.reveal(silo)
    statement = statement_of(federation, federation.members[0])
    update = federation.finish()
    assert update.outcome is Outcome.APPLIED
    for silo in federation.members:
        sent = pending[silo.name]
        assert sent is not None
        assert judge(sent.place, Evidence(statements=(statement,))) is Fate.UNKNOWN
        assert silo.memory.pending is None
        assert silo.memory.given_up == 0


def test_the_same_g_is_proposed_again_free_of_charge_after_proof_that_it_stayed_closed() -> None:
    """Of every buffer one submission comes too late: t holders confirm, nobody is opened, and nobody trains again."""
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    before = {silo.name: silo.g.copy() for silo in federation.members}
    late = [buffer[0] for buffer in federation.by_buffer()]
    for silo in federation.members:
        (federation.submit_in_vain if silo in late else federation.submit)(silo)
    federation.deadline()
    for silo in federation.members:
        if not federation.over:
            federation.confirm(silo)
    assert federation.finish().outcome is Outcome.SKIPPED
    federation.open_round()
    for silo in federation.members:
        assert silo.player.train is None
        np.testing.assert_array_equal(silo.g, before[silo.name])
        assert silo.machine.state.journal.ledger.rounds == 1
        assert silo.memory.given_up == 0


@pytest.mark.parametrize("kind", [Outcome.SKIPPED, Outcome.APPLIED])
def test_on_the_servers_word_nothing_is_sent_again(kind: Outcome) -> None:
    """False "skipped", or "applied without you": the silo trains again, and what was sent is gone from its memory."""
    federation = Federation.of(4, parameters=48, coordinates=48, seed=3)
    federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
    silo = federation.members[0]
    consensus = federation.round.consensus_for(silo.name)
    silo.answer(GetConsensus, consensus)
    sent = silo.said(Submission)
    silo.answer(Submission, Accepted())
    first = silo.g.copy()
    federation.leave_round(silo)
    federation.told[1] = outcome(federation, kind, survivors=SurvivorSet(((), ())))
    federation.open_round()  # the silo asks once more what became of its values, and hears the lie
    assert silo.player.train is not None, "it contributes again only after it has trained again"
    assert silo.memory.given_up == 1
    assert not silo.memory.residual.any(), "nothing of the training that was sent is left to be sent again"
    federation.prepare(silo)
    assert not np.array_equal(silo.g, first)
    assert silo.machine.state.journal.ledger.rounds == 2, "and is charged again"
    assert sent.round == 1


def test_what_was_seen_in_confirm_counts_whatever_the_server_says_afterwards() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    survivors = federation.round.survivors()
    for silo in federation.members:
        if not silo.player.waits_for(GetSurvivors):
            continue
        silo.answer(GetSurvivors, survivors)
        if federation.round.phase is Phase.CONFIRM:
            federation.round.receive(silo.said(type(silo.confirmed.message)))  # type: ignore[union-attr]
    silo = federation.members[0]
    silo.answer(type(silo.confirmed.message), Confirmations(federation.round.confirmations()))  # type: ignore[union-attr]
    assert silo.memory.pending is None
    assert silo.memory.given_up == 0
    assert silo.memory.residual.any(), "off I, where nothing was sent"
