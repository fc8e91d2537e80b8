"""Silos that send poison: a robust rule keeps the update within the honest spread; garbage harms only the buffer it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import fedrep.protocol.server_round as server_round
from fedrep.aggregators import AGGREGATORS
from fedrep.coding import encode_coordinates
from fedrep.errors import FedrepError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Outcome, Phase, Submission
from fedrep.protocol.opening import Combined, combine_buffers
from fedrep.protocol.preflight import preflight
from tests.protocol.byzantine import garbage_shares, propose_with_bad_shares, submit_random_values
from tests.protocol.federation import Federation, Silo
from tests.protocol.lying_server import submitted_of
from tests.protocol.test_opening import buffer_of, play_on

ROBUST = sorted(set(AGGREGATORS) - {"mean"})
D = 400
POISON = 1e6


def poisoned(aggregator: str, byzantine: int) -> Federation:
    """14 silos in 7 buffers of two, of whom two send vectors scaled by 1e6. R is as wide, so that no clipping helps the rule."""
    federation = Federation.of(
        14,
        parameters=D,
        seed=5,
        byzantine=byzantine,
        aggregator=aggregator,
        ring_bits=32,
        initial_range=4 * POISON,
        largest_range=4 * POISON,
        quorum=14,
    )
    rng = np.random.default_rng(7)
    shared = rng.normal(size=D)
    for number, name in enumerate(federation.silos):
        update = shared + rng.normal(scale=0.5, size=D)
        federation.updates[name] = (update * (POISON if number in (0, 7) else 1.0)).astype(np.float32)
    assert preflight(federation.run) == []
    return federation


def opened_means(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> dict[int, NDArray[np.float32]]:
    seen: dict[int, NDArray[np.float32]] = {}

    def spy(means: dict[int, NDArray[np.float32]], *rest: object) -> Combined:
        seen.update(means)
        return combine_buffers(means, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(server_round, "combine_buffers", spy)
    assert federation.play().outcome is Outcome.APPLIED
    return seen


def distance_and_spread(federation: Federation, means: dict[int, NDArray[np.float32]]) -> tuple[float, float]:
    """How far the update is from the mean of the honest buffers, and how far the farthest honest buffer is."""
    attackers = [federation.members[0], federation.members[7]]
    bad = {buffer_of(federation, silo) for silo in attackers}
    honest = np.stack([mean for number, mean in means.items() if number not in bad]).astype(np.float64)
    centre = honest.mean(axis=0)
    result = federation.round.result
    assert result is not None
    assert result.combined is not None
    spread = float(np.linalg.norm(honest - centre, axis=1).max())
    return float(np.linalg.norm(result.combined.vector - centre)), spread


@pytest.mark.parametrize("rule", ROBUST)
def test_a_robust_rule_keeps_the_update_within_the_honest_spread(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = poisoned(rule, 2)
    distance, spread = distance_and_spread(federation, opened_means(federation, monkeypatch))
    assert distance <= spread


def test_the_plain_mean_is_carried_away(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = poisoned("mean", 0)
    distance, spread = distance_and_spread(federation, opened_means(federation, monkeypatch))
    assert distance > 1000 * spread


@pytest.mark.parametrize("rule", ROBUST)
def test_a_robust_rule_over_a_single_buffer_is_refused_at_creation(rule: str) -> None:
    federation = Federation.of(7, buffer_size=4, aggregator=rule)
    assert any("over one buffer is the plain mean" in problem for problem in preflight(federation.run))


def refused(federation: Federation, event: Submission) -> None:
    with pytest.raises(FedrepError):
        federation.round.receive(event)


def bad_coordinates(federation: Federation, silo: Silo, indices: list[int], d: int) -> None:
    honest = federation.prepare(silo)
    with pytest.raises(FedrepError):
        federation.round.receive(replace(honest.message, coordinates=encode_coordinates(indices, d)))


def vector_of(length: Callable[[int], int]) -> Callable[[Federation, Silo], None]:
    """Never accepted: to the others this silo has dropped out."""

    def submit(federation: Federation, silo: Silo) -> None:
        assert silo.proposed is not None
        honest = submitted_of(silo.proposed, federation.round.consensus_for(silo.name), silo)
        refused(federation, replace(honest.message, masked=bytes(length(len(honest.message.masked)))))

    return submit


PROPOSERS: dict[str, Callable[[Federation, Silo], None]] = {
    "a seed it does not have": lambda f, silo: propose_with_bad_shares(f, silo, seed=b"\1" * 32),
    "garbage shares for everyone": lambda f, silo: propose_with_bad_shares(f, silo, unmatched_for=f.round.manifest.names),
    "a coordinate out of range": lambda f, silo: bad_coordinates(f, silo, [1, D], D + 1),
    "too many coordinates": lambda f, silo: bad_coordinates(f, silo, list(range(50)), D),
    "too few coordinates": lambda f, silo: bad_coordinates(f, silo, [3], D),
}
SUBMITTERS: dict[str, Callable[[Federation, Silo], None]] = {
    "values outside the ring's sums": submit_random_values,
    "a short vector": vector_of(lambda size: size - 2),
    "an oversized vector": vector_of(lambda size: size + 2),
    "an empty vector": vector_of(lambda _: 0),
}


def honest_mean(federation: Federation, *, without: set[SiloName]) -> NDArray[np.float32]:
    sent = [s.submitted.values.dequantized for s in federation.members if s.submitted and s.name not in without]
    return np.asarray(np.mean(sent, axis=0), np.float32)


def close(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return bool(np.allclose(one, other, atol=1e-5))


def attacked_federation() -> Federation:
    """The mean over buffers of two, so that the update shows exactly whose values went in."""
    return Federation.of(10, parameters=D, quorum=9)


@pytest.mark.parametrize("attack", PROPOSERS)
def test_a_byzantine_proposer_spoils_its_own_buffer_at_most(attack: str) -> None:
    federation = attacked_federation()
    federation.open_round()
    attacker = federation.members[4]
    PROPOSERS[attack](federation, attacker)
    took_part = attacker.name in federation.round.proposed
    result = play_on(federation, silent=() if took_part else (attacker,))
    mates = {silo.name for buffer in federation.by_buffer() if attacker in buffer for silo in buffer}
    assert result.outcome is Outcome.APPLIED
    assert len(result.opened) == 4, "four of five if it took part, else nine silos in four buffers"
    assert result.combined is not None
    assert close(result.combined.vector, honest_mean(federation, without=mates))
    assert result.report.failed == ({attacker.name} if took_part else set())


@pytest.mark.parametrize("attack", SUBMITTERS)
def test_a_byzantine_submitter_spoils_its_own_buffer_at_most(attack: str) -> None:
    federation = attacked_federation()
    federation.until(Phase.SUBMIT)
    attacker = federation.members[4]
    SUBMITTERS[attack](federation, attacker)
    result = play_on(federation, silent=(attacker,))
    mates = {silo.name for buffer in federation.by_buffer() if attacker in buffer for silo in buffer}
    assert result.outcome is Outcome.APPLIED
    assert len(result.opened) == 4
    assert result.combined is not None
    assert close(result.combined.vector, honest_mean(federation, without=mates))


def test_byzantine_holders_that_reveal_garbage_spoil_nothing() -> None:
    federation = attacked_federation()
    federation.until(Phase.REVEAL)
    for liar in federation.members[:3]:
        federation.effects += federation.round.receive(garbage_shares(federation, liar))
    result = play_on(federation, silent=tuple(federation.members[:3]))
    assert result.outcome is Outcome.APPLIED
    assert len(result.opened) == 5
    assert result.combined is not None
    assert close(result.combined.vector, honest_mean(federation, without=set()))
