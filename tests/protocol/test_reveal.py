"""REVEAL on the server: which shares it takes, which it only notes, and when it stops waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedrep.errors import (
    ConflictError,
    CryptoError,
    FedrepError,
    InvalidInputError,
    OutOfPhaseError,
    UnknownSiloError,
    WrongRoundError,
)
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    DeadlinePassed,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    RevealedShare,
    Secret,
    Submission,
)
from fedrep.protocol.round_effects import Noted, RoundEnded
from tests.protocol.byzantine import garbage_shares
from tests.protocol.federation import Federation, Silo
from tests.protocol.refusal import abort, assert_ignored, assert_refused, but, message_of, other_deadlines
from tests.protocol.test_propose import proposal_of

Waiting = tuple[Federation, Silo, Reveal]
Change = Callable[[Federation, Silo, Reveal], Reveal]


def revealing(*, abstains: bool = False) -> Federation:
    """One of nine silos did not propose; of the two buffers of four, one lost a member before submission."""
    federation = Federation.of(9, parameters=120, buffer_size=4, min_survivors=3, quorum=8)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    if abstains:
        federation.abstain(federation.members[0])
    else:
        federation.deadline()
    gone = federation.by_buffer()[0][0]
    for silo in federation.members[1:]:
        if silo is not gone:
            federation.submit(silo)
    federation.deadline()
    if abstains:
        federation.submit(federation.members[0])
    else:
        federation.observe(federation.members[0])
    for silo in federation.members:
        if silo.submitted or silo.observing:
            federation.confirm(silo)
    assert federation.round.phase is Phase.REVEAL
    return federation


@pytest.fixture(scope="module")
def waiting() -> Waiting:
    federation = revealing()
    first, *_, last = [silo for silo in federation.members if silo.confirmed]
    federation.reveal(first)
    assert last.confirmed is not None
    return federation, last, last.confirmed.on_signatures(federation.round.confirmations()).message


def dropped(federation: Federation) -> Silo:
    return next(silo for silo in federation.members if silo.proposed and not silo.submitted)


def as_well(silo: Callable[[Federation], Silo], secret: Secret) -> Change:
    """One share more than the honest reveal has, of this silo."""

    def forge(federation: Federation, _silo: Silo, reveal: Reveal) -> Reveal:
        return replace(reveal, shares=(*reveal.shares, RevealedShare(silo(federation).name, secret, bytes(33))))

    return forge


def instead(silo: Callable[[Federation], Silo], secret: Secret) -> Change:
    """The share of this silo replaced by one of its other secret."""

    def forge(federation: Federation, _silo: Silo, reveal: Reveal) -> Reveal:
        name = silo(federation).name
        shares = (share if share.dealer != name else RevealedShare(name, secret, share.share) for share in reveal.shares)
        return replace(reveal, shares=tuple(shares))

    return forge


def survivor(federation: Federation) -> Silo:
    return next(silo for silo in federation.members if silo.submitted)


BAD_REVEALS: dict[str, tuple[Change, type[FedrepError], str]] = {
    "unknown silo": (but(silo=SiloName("nobody")), UnknownSiloError, "UNKNOWN_SILO"),
    "another run": (but(run=RunHash(bytes(32))), WrongRoundError, "WRONG_RUN"),
    "older round": (but(round=lambda r: r.round - 1), WrongRoundError, "WRONG_ROUND"),
    "a share twice": (but(shares=lambda r: (*r.shares, r.shares[0])), InvalidInputError, "TWO_SHARES"),
    "b and x of a survivor": (as_well(survivor, Secret.KEY), InvalidInputError, "TWO_SHARES"),
    "x and b of a dropped silo": (as_well(dropped, Secret.SEED), InvalidInputError, "TWO_SHARES"),
    "x of a survivor": (instead(survivor, Secret.KEY), InvalidInputError, "UNWANTED_SHARE"),
    "b of a dropped silo": (instead(dropped, Secret.SEED), InvalidInputError, "UNWANTED_SHARE"),
    "a silo that did not propose": (
        as_well(lambda federation: federation.members[0], Secret.SEED),
        InvalidInputError,
        "UNWANTED_SHARE",
    ),
    "a silo nobody knows": (
        but(shares=(RevealedShare(SiloName("nobody"), Secret.SEED, bytes(33)),)),
        InvalidInputError,
        "UNWANTED_SHARE",
    ),
}


@pytest.mark.parametrize("case", BAD_REVEALS)
def test_a_bad_reveal_is_refused_and_changes_nothing(case: str, waiting: Waiting) -> None:
    federation, silo, reveal = waiting
    change, error, reason = BAD_REVEALS[case]
    assert_refused(federation.round, change(federation, silo, reveal), error, reason)


def test_nothing_is_taken_about_a_buffer_that_stays_shut() -> None:
    federation = Federation.of(8, buffer_size=4, min_survivors=4, quorum=8, parameters=80)
    federation.until(Phase.SUBMIT)
    shut = federation.by_buffer()[0]
    for silo in federation.members:
        if silo is not shut[0]:
            federation.submit(silo)
    federation.deadline()
    for silo in federation.members:
        if silo.submitted:
            federation.confirm(silo)
    holder = federation.members[-1] if federation.members[-1].confirmed else federation.members[-2]
    honest = garbage_shares(federation, holder)
    assert {share.dealer for share in honest.shares} == {silo.name for silo in federation.by_buffer()[1]}
    for mate, secret in ((shut[0], Secret.KEY), (shut[1], Secret.SEED)):
        more = RevealedShare(mate.name, secret, bytes(33))
        forged = replace(honest, shares=(*honest.shares, more))
        assert_refused(federation.round, forged, InvalidInputError, "UNWANTED_SHARE")


@pytest.mark.parametrize("kind", [Proposal, Submission])
def test_a_message_of_an_earlier_phase_is_refused(kind: type, waiting: Waiting) -> None:
    federation = waiting[0]
    sender = federation.members[0] if kind is Proposal else dropped(federation)
    assert_refused(federation.round, message_of(federation, sender, kind), OutOfPhaseError, "OUT_OF_PHASE")


@pytest.mark.parametrize("event", other_deadlines(Phase.REVEAL))
def test_the_deadline_of_another_phase_changes_nothing(event: DeadlinePassed, waiting: Waiting) -> None:
    assert_ignored(waiting[0].round, event)


def test_identical_messages_are_accepted_again_and_conflicting_ones_refused(waiting: Waiting) -> None:
    federation = waiting[0]
    sender = next(silo for silo in federation.members if silo.submitted)
    assert sender.proposed is not None
    assert sender.submitted is not None
    assert sender.confirmed is not None
    for message in (sender.proposed.message, sender.submitted.message, sender.confirmed.message):
        assert_ignored(federation.round, message)
    assert_refused(federation.round, proposal_of(federation, sender, seed=9), ConflictError, "CONFLICT")
    assert_refused(federation.round, replace(sender.submitted.message, masked=b"other"), ConflictError, "CONFLICT")
    assert_refused(federation.round, replace(sender.confirmed.message, signature=b"other"), ConflictError, "CONFLICT")
    first = next(silo for silo in federation.members if silo.revealed)
    assert first.revealed is not None
    assert_ignored(federation.round, first.revealed.message)
    fewer = replace(first.revealed.message, shares=first.revealed.message.shares[1:])
    assert_refused(federation.round, fewer, ConflictError, "CONFLICT")


def test_a_late_confirmation_is_kept_and_a_false_one_refused() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    *others, late = federation.members
    for silo in others:
        federation.confirm(silo)
    assert late.submitted is not None
    honest = late.submitted.on_survivors(federation.round.survivors()).message
    assert_refused(federation.round, replace(honest, signature=bytes(64)), CryptoError, "BAD_SIGNATURE")
    assert federation.round.receive(honest) == []
    assert dict(federation.round.confirmations())[late.name] == honest.signature
    assert federation.round.phase is Phase.REVEAL


def test_the_round_ends_as_soon_as_every_wanted_secret_can_be_recovered() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    for silo in federation.members[:4]:
        federation.reveal(silo)
        assert federation.round.phase is Phase.REVEAL
    last = federation.members[4]
    federation.reveal(last)
    assert federation.over
    result = federation.round.result
    assert result is not None
    assert result.outcome is Outcome.APPLIED
    assert result.report.failed == result.report.missed == frozenset(), "the sixth silo was not waited for"
    assert result.report.complete == set(federation.silos)


def test_shares_that_do_not_match_their_hash_are_dropped_and_noted() -> None:
    federation = Federation.of(9, parameters=100)
    federation.until(Phase.REVEAL)
    liar = federation.members[0]
    notes = federation.round.receive(garbage_shares(federation, liar))
    dealers = sorted(federation.silos)
    text = f"{liar.name} has no matching share of {', '.join(dealers[:8])} and 1 more"
    assert notes == [Noted("share", text, liar.name)], "one line, however many"
    for silo in federation.members[1:7]:
        federation.reveal(silo)
    assert federation.round.phase is Phase.REVEAL, "the liar's shares count for nobody"
    federation.reveal(federation.members[7])
    assert federation.round.result is not None
    assert federation.round.result.outcome is Outcome.APPLIED


def test_an_empty_reveal_is_a_reveal() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    empty = message_of(federation, federation.members[0], Reveal)
    assert len(federation.round.receive(empty)) == 1, "the line that says so"
    assert_ignored(federation.round, empty)


def test_the_round_ends_when_everyone_has_revealed_even_if_it_is_too_little() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    for silo in federation.members:
        if not federation.over:
            federation.effects += federation.round.receive(garbage_shares(federation, silo))
    result = federation.round.result
    assert result is not None
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "0 buffers could be opened, 1 are needed")
    assert set(result.discarded) == {0, 1, 2}


def test_at_the_deadline_those_who_submitted_and_did_not_reveal_are_named() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    for silo in federation.members[:4]:
        federation.reveal(silo)
    federation.deadline()
    result = federation.round.result
    assert result is not None
    assert result.outcome is Outcome.SKIPPED
    assert result.discarded[0].startswith("4 matching shares of silo-")
    assert result.report.missed == {silo.name for silo in federation.members[4:]}
    assert result.report.failed == frozenset()
    assert result.report.complete == {silo.name for silo in federation.members[:4]}


def test_a_holder_that_abstained_is_not_blamed_for_not_revealing() -> None:
    federation = revealing(abstains=True)
    federation.deadline()
    assert federation.round.result is not None
    submitted = {silo.name for silo in federation.members if silo.submitted}
    assert federation.round.result.report.missed == submitted | {dropped(federation).name}
    assert federation.round.result.report.failed == frozenset()


def test_an_abort_blames_nobody_for_what_it_did_not_wait_for() -> None:
    federation = Federation.of(6)
    federation.until(Phase.REVEAL)
    federation.reveal(federation.members[0])
    effects = federation.round.receive(abort("shutdown"))
    result = federation.round.result
    assert result is not None
    assert effects == [RoundEnded(result)]
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "shutdown")
    assert result.report.failed == result.report.missed == frozenset()
    assert result.survivors is not None
    assert len(result.confirmations) == 6
