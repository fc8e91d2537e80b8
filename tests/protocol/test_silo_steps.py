"""The chain of a silo's steps: only the next one is there, a retry sends the same bytes, and nothing of it leaks by accident."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from fedrep.coding import decode_coordinates
from fedrep.errors import FedrepError, RefusedError
from fedrep.protocol.messages import Outcome, Phase, Secret
from fedrep.protocol.seats import seats
from fedrep.protocol.silo_round import Confirmed, Observing, Proposed, Ready, Revealed, Submitted, Watching
from fedrep.quantize import RingFormat
from fedrep.secagg import shamir
from fedrep.secagg.keys import AgreementKey, commitment
from fedrep.wire import codec
from tests.protocol.federation import Federation, Silo, entropy_from

NEXT = {
    Ready: {"propose", "watch", "abstain"},
    Proposed: {"on_consensus"},
    Watching: {"on_consensus"},
    Observing: {"on_survivors"},
    Submitted: {"on_survivors"},
    Confirmed: {"on_signatures"},
    Revealed: set(),
}


def played(**changes: object) -> tuple[Federation, Silo]:
    federation = Federation.of(6, **changes)  # type: ignore[arg-type]
    update = federation.play()
    assert update.outcome is Outcome.APPLIED
    return federation, next(silo for silo in federation.members if silo.revealed is not None)


@pytest.mark.parametrize("step", NEXT)
def test_a_step_offers_only_its_legal_next_methods(step: type) -> None:
    offered = {name for name in vars(step) if not name.startswith("_") and callable(getattr(step, name))}
    own = {item.name for item in fields(step)}
    assert offered - own - {"enter"} == NEXT[step]


def test_steps_are_frozen() -> None:
    _, silo = played()
    for step in (silo.proposed, silo.submitted, silo.confirmed, silo.revealed):
        assert step is not None
        with pytest.raises(FrozenInstanceError):
            step.message = None  # type: ignore[misc,assignment]


def test_a_retry_sends_identical_bytes_at_every_step() -> None:
    federation = Federation.of(6)
    federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
        assert silo.proposed is not None
        first, again = codec.proposal_to_wire(silo.proposed.message), codec.proposal_to_wire(silo.proposed.message)
        assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
        assert federation.round.receive(silo.proposed.message) == []
    for silo in federation.members:
        federation.submit(silo)
        assert silo.submitted is not None
        assert federation.round.receive(replace(silo.submitted.message)) == []
    for silo in federation.members:
        federation.confirm(silo)
        assert silo.confirmed is not None
        assert federation.round.receive(replace(silo.confirmed.message)) == []
    for silo in federation.members:
        if federation.round.phase is Phase.REVEAL:
            federation.reveal(silo)
            assert silo.revealed is not None
            assert federation.round.receive(replace(silo.revealed.message)) == []
    assert federation.finish().outcome is Outcome.APPLIED


def test_a_submission_is_not_requantized_when_the_silo_learns_more() -> None:
    """What is sent is fixed by the step, whatever happens to g or the generator afterwards."""
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    g = silo.g.copy()
    assert silo.proposed is not None
    submitted = silo.proposed.on_consensus(federation.round.consensus_for(silo.name), g, silo.rng)
    assert isinstance(submitted, Submitted)
    before = (bytes(submitted.message.masked), submitted.values.dequantized.copy())
    g += 1.0
    silo.rng.random(100)
    assert submitted.message.masked == before[0]
    np.testing.assert_array_equal(submitted.values.dequantized, before[1])


def test_masking_leaves_the_plain_levels_alone() -> None:
    """The residual is computed from the values, not from their masked form."""
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    for silo in federation.members:
        assert silo.submitted is not None
        plain = silo.submitted.values.levels.view(np.int16)
        limit = RingFormat(federation.run.ring_bits, federation.run.value_bits).limit
        np.testing.assert_allclose(plain / limit, silo.submitted.values.dequantized, rtol=1e-6)
        assert plain.astype("<i2").tobytes() != silo.submitted.message.masked


def test_a_proposal_of_another_size_than_k_is_refused() -> None:
    federation = Federation.of(6)
    manifest = federation.open_round()
    silo = federation.members[0]
    assert silo.ready is not None
    ready = silo.ready
    with pytest.raises(RefusedError):
        ready.propose(np.arange(manifest.per_silo + 1), AgreementKey.generate(), entropy_from(silo.rng))


def test_a_proposal_carries_shares_for_every_holder_that_rebuild_both_secrets() -> None:
    federation = Federation.of(6)
    manifest = federation.open_round()
    for silo in federation.members:
        federation.propose(silo)
    dealer = federation.members[2]
    assert dealer.proposed is not None
    message = dealer.proposed.message
    assert len(message.sealed_shares) == len(message.seed_share_hashes) == len(message.key_share_hashes) == 6
    np.testing.assert_array_equal(decode_coordinates(message.coordinates, 64), dealer.proposed.coordinates)
    held = {}
    for number, silo in enumerate(federation.members, start=1):
        federation.submit(silo)
        assert silo.submitted is not None
        held[number] = silo.submitted.agreement.held[dealer.name]
    seed = shamir.combine({number: shares[0] for number, shares in held.items()}, manifest.threshold)
    key = shamir.combine({number: shares[1] for number, shares in held.items()}, manifest.threshold)
    assert commitment(seed) == message.record.seed_commitment
    assert AgreementKey.from_secret(key).public == message.record.mask_key


def test_holders_are_numbered_by_the_bytewise_order_of_names_and_everyone_is_one() -> None:
    """No draw of holders, hence nothing a server could grind: the roster alone says who holds which share."""
    federation = Federation.of(7)
    manifest = federation.open_round()
    assert list(manifest.names) == sorted(manifest.names, key=str.encode)
    assert manifest.threshold == 2 * 7 // 3 + 1
    for silo in federation.members:
        federation.propose(silo)
        assert silo.proposed is not None
        assert len(silo.proposed.message.sealed_shares) == len(manifest.roster)


def test_a_silo_that_came_too_late_to_propose_holds_shares_and_reveals_them() -> None:
    federation = Federation.of(7)
    federation.open_round()
    late = federation.silos[max(seats(federation.run, 1), key=len)[0]]  # of three, so that its buffer opens without it
    others = [silo for silo in federation.members if silo is not late]
    for silo in others:
        federation.propose(silo)
    federation.deadline()
    federation.observe(late)
    for silo in others:
        federation.submit(silo)
    for silo in (late, *others[:4]):
        federation.confirm(silo)
    federation.reveal(late)
    assert late.revealed is not None
    assert {share.secret for share in late.revealed.message.shares} == {Secret.SEED}
    assert len(late.revealed.message.shares) == 6


def test_a_silo_whose_proposal_arrived_late_goes_on_as_a_holder_and_once() -> None:
    federation = Federation.of(7)
    federation.open_round()
    late = federation.members[0]
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    proposed = federation.prepare(late)
    observing = proposed.on_consensus(federation.round.consensus_for(late.name), late.g, late.rng)
    assert isinstance(observing, Observing)
    assert len(observing.agreement.held) == 6
    with pytest.raises(RefusedError) as caught:
        proposed.on_consensus(federation.round.consensus_for(late.name), late.g, late.rng)
    assert caught.value.reason == "ONCE_PER_ROUND"


def test_a_consensus_that_cannot_be_decoded_is_an_error_and_uses_the_step_up() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    assert silo.proposed is not None
    step = silo.proposed
    honest = federation.round.consensus_for(silo.name)
    with pytest.raises(FedrepError):
        step.on_consensus(replace(honest, coordinates=b"\xff" * 9), silo.g, silo.rng)
    with pytest.raises(RefusedError):
        step.on_consensus(honest, silo.g, silo.rng)


def test_no_step_shows_shares_values_or_seeds_in_its_repr() -> None:
    _, silo = played()
    assert silo.proposed is not None
    assert silo.submitted is not None
    assert silo.confirmed is not None
    assert silo.revealed is not None
    secrets = [silo.proposed.secrets.seed.reveal(), silo.proposed.secrets.mask_key.secret().reveal()]
    secrets += [share for pair in silo.submitted.agreement.held.values() for share in pair]
    text = "".join(
        repr(step)
        for step in (silo.ready, silo.proposed, silo.submitted, silo.confirmed, silo.revealed, silo.memory, silo.memory.pending)
    )
    assert all(repr(secret)[2:-1] not in text and secret.hex() not in text for secret in secrets)
    assert "array(" not in text


def test_no_step_can_be_pickled_or_copied_with_its_secrets() -> None:
    _, silo = played()
    for step in (silo.ready, silo.proposed, silo.submitted, silo.confirmed, silo.revealed):
        with pytest.raises(TypeError):
            pickle.dumps(step)
        with pytest.raises(TypeError):
            copy.deepcopy(step)
