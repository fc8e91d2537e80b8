"""CONFIRM on the server: who vouches for the survivors, and how many must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedrep.errors import ConflictError, CryptoError, FedrepError, OutOfPhaseError, UnknownSiloError, WrongRoundError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    Confirmation,
    DeadlinePassed,
    Outcome,
    Phase,
    Reveal,
    SurvivorSet,
    confirmation_message,
    submission_message,
)
from fedrep.protocol.round_effects import PhaseStarted, RoundEnded
from tests.protocol.federation import Federation, Silo
from tests.protocol.lying_server import submitted_of
from tests.protocol.refusal import abort, assert_ignored, assert_refused, but, message_of, other_deadlines
from tests.protocol.test_propose import proposal_of

Waiting = tuple[Federation, Silo, Confirmation]
Change = Callable[[Federation, Silo, Confirmation], Confirmation]


@pytest.fixture(scope="module")
def waiting() -> Waiting:
    """Six silos (threshold 5): one did not submit, two have confirmed, the last holds an honest confirmation."""
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    for silo in federation.members[1:]:
        federation.submit(silo)
    federation.deadline()
    for silo in federation.members[1:3]:
        federation.confirm(silo)
    last = federation.members[-1]
    assert last.submitted is not None
    return federation, last, last.submitted.on_survivors(federation.round.survivors()).message


def over(change: Callable[[SurvivorSet], SurvivorSet]) -> Change:
    def forge(federation: Federation, silo: Silo, confirmation: Confirmation) -> Confirmation:
        message = confirmation_message(federation.round._c2, change(federation.round.survivors()))
        return replace(confirmation, signature=silo.signing_key.sign(message))

    return forge


def over_another_consensus(federation: Federation, silo: Silo, confirmation: Confirmation) -> Confirmation:
    message = confirmation_message(bytes(32), federation.round.survivors())
    return replace(confirmation, signature=silo.signing_key.sign(message))


def of_another(federation: Federation, _silo: Silo, confirmation: Confirmation) -> Confirmation:
    return replace(confirmation, signature=federation.round.confirmations()[0][1])


def a_submission_signature(federation: Federation, silo: Silo, confirmation: Confirmation) -> Confirmation:
    """Every signature carries its type: one message does not pass for another."""
    return replace(confirmation, signature=silo.signing_key.sign(submission_message(federation.round._c2, silo.name)))


BAD_CONFIRMATIONS: dict[str, tuple[Change, type[FedrepError], str]] = {
    "unknown silo": (but(silo=SiloName("nobody")), UnknownSiloError, "UNKNOWN_SILO"),
    "another run": (but(run=RunHash(bytes(32))), WrongRoundError, "WRONG_RUN"),
    "older round": (but(round=lambda c: c.round - 1), WrongRoundError, "WRONG_ROUND"),
    "unsigned": (but(signature=b""), CryptoError, "BAD_SIGNATURE"),
    "signature of another": (
        of_another,
        CryptoError,
        "BAD_SIGNATURE",
    ),
    "fewer survivors": (over(lambda u: SurvivorSet((u.buffers[0][1:], *u.buffers[1:]))), CryptoError, "BAD_SIGNATURE"),
    "buffers swapped": (over(lambda u: SurvivorSet(u.buffers[::-1])), CryptoError, "BAD_SIGNATURE"),
    "another consensus": (over_another_consensus, CryptoError, "BAD_SIGNATURE"),
    "its submission's signature": (a_submission_signature, CryptoError, "BAD_SIGNATURE"),
}


@pytest.mark.parametrize("case", BAD_CONFIRMATIONS)
def test_a_bad_confirmation_is_refused_and_changes_nothing(case: str, waiting: Waiting) -> None:
    federation, silo, confirmation = waiting
    change, error, reason = BAD_CONFIRMATIONS[case]
    assert_refused(federation.round, change(federation, silo, confirmation), error, reason)


def test_a_late_submission_after_the_set_closed_is_refused(waiting: Waiting) -> None:
    federation = waiting[0]
    late = federation.members[0]
    assert late.proposed is not None
    submitted = submitted_of(late.proposed, federation.round.consensus_for(late.name), late)
    assert_refused(federation.round, submitted.message, OutOfPhaseError, "OUT_OF_PHASE")


def test_a_reveal_is_refused_while_too_few_have_confirmed(waiting: Waiting) -> None:
    federation, silo, _ = waiting
    assert_refused(federation.round, message_of(federation, silo, Reveal), OutOfPhaseError, "OUT_OF_PHASE")


@pytest.mark.parametrize("event", other_deadlines(Phase.CONFIRM))
def test_the_deadline_of_another_phase_changes_nothing(event: DeadlinePassed, waiting: Waiting) -> None:
    assert_ignored(waiting[0].round, event)


def test_identical_messages_are_accepted_again_and_conflicting_ones_refused(waiting: Waiting) -> None:
    federation = waiting[0]
    sender = federation.members[1]
    assert sender.proposed is not None
    assert sender.submitted is not None
    assert sender.confirmed is not None
    assert_ignored(federation.round, sender.proposed.message)
    assert_ignored(federation.round, sender.submitted.message)
    assert_ignored(federation.round, sender.confirmed.message)
    assert_refused(federation.round, proposal_of(federation, sender, seed=9), ConflictError, "CONFLICT")
    assert_refused(federation.round, replace(sender.submitted.message, masked=b"other"), ConflictError, "CONFLICT")
    assert_refused(federation.round, replace(sender.confirmed.message, signature=b"other"), ConflictError, "CONFLICT")


def test_t_confirmations_open_the_reveal_and_later_ones_are_kept() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    assert federation.manifest is not None
    t = federation.manifest.threshold
    assert t == 5
    federation.effects.clear()
    for silo in federation.members[: t - 1]:
        federation.confirm(silo)
    assert (federation.round.phase, federation.effects) == (Phase.CONFIRM, [])
    federation.confirm(federation.members[t - 1])
    assert (federation.round.phase, federation.effects) == (Phase.REVEAL, [PhaseStarted(Phase.REVEAL)])
    federation.confirm(federation.members[t])
    assert len(federation.round.confirmations()) == 6
    assert federation.effects == [PhaseStarted(Phase.REVEAL)]


def test_a_holder_that_did_not_propose_confirms_too() -> None:
    federation = Federation.of(6, quorum=5)
    federation.open_round()
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    for silo in federation.members[1:]:
        federation.submit(silo)
    holder = federation.members[0]
    federation.observe(holder)
    federation.confirm(holder)
    assert [name for name, _ in federation.round.confirmations()] == [holder.name]


def test_one_confirmation_below_the_threshold_skips_the_round_and_keeps_the_signatures() -> None:
    federation = Federation.of(6)
    federation.until(Phase.CONFIRM)
    for silo in federation.members[:4]:
        federation.confirm(silo)
    federation.effects.clear()
    federation.deadline()
    reason = "4 holders confirmed the survivors, 5 are needed"
    result = federation.round.result
    assert result is not None
    assert federation.effects == [RoundEnded(result)]
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, reason)
    assert result.survivors == federation.round.survivors()
    assert len(result.confirmations) == 4
    assert result.report.failed == result.report.missed == frozenset()


def test_too_few_buffers_above_min_survivors_skip_the_round_with_signatures_on_u() -> None:
    """One silo of each of the two buffers vanishes: t holders sign U, and nothing is ever revealed."""
    federation = Federation.of(10, buffer_size=5, quorum=10, min_survivors=5, colluders=1)
    federation.until(Phase.SUBMIT)
    gone = [buffer[0] for buffer in federation.by_buffer()]
    alive = [silo for silo in federation.members if silo not in gone]
    for silo in alive:
        federation.submit(silo)
    federation.deadline()
    for silo in alive:
        if federation.round.phase is Phase.CONFIRM:
            federation.confirm(silo)
    result = federation.round.result
    assert result is not None
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "fewer than 1 buffers kept 5 survivors")
    assert len(result.confirmations) == 7
    assert result.discarded == {0: "4 survivors, fewer than 5", 1: "4 survivors, fewer than 5"}
    assert result.report.missed == {silo.name for silo in gone}
    assert result.report.failed == frozenset(), "they may come back at once"


def test_with_attackers_two_good_buffers_are_not_enough_to_reveal() -> None:
    """o_min = 3 when f = 1: four buffers of three, two of them cut down to one below min_survivors."""
    federation = Federation.of(
        13, buffer_size=3, byzantine=1, aggregator="median", min_survivors=3, colluders=1, quorum=13, parameters=80
    )
    federation.until(Phase.SUBMIT)
    gone = [buffer[0] for buffer in federation.by_buffer()[-2:]]
    alive = [silo for silo in federation.members if silo not in gone]
    for silo in alive:
        federation.submit(silo)
    federation.deadline()
    for silo in alive:
        if federation.round.phase is Phase.CONFIRM:
            federation.confirm(silo)
    assert federation.round.result is not None
    assert federation.round.result.reason == "fewer than 3 buffers kept 3 survivors"


def test_an_abort_blames_those_who_did_not_submit_and_nobody_else() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    for silo in federation.members[1:]:
        federation.submit(silo)
    federation.deadline()
    effects = federation.round.receive(abort("shutdown"))
    result = federation.round.result
    assert result is not None
    assert effects == [RoundEnded(result)]
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "shutdown")
    assert result.report.missed == {federation.members[0].name}
    assert result.report.failed == frozenset()
    assert result.survivors is not None
