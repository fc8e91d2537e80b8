"""A silo that proposes what anybody can work out: nothing about its training shows in I_k, and nothing is left in a memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.coding import decode_coordinates
from fedrep.protocol.messages import Outcome, Proposal
from fedrep.protocol.silo_rules import Policy
from tests.protocol.federation import Federation, Silo


def public_federation(count: int = 5, **options: object) -> Federation:
    federation = Federation.of(count, **options)  # type: ignore[arg-type]
    for silo in federation.silos.values():
        start = np.zeros(federation.run.parameters, np.float32)
        silo.machine._own = replace(silo.machine._own, public_start=start)
    return federation


def proposed(federation: Federation, silo: Silo) -> NDArray[np.int64]:
    return decode_coordinates(silo.said(Proposal).coordinates, federation.run.parameters)


def test_what_is_proposed_does_not_depend_on_what_was_trained() -> None:
    seen = []
    for update in (0.1, -7.0):
        federation = public_federation()
        name = federation.run.silos[0]
        federation.updates[name] = np.linspace(0, update, federation.run.parameters).astype(np.float32)
        federation.open_round()
        silo = federation.silos[name]
        federation.train(silo)
        seen.append(proposed(federation, silo).tolist())
    assert seen[0] == seen[1]


def test_all_members_together_propose_the_set_that_each_was_told_to_train_on() -> None:
    federation = public_federation()
    federation.open_round()
    parts, sets = [], []
    for silo in federation.members:
        assert silo.player.train is not None
        sets.append(silo.player.train.coordinates)
        federation.train(silo)
        parts.append(proposed(federation, silo))
    together = np.sort(np.concatenate(parts))
    assert all(found is not None and np.array_equal(found, together) for found in sets)
    assert together.size == federation.members[0].machine._manifest.per_silo * len(federation.members)


def test_such_a_proposal_costs_no_epsilon_and_no_budget_refuses_it() -> None:
    federation = public_federation()
    silo = federation.silos[federation.run.silos[0]]
    silo.machine._own = replace(silo.machine._own, policy=Policy(epsilon_budget=1e-9))
    federation.open_round()
    federation.train(silo)
    assert silo.said(Proposal)
    assert silo.machine.state.journal.ledger.rounds == 0


def test_values_elsewhere_are_not_sent_later_and_the_memory_stays_empty() -> None:
    federation = public_federation()
    assert federation.play().outcome is Outcome.APPLIED
    federation.open_round()
    for silo in federation.members:
        federation.train(silo)
        assert not silo.memory.residual.any(), "not even the rounding of what was sent"
        assert np.count_nonzero(silo.g) <= silo.machine._manifest.per_silo * len(federation.members)


@pytest.mark.parametrize("public", [True, False])
def test_only_a_public_choice_forgets_a_residual(public: bool) -> None:
    federation = public_federation() if public else Federation.of(5)
    silo = federation.silos[federation.run.silos[0]]
    silo.memory = replace(silo.memory, base=np.ones(federation.run.parameters, np.float32))
    federation.open_round()
    federation.train(silo)
    assert silo.memory.residual.any() == (not public)


def test_the_set_changes_with_the_model() -> None:
    federation = public_federation()
    sets = []
    for _ in range(2):
        federation.open_round()
        train = federation.members[0].player.train
        assert train is not None
        assert train.coordinates is not None
        sets.append(train.coordinates.tolist())
        for silo in federation.members:
            federation.leave_round(silo)
        federation.play()
    assert sets[0] != sets[1]
