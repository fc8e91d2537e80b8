"""SUBMIT on the server: what a submission must be, and how the survivors are fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedrep.errors import (
    ConflictError,
    CryptoError,
    DecodeError,
    FedrepError,
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
    consensus_context,
    submission_message,
)
from fedrep.protocol.round_effects import Noted, PhaseStarted, RoundEnded
from tests.protocol.federation import Federation, Silo
from tests.protocol.lying_server import submitted_of
from tests.protocol.refusal import abort, assert_ignored, assert_refused, but, message_of, other_deadlines
from tests.protocol.test_propose import proposal_of

Waiting = tuple[Federation, Silo, Submission]
Change = Callable[[Federation, Silo, Submission], Submission]


@pytest.fixture(scope="module")
def waiting() -> Waiting:
    """One silo did not propose, two have submitted; the last one holds an honest submission it has yet to send."""
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    for silo in federation.members[1:3]:
        federation.submit(silo)
    last = federation.members[-1]
    assert last.proposed is not None
    submitted = submitted_of(last.proposed, federation.round.consensus_for(last.name), last)
    return federation, last, submitted.message


def signed_by_another(federation: Federation, silo: Silo, submission: Submission) -> Submission:
    message = submission_message(federation.round._c2, silo.name)
    return replace(submission, signature=federation.members[1].signing_key.sign(message))


def signed_over_another_consensus(federation: Federation, silo: Silo, submission: Submission) -> Submission:
    seen = federation.round.consensus_for(silo.name)
    other = consensus_context(federation.round.c1, seen.coordinates, seen.assignment[::-1])
    return replace(submission, signature=silo.signing_key.sign(submission_message(other, silo.name)))


def with_anothers_values(federation: Federation, silo: Silo, submission: Submission) -> Submission:
    other = federation.members[1]
    assert other.submitted is not None
    return replace(other.submitted.message, silo=silo.name)


BAD_SUBMISSIONS: dict[str, tuple[Change, type[FedrepError], str]] = {
    "unknown silo": (but(silo=SiloName("nobody")), UnknownSiloError, "UNKNOWN_SILO"),
    "another run": (but(run=RunHash(bytes(32))), WrongRoundError, "WRONG_RUN"),
    "older round": (but(round=lambda y: y.round - 1), WrongRoundError, "WRONG_ROUND"),
    "one value short": (but(masked=lambda y: y.masked[:-2]), DecodeError, "MALFORMED"),
    "half a value": (but(masked=lambda y: y.masked[:-1]), DecodeError, "MALFORMED"),
    "oversized": (but(masked=lambda y: bytes(y.masked) * 1000), DecodeError, "MALFORMED"),
    "one value more": (but(masked=lambda y: bytes(y.masked) + b"\0\0"), DecodeError, "MALFORMED"),
    "empty": (but(masked=b""), DecodeError, "MALFORMED"),
    "unsigned": (but(signature=b""), CryptoError, "BAD_SIGNATURE"),
    "signed by another": (signed_by_another, CryptoError, "BAD_SIGNATURE"),
    "signed over another consensus": (signed_over_another_consensus, CryptoError, "BAD_SIGNATURE"),
    "the message of a mate": (with_anothers_values, CryptoError, "BAD_SIGNATURE"),
}


@pytest.mark.parametrize("case", BAD_SUBMISSIONS)
def test_a_bad_submission_is_refused_and_changes_nothing(case: str, waiting: Waiting) -> None:
    federation, silo, submission = waiting
    change, error, reason = BAD_SUBMISSIONS[case]
    assert_refused(federation.round, change(federation, silo, submission), error, reason)


def test_a_silo_that_did_not_propose_has_no_buffer_to_submit_to(waiting: Waiting) -> None:
    federation, _, submission = waiting
    outsider = federation.members[0]
    signature = outsider.signing_key.sign(submission_message(federation.round._c2, outsider.name))
    forged = replace(submission, silo=outsider.name, signature=signature)
    assert_refused(federation.round, forged, OutOfPhaseError, "NOT_ASSIGNED")


@pytest.mark.parametrize("kind", [Confirmation, Reveal])
def test_a_message_of_a_later_phase_is_refused(kind: type, waiting: Waiting) -> None:
    federation, silo, _ = waiting
    assert_refused(federation.round, message_of(federation, silo, kind), OutOfPhaseError, "OUT_OF_PHASE")


def test_a_late_proposal_is_refused_and_changes_nothing(waiting: Waiting) -> None:
    federation = waiting[0]
    late = proposal_of(federation, federation.members[0])
    assert_refused(federation.round, late, OutOfPhaseError, "OUT_OF_PHASE")


@pytest.mark.parametrize("event", other_deadlines(Phase.SUBMIT))
def test_the_deadline_of_another_phase_changes_nothing(event: DeadlinePassed, waiting: Waiting) -> None:
    assert_ignored(waiting[0].round, event)


def test_an_identical_proposal_is_still_accepted_and_a_conflicting_one_refused(waiting: Waiting) -> None:
    federation, silo, _ = waiting
    assert silo.proposed is not None
    assert_ignored(federation.round, silo.proposed.message)
    assert_refused(federation.round, proposal_of(federation, silo, seed=9), ConflictError, "CONFLICT")


def test_an_identical_submission_is_accepted_again_and_not_added_twice(waiting: Waiting) -> None:
    federation = waiting[0]
    sender = federation.members[1]
    assert sender.submitted is not None
    message = sender.submitted.message
    assert_ignored(federation.round, message)
    flipped = bytes([message.masked[0] ^ 1]) + bytes(message.masked[1:])
    assert_refused(federation.round, replace(message, masked=flipped), ConflictError, "CONFLICT")
    assert_refused(federation.round, replace(message, signature=b"other"), ConflictError, "CONFLICT")


def test_the_survivors_are_not_fixed_before_the_phase_ends(waiting: Waiting) -> None:
    with pytest.raises(OutOfPhaseError):
        waiting[0].round.survivors()


def test_the_last_submission_fixes_the_survivors() -> None:
    federation = Federation.of(5)
    federation.until(Phase.SUBMIT)
    federation.effects.clear()
    for silo in federation.members:
        assert federation.effects == []
        federation.submit(silo)
    assert federation.effects == [PhaseStarted(Phase.CONFIRM)]
    assert federation.round.survivors().names() == set(federation.silos)


def test_at_the_deadline_the_survivors_are_those_whose_submission_was_accepted() -> None:
    federation = Federation.of(5)
    federation.until(Phase.SUBMIT)
    federation.effects.clear()
    gone = federation.members[2]
    for silo in federation.members:
        if silo is not gone:
            federation.submit(silo)
    federation.deadline()
    assert federation.effects == [
        Noted("dropped", f"{gone.name} proposed but did not submit", gone.name),
        PhaseStarted(Phase.CONFIRM),
    ]
    survivors = federation.round.survivors()
    assert survivors.names() == set(federation.silos) - {gone.name}
    signatures = {silo.name: silo.submitted.message.signature for silo in federation.members if silo.submitted}
    assert {s.silo: s.signature for buffer in survivors.buffers for s in buffer} == signatures
    for places, alive in zip(federation.by_buffer(), survivors.buffers, strict=True):
        assert [s.silo for s in alive] == [silo.name for silo in places if silo is not gone]


def test_nobody_submits_and_the_silos_still_sign_that_nobody_did() -> None:
    """Those signatures are what lets silos take their values back."""
    federation = Federation.of(5)
    federation.until(Phase.SUBMIT)
    federation.deadline()
    assert federation.round.phase is Phase.CONFIRM
    assert federation.round.survivors().names() == frozenset()


def test_an_abort_skips_the_round_and_blames_nobody() -> None:
    federation = Federation.of(5)
    server = federation.until(Phase.SUBMIT)
    federation.submit(federation.members[0])
    effects = server.receive(abort("shutdown"))
    assert server.result is not None
    assert effects == [RoundEnded(server.result)]
    assert (server.result.outcome, server.result.reason) == (Outcome.SKIPPED, "shutdown")
    assert server.result.survivors is None
    assert server.result.report.failed == frozenset()


def test_the_server_keeps_sums_and_no_single_submission() -> None:
    federation = Federation.of(6)
    server = federation.until(Phase.CONFIRM)
    assert len(server._sums) == 3
    size = server._consensus.size
    for number, buffer in enumerate(federation.by_buffer()):
        assert server._sums[number].size == size
        for silo in buffer:
            assert silo.submitted is not None
            assert silo.submitted.message.masked != server._sums[number].tobytes()
    kept = [value for value in vars(server).values() if isinstance(value, dict)]
    assert not any(isinstance(item, Submission) for values in kept for item in values.values())


def test_a_proposal_from_a_silo_outside_the_roster_is_refused_in_every_phase() -> None:
    federation = Federation.of(6)
    names = list(federation.silos)
    federation.open_round(names[:5])
    stranger = message_of(federation, federation.silos[names[5]], Proposal)
    for _ in range(2):
        assert_refused(federation.round, stranger, UnknownSiloError, "UNKNOWN_SILO")
        if federation.round.phase is Phase.PROPOSE:
            for silo in federation.members:
                federation.propose(silo)
    assert federation.round.phase is Phase.SUBMIT
