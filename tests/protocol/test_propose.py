"""PROPOSE on the server: what a proposal must be, and how the phase ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedrep.coding import decode_coordinates, encode_coordinates
from fedrep.errors import (
    ConflictError,
    CryptoError,
    DecodeError,
    FedrepError,
    InvalidInputError,
    OutOfPhaseError,
    UnknownSiloError,
    WrongRoundError,
)
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    Confirmation,
    DeadlinePassed,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    Submission,
    share_list_digest,
)
from fedrep.protocol.round_effects import Noted, PhaseStarted, RoundEnded
from fedrep.protocol.seats import seats
from fedrep.secagg.keys import AgreementKey
from tests.protocol.federation import Federation, Silo, entropy_from
from tests.protocol.refusal import abort, assert_ignored, assert_refused, but, message_of, other_deadlines, sign_again, snapshot

Change = Callable[[Federation, Silo, Proposal], Proposal]


@pytest.fixture(scope="module")
def waiting() -> tuple[Federation, Silo, Proposal]:
    """A round in which one silo has yet to propose, and the honest proposal it holds. Refusals leave it as it is."""
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    *others, last = federation.members
    for silo in others[:4]:
        federation.propose(silo)
    return federation, last, proposal_of(federation, last)


def proposal_of(federation: Federation, silo: Silo, seed: int = 1) -> Proposal:
    """An honest proposal that was not sent."""
    assert silo.ready is not None
    assert federation.manifest is not None
    rng = np.random.default_rng(seed)
    federation.train(silo)
    indices = np.sort(rng.choice(federation.run.parameters, federation.manifest.per_silo, replace=False))
    session = AgreementKey.generate(entropy_from(rng))
    return replace(silo.ready, once=type(silo.ready.once)()).propose(indices, session, entropy_from(rng)).message


def with_coordinates(indices: list[int], d: int | None = None) -> Change:
    return lambda federation, _, p: replace(p, coordinates=encode_coordinates(indices, d or federation.run.parameters))


def with_record(**changes: bytes) -> Change:
    return lambda federation, silo, p: sign_again(federation, silo, p, **changes)


def with_shares(**changes: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Change:
    """Other share lists, with a record that commits to them: only their form can be what is refused."""

    def forge(federation: Federation, silo: Silo, proposal: Proposal) -> Proposal:
        lists = {name: change(getattr(proposal, name)) for name, change in changes.items()}
        forged = replace(proposal, **lists)  # type: ignore[arg-type]
        digest = share_list_digest(forged.seed_share_hashes, forged.key_share_hashes)
        return sign_again(federation, silo, forged, shares_digest=digest)

    return forge


def signed_by_another(federation: Federation, silo: Silo, proposal: Proposal) -> Proposal:
    other = federation.members[0].signing_key
    record = replace(proposal.record, signature=other.sign(proposal.record.digest(federation.round.c1)))
    return replace(proposal, record=record)


def signed_for_another_round(federation: Federation, silo: Silo, proposal: Proposal) -> Proposal:
    assert federation.manifest is not None
    stale = replace(federation.manifest, round=federation.manifest.round - 1).context()
    return replace(proposal, record=replace(proposal.record, signature=silo.signing_key.sign(proposal.record.digest(stale))))


def record_of_another(federation: Federation, silo: Silo, proposal: Proposal) -> Proposal:
    """The silo signs a record that carries another's name."""
    name = federation.members[0].name
    renamed = replace(proposal, record=replace(proposal.record, silo=name))
    return sign_again(federation, silo, renamed)


ZERO, ONE = bytes(32), (1).to_bytes(32, "little")
NOT_REDUCED = (2**255 - 19 + 9).to_bytes(32, "little")

BAD_PROPOSALS: dict[str, tuple[Change, type[FedrepError], str]] = {
    "unknown silo": (but(silo=SiloName("nobody")), UnknownSiloError, "UNKNOWN_SILO"),
    "another run": (but(run=RunHash(bytes(32))), WrongRoundError, "WRONG_RUN"),
    "older round": (but(round=lambda p: p.round - 1), WrongRoundError, "WRONG_ROUND"),
    "later round": (but(round=lambda p: p.round + 1), WrongRoundError, "WRONG_ROUND"),
    "too many coordinates": (with_coordinates([0, 1, 2]), DecodeError, "MALFORMED"),
    "too few coordinates": (with_coordinates([5]), InvalidInputError, "WRONG_COUNT"),
    "no coordinates": (with_coordinates([]), InvalidInputError, "WRONG_COUNT"),
    "coordinate beyond d": (with_coordinates([3, 64], 65), DecodeError, "MALFORMED"),
    "no header": (but(coordinates=b""), DecodeError, "MALFORMED"),
    "cut short": (but(coordinates=lambda p: p.coordinates[:-1]), DecodeError, "MALFORMED"),
    "superfluous byte": (but(coordinates=lambda p: p.coordinates + b"\0"), DecodeError, "MALFORMED"),
    "a header that claims millions": (
        but(coordinates=lambda p: b"\xff\xff\xff\x7f" + p.coordinates[4:]),
        DecodeError,
        "MALFORMED",
    ),
    "low-order mask key": (with_record(mask_key=ZERO), CryptoError, "BAD_CRYPTOGRAPHY"),
    "mask key that is not canonical": (with_record(mask_key=NOT_REDUCED), CryptoError, "BAD_CRYPTOGRAPHY"),
    "short mask key": (with_record(mask_key=b"short"), CryptoError, "BAD_CRYPTOGRAPHY"),
    "low-order session key": (with_record(next_session_key=ONE), CryptoError, "BAD_CRYPTOGRAPHY"),
    "short seed commitment": (with_record(seed_commitment=bytes(31)), InvalidInputError, "WRONG_SHARES"),
    "record signed by another": (signed_by_another, CryptoError, "BAD_SIGNATURE"),
    "record of an older round": (signed_for_another_round, CryptoError, "BAD_SIGNATURE"),
    "record in another's name": (record_of_another, InvalidInputError, "WRONG_RECORD"),
    "unsigned next session key": (
        but(next_session_signature=bytes(64)),
        CryptoError,
        "BAD_SIGNATURE",
    ),
    "next session key of another": (
        with_record(next_session_key=AgreementKey.from_secret(b"\7" * 32).public),
        CryptoError,
        "BAD_SIGNATURE",
    ),
    "a share too few": (with_shares(sealed_shares=lambda items: items[1:]), InvalidInputError, "WRONG_SHARES"),
    "a share too many": (with_shares(sealed_shares=lambda items: (*items, items[0])), InvalidInputError, "WRONG_SHARES"),
    "a share of another length": (
        with_shares(sealed_shares=lambda items: (items[0][1:], *items[1:])),
        InvalidInputError,
        "WRONG_SHARES",
    ),
    "a seed hash too few": (with_shares(seed_share_hashes=lambda items: items[1:]), InvalidInputError, "WRONG_SHARES"),
    "a key hash too many": (with_shares(key_share_hashes=lambda items: (*items, ZERO)), InvalidInputError, "WRONG_SHARES"),
    "a hash of another length": (
        with_shares(key_share_hashes=lambda items: (*items[1:], b"short")),
        InvalidInputError,
        "WRONG_SHARES",
    ),
    "hashes the record does not commit to": (
        but(seed_share_hashes=lambda p: p.key_share_hashes),
        InvalidInputError,
        "WRONG_SHARES",
    ),
}


@pytest.mark.parametrize("case", BAD_PROPOSALS)
def test_a_bad_proposal_is_refused_and_changes_nothing(case: str, waiting: tuple[Federation, Silo, Proposal]) -> None:
    federation, silo, proposal = waiting
    change, error, reason = BAD_PROPOSALS[case]
    assert_refused(federation.round, change(federation, silo, proposal), error, reason)


def test_the_proposal_that_the_bad_ones_were_made_from_is_accepted(waiting: tuple[Federation, Silo, Proposal]) -> None:
    federation, silo, _ = waiting
    fresh = Federation.of(6, quorum=5)
    fresh.open_round()
    twin = fresh.members[-1]
    assert fresh.round.receive(proposal_of(fresh, twin)) == []
    assert fresh.round.proposed == {twin.name}
    assert silo.name == twin.name
    assert federation.round.phase is Phase.PROPOSE


def test_no_bytes_give_a_coordinate_twice_or_out_of_order(waiting: tuple[Federation, Silo, Proposal]) -> None:
    """The code cannot express such a set: any other bytes are refused, or are another valid set of k."""
    federation, _, proposal = waiting
    d, k = federation.run.parameters, federation.round.manifest.per_silo
    accepted = 0
    for position in range(len(proposal.coordinates)):
        for flip in range(1, 256):
            changed = bytearray(proposal.coordinates)
            changed[position] ^= flip
            try:
                indices = decode_coordinates(bytes(changed), d, k)
            except DecodeError:
                continue
            if indices.size == k:
                accepted += 1
                assert (np.diff(indices) > 0).all()
                assert indices[0] >= 0
                assert indices[-1] < d
    assert accepted > 0
    for unordered in ([3, 3], [4, 3]):
        with pytest.raises(InvalidInputError):
            encode_coordinates(unordered, d)


@pytest.mark.parametrize("kind", [Submission, Confirmation, Reveal])
def test_a_message_of_a_later_phase_is_refused(kind: type, waiting: tuple[Federation, Silo, Proposal]) -> None:
    federation, silo, _ = waiting
    assert_refused(federation.round, message_of(federation, silo, kind), OutOfPhaseError, "OUT_OF_PHASE")


@pytest.mark.parametrize("event", other_deadlines(Phase.PROPOSE))
def test_the_deadline_of_another_phase_changes_nothing(event: DeadlinePassed, waiting: tuple[Federation, Silo, Proposal]) -> None:
    assert_ignored(waiting[0].round, event)


def test_there_is_no_consensus_and_no_survivor_yet(waiting: tuple[Federation, Silo, Proposal]) -> None:
    federation, silo, _ = waiting
    with pytest.raises(OutOfPhaseError):
        federation.round.consensus_for(silo.name)
    with pytest.raises(OutOfPhaseError):
        federation.round.survivors()
    with pytest.raises(UnknownSiloError):
        federation.round.consensus_for(SiloName("nobody"))


def test_an_identical_proposal_is_accepted_again_and_a_conflicting_one_refused(
    waiting: tuple[Federation, Silo, Proposal],
) -> None:
    federation = waiting[0]
    sender = federation.members[0]
    assert sender.proposed is not None
    assert_ignored(federation.round, sender.proposed.message)
    assert_refused(federation.round, proposal_of(federation, sender, seed=2), ConflictError, "CONFLICT")
    same_set = replace(sender.proposed.message, next_session_signature=b"other")
    assert_refused(federation.round, same_set, ConflictError, "CONFLICT")


def test_the_last_proposal_fixes_the_consensus() -> None:
    federation = Federation.of(5)
    federation.open_round()
    *first, last = federation.members
    for silo in first:
        federation.propose(silo)
    assert federation.effects == []
    federation.propose(last)
    assert federation.effects == [PhaseStarted(Phase.SUBMIT)]
    assert federation.round.phase is Phase.SUBMIT


def test_at_the_deadline_the_round_goes_on_with_those_who_proposed() -> None:
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    late = federation.members[0].name
    assert federation.effects == [Noted("late", f"{late} did not propose in time", late), PhaseStarted(Phase.SUBMIT)]
    assert late not in {silo.name for buffer in federation.by_buffer() for silo in buffer}


def test_fewer_proposers_than_the_quorum_go_on_if_their_buffers_fill() -> None:
    """The quorum counts the roster; who is left after that is a matter of buffers."""
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    full = seats(federation.run, 1)[1]
    for name in full:
        federation.propose(federation.silos[name])
    federation.deadline()
    assert federation.round.phase is Phase.SUBMIT


@pytest.mark.parametrize(("full", "goes_on"), [(2, False), (3, True)])
def test_with_attackers_three_buffers_need_enough_proposers(full: int, goes_on: bool) -> None:
    """o_min = 3 when f = 1: with less the round ends before anybody submits."""
    federation = Federation.of(8, byzantine=1, aggregator="median", quorum=8)
    federation.open_round()
    fixed = seats(federation.run, 1)
    for name in [name for seat in fixed[:full] for name in seat] + [seat[0] for seat in fixed[full:]]:
        federation.propose(federation.silos[name])
    federation.deadline()
    assert federation.round.phase is (Phase.SUBMIT if goes_on else Phase.DONE)
    if federation.round.result is not None:
        assert federation.round.result.reason == "6 silos proposed: fewer than 3 buffers have 2 of them"


def test_too_few_proposers_in_every_buffer_skip_the_round() -> None:
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    came = [seat[0] for seat in seats(federation.run, 1)]
    for name in came:
        federation.propose(federation.silos[name])
    federation.deadline()
    reason = "3 silos proposed: fewer than 1 buffers have 2 of them"
    result = federation.round.result
    assert result is not None
    assert federation.effects[-1] == RoundEnded(result)
    assert (result.outcome, result.reason, result.survivors, result.opened) == (Outcome.SKIPPED, reason, None, ())
    assert result.report.failed == frozenset()
    assert result.report.missed == set(federation.silos) - set(came)
    assert result.report.answered == set(came)
    assert set(result.report.next_session_keys) == result.report.answered


def test_an_abort_skips_the_round_and_blames_nobody() -> None:
    federation = Federation.of(5)
    federation.open_round()
    federation.propose(federation.members[0])
    effects = federation.round.receive(abort("maintenance"))
    result = federation.round.result
    assert result is not None
    assert effects == [RoundEnded(result)]
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "maintenance")
    assert result.report.failed == result.report.missed == frozenset()
    assert result.report.answered == set(federation.round.manifest.names), "no silo had the time it was promised"


def test_the_consensus_is_the_union_in_the_seats_of_the_epoch() -> None:
    federation = Federation.of(7, parameters=100, buffer_size=3)
    server = federation.until(Phase.SUBMIT)
    assert all(silo.proposed is not None for silo in federation.members)
    union = np.unique(np.concatenate([silo.proposed.coordinates for silo in federation.members if silo.proposed]))
    for silo in federation.members:
        seen = server.consensus_for(silo.name)
        np.testing.assert_array_equal(decode_coordinates(seen.coordinates, 100), union)
        assert seen.assignment == server.consensus_for(federation.members[0].name).assignment
    assert [tuple(silo.name for silo in buffer) for buffer in federation.by_buffer()] == list(seats(federation.run, 1))


def test_a_silo_sees_its_mates_records_and_its_own_shares_and_no_others() -> None:
    federation = Federation.of(6)
    server = federation.until(Phase.SUBMIT)
    for number, silo in enumerate(federation.members):
        seen = server.consensus_for(silo.name)
        mates = next(buffer for buffer in federation.by_buffer() if silo in buffer)
        assert {record.silo for record in seen.mates} == {mate.name for mate in mates} - {silo.name}
        for dealer, sealed in seen.shares:
            proposed = federation.silos[dealer].proposed
            assert proposed is not None
            assert sealed == proposed.message.sealed_shares[number]
        assert len(seen.shares) == 6


def test_a_holder_that_did_not_propose_sees_the_shares_sealed_to_it_and_no_record() -> None:
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    seen = federation.round.consensus_for(federation.members[0].name)
    assert seen.mates == ()
    assert len(seen.shares) == 5


def test_reading_the_round_does_not_change_it() -> None:
    federation = Federation.of(5)
    server = federation.until(Phase.SUBMIT)
    before = snapshot(server)
    server.consensus_for(federation.members[0].name)
    server.confirmations()
    assert server.proposed == set(federation.silos)
    hashes = server.proposed_coordinates()
    assert len(hashes) == 5
    assert snapshot(server) == before
