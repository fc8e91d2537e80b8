"""DONE on the server: the outcome stands, whatever still arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrep.errors import ConflictError, CryptoError, FedrepError, OutOfPhaseError, UnknownSiloError, WrongRoundError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    Confirmation,
    DeadlinePassed,
    Outcome,
    Phase,
    Proposal,
    Reveal,
    Statement,
    Submission,
    statement_message,
)
from fedrep.protocol.server_rules import check_statement
from tests.protocol.federation import Federation
from tests.protocol.refusal import abort, assert_ignored, assert_refused, message_of
from tests.protocol.test_propose import proposal_of


@pytest.fixture(scope="module")
def finished() -> Federation:
    """Seven silos of which the first did nothing; the last confirmed late and its reveal was not waited for."""
    federation = Federation.of(7, quorum=6)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    for silo in federation.members[1:]:
        federation.submit(silo)
    for silo in federation.members[1:]:
        federation.confirm(silo)
    for silo in federation.members[1:]:
        federation.reveal(silo)
    assert federation.over
    assert federation.round.result is not None
    assert federation.round.result.outcome is Outcome.APPLIED
    return federation


def test_identical_messages_of_every_kind_are_accepted_again(finished: Federation) -> None:
    sender = finished.members[1]
    assert sender.proposed is not None
    assert sender.submitted is not None
    assert sender.confirmed is not None
    assert sender.revealed is not None
    for step in (sender.proposed, sender.submitted, sender.confirmed, sender.revealed):
        assert_ignored(finished.round, step.message)


def test_conflicting_messages_of_every_kind_are_refused(finished: Federation) -> None:
    sender = finished.members[1]
    assert sender.submitted is not None
    assert sender.confirmed is not None
    assert sender.revealed is not None
    for message in (
        proposal_of(finished, sender, seed=3),
        replace(sender.submitted.message, masked=b"other"),
        replace(sender.confirmed.message, signature=b"other"),
        replace(sender.revealed.message, shares=()),
    ):
        assert_refused(finished.round, message, ConflictError, "CONFLICT")


@pytest.mark.parametrize("kind", [Proposal, Submission, Confirmation, Reveal])
def test_a_first_message_after_the_end_is_refused(kind: type, finished: Federation) -> None:
    late = message_of(finished, finished.members[0], kind)
    assert_refused(finished.round, late, OutOfPhaseError, "OUT_OF_PHASE")


def test_the_reveal_that_was_not_waited_for_is_refused(finished: Federation) -> None:
    late = finished.members[-1]
    assert late.revealed is not None
    assert_refused(finished.round, late.revealed.message, OutOfPhaseError, "OUT_OF_PHASE")


def test_strangers_and_other_rounds_are_told_so(finished: Federation) -> None:
    sender = finished.members[1]
    assert sender.revealed is not None
    stranger = replace(sender.revealed.message, silo=SiloName("nobody"))
    assert_refused(finished.round, stranger, UnknownSiloError, "UNKNOWN_SILO")
    later = replace(sender.revealed.message, round=2)
    assert_refused(finished.round, later, WrongRoundError, "WRONG_ROUND")


@pytest.mark.parametrize("phase", list(Phase))
def test_no_deadline_changes_the_outcome(phase: Phase, finished: Federation) -> None:
    assert_ignored(finished.round, DeadlinePassed(phase))


def test_a_round_that_is_over_cannot_be_aborted(finished: Federation) -> None:
    assert_refused(finished.round, abort(), OutOfPhaseError, "OUT_OF_PHASE")


def test_the_round_keeps_no_sum_and_no_share(finished: Federation) -> None:
    assert finished.round._sums == {}
    assert finished.round._book._shares == {}


def test_a_skipped_round_accepts_resends_too() -> None:
    federation = Federation.of(5)
    federation.open_round()
    sender = federation.members[0]
    federation.propose(sender)
    federation.round.receive(abort())
    assert sender.proposed is not None
    assert_ignored(federation.round, sender.proposed.message)
    with pytest.raises(OutOfPhaseError):
        federation.round.consensus_for(sender.name)


def test_a_statement_is_taken_about_a_round_that_is_over_from_the_silo_who_signed_it(finished: Federation) -> None:
    manifest = finished.round.manifest
    silo = finished.members[0]
    key = silo.signing_key.verify_key
    c1 = manifest.context()
    signature = silo.signing_key.sign(statement_message(manifest.run, manifest.round, c1, silo.name))
    honest = Statement(silo.name, manifest.run, manifest.round, signature, c1)
    check_statement(honest, manifest.run, manifest.round, key)
    other = finished.members[1]
    stale = silo.signing_key.sign(statement_message(manifest.run, manifest.round - 1, c1, silo.name))
    forgeries: list[tuple[Statement, type[FedrepError], str]] = [
        (replace(honest, silo=SiloName("nobody")), CryptoError, "BAD_SIGNATURE"),
        (replace(honest, run=RunHash(bytes(32))), WrongRoundError, "WRONG_RUN"),
        (replace(honest, round=manifest.round + 1), OutOfPhaseError, "OUT_OF_PHASE"),
        (replace(honest, silo=other.name), CryptoError, "BAD_SIGNATURE"),
        (replace(honest, signature=stale), CryptoError, "BAD_SIGNATURE"),
        (replace(honest, signature=b""), CryptoError, "BAD_SIGNATURE"),
        (replace(honest, c1=bytes(32)), CryptoError, "BAD_SIGNATURE"),
    ]
    for forged, error, reason in forgeries:
        with pytest.raises(FedrepError) as caught:
            check_statement(forged, manifest.run, manifest.round, key)
        assert (type(caught.value), caught.value.reason) == (error, reason)
