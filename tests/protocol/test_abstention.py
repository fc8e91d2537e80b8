"""A silo that says it proposes nothing: it is not waited for and not penalised, and stays a holder with a next session key."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.errors import (
    ConflictError,
    CryptoError,
    FedrepError,
    OutOfPhaseError,
    RefusedError,
    UnknownSiloError,
    WrongRoundError,
)
from fedrep.protocol.attendance import MISSES_IN_A_ROW, Attendance
from fedrep.protocol.manifests import RunHash, SiloName, session_key_message
from fedrep.protocol.messages import Abstention, Outcome, Phase, Proposal
from fedrep.protocol.round_effects import PhaseStarted, RoundEnded
from fedrep.protocol.seats import seats
from fedrep.protocol.silo_effects import (
    Accepted,
    FailedTraining,
    GetConsensus,
    Moment,
    Problem,
    Report,
    Trained,
    TrainingFailed,
    TrainingRefused,
)
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_rules import Policy
from fedrep.protocol.silo_table import Phase as SiloPhase
from fedrep.secagg.keys import AgreementKey
from tests.protocol.federation import Federation, NoLedgers, Silo
from tests.protocol.refusal import assert_ignored, assert_refused, but
from tests.protocol.test_propose import proposal_of


def abstaining(federation: Federation, silo: Silo) -> Abstention:
    """What this silo would say, without its machine."""
    assert silo.ready is not None
    return silo.ready.abstain(AgreementKey.generate())


def test_an_abstention_is_not_waited_for() -> None:
    federation = Federation.of(7)
    federation.open_round()
    quiet, *others = federation.members
    for silo in others:
        federation.propose(silo)
    assert federation.effects == []
    federation.abstain(quiet)
    assert federation.effects == [PhaseStarted(Phase.SUBMIT)], "nobody is late, and no deadline had to pass"
    assert quiet.name not in {silo.name for buffer in federation.by_buffer() for silo in buffer}
    assert quiet.player.waits_for(GetConsensus)


def test_a_round_in_which_everybody_abstains_ends_at_once_and_blames_nobody() -> None:
    federation = Federation.of(5)
    federation.open_round()
    for silo in federation.members:
        federation.abstain(silo)
    result = federation.round.result
    assert result is not None
    assert federation.effects == [RoundEnded(result)]
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "0 silos proposed: fewer than 1 buffers have 2 of them")
    assert result.report.missed == result.report.failed == frozenset()
    assert result.report.answered == set(federation.silos)


def test_a_silo_that_abstains_confirms_and_reveals() -> None:
    federation = Federation.of(7)
    federation.open_round()
    quiet = federation.silos[max(seats(federation.run, 1), key=len)[0]]
    for silo in federation.members:
        (federation.abstain if silo is quiet else federation.propose)(silo)
    for silo in federation.members:
        federation.submit(silo)
    assert quiet.observing is not None
    for silo in (quiet, *(silo for silo in federation.members if silo is not quiet)):
        federation.confirm(silo)
    federation.reveal(quiet)
    assert quiet.revealed is not None
    assert len(quiet.revealed.message.shares) == 6
    federation.finish_reveals()
    assert federation.finish().outcome is Outcome.APPLIED
    assert quiet.memory.pending is None


def test_the_next_roster_lists_the_key_that_came_with_the_abstention_and_no_penalty() -> None:
    federation = Federation.of(5)
    attendance = Attendance()
    quiet = federation.silos[federation.run.silos[2]]
    for number in range(1, MISSES_IN_A_ROW + 3):
        manifest = federation.open_round()
        if number == 1:
            for entry in manifest.roster:
                attendance = attendance.join(entry, 0)
        assert manifest.entry(quiet.name) in attendance.roster(number), "the key it holds is the one that is listed"
        for silo in federation.members:
            (federation.abstain if silo is quiet else federation.propose)(silo)
        federation.deadline()
        federation.deadline()
        assert federation.round.result is not None
        attendance = attendance.after_round(number, federation.round.result.report)
        federation.finish()
        standing = attendance.standings[quiet.name]
        assert standing.entry.session_key != manifest.roster[2].session_key
        assert (standing.misses, standing.strikes, standing.present) == (0, 0, True)


@pytest.fixture(scope="module")
def waiting() -> tuple[Federation, Silo, Abstention]:
    """Five silos: the first has abstained, the second proposed, the last is about to abstain."""
    federation = Federation.of(5)
    federation.open_round()
    first, second, *_, last = federation.members
    federation.abstain(first)
    federation.propose(second)
    return federation, last, abstaining(federation, last)


def low_order(federation: Federation, silo: Silo, abstention: Abstention) -> Abstention:
    key = bytes(32)
    signature = silo.signing_key.sign(session_key_message(federation.run.digest(), key))
    return replace(abstention, next_session_key=key, next_session_signature=signature)


def for_another_run(_: Federation, silo: Silo, abstention: Abstention) -> Abstention:
    signature = silo.signing_key.sign(session_key_message(b"another", abstention.next_session_key))
    return replace(abstention, next_session_signature=signature)


Change = Callable[[Federation, Silo, Abstention], Abstention]
BAD_ABSTENTIONS: dict[str, tuple[Change, type[FedrepError], str]] = {
    "unknown silo": (but(silo=SiloName("nobody")), UnknownSiloError, "UNKNOWN_SILO"),
    "another run": (but(run=RunHash(bytes(32))), WrongRoundError, "WRONG_RUN"),
    "older round": (but(round=0), WrongRoundError, "WRONG_ROUND"),
    "unsigned": (but(next_session_signature=b""), CryptoError, "BAD_SIGNATURE"),
    "key signed for another run": (for_another_run, CryptoError, "BAD_SIGNATURE"),
    "under another name": (but(silo=SiloName("silo-02")), CryptoError, "BAD_SIGNATURE"),
    "a key of low order": (low_order, CryptoError, "BAD_CRYPTOGRAPHY"),
}


@pytest.mark.parametrize("case", BAD_ABSTENTIONS)
def test_a_bad_abstention_is_refused_and_changes_nothing(case: str, waiting: tuple[Federation, Silo, Abstention]) -> None:
    federation, silo, honest = waiting
    change, error, reason = BAD_ABSTENTIONS[case]
    assert_refused(federation.round, change(federation, silo, honest), error, reason)


def test_the_same_abstention_is_accepted_again_and_another_word_refused(waiting: tuple[Federation, Silo, Abstention]) -> None:
    federation, _, _ = waiting
    first, second = federation.members[:2]
    said = next(message for message in first.player.wire if isinstance(message, Abstention))
    assert_ignored(federation.round, said)
    other = replace(said, next_session_signature=b"other")
    assert_refused(federation.round, other, ConflictError, "CONFLICT")
    assert_refused(federation.round, proposal_of(federation, first, seed=4), ConflictError, "CONFLICT")
    assert_refused(federation.round, abstaining(federation, second), ConflictError, "CONFLICT")


@pytest.mark.parametrize("phase", [Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL, Phase.DONE])
def test_an_abstention_in_another_phase_is_refused_and_an_identical_one_is_not(phase: Phase) -> None:
    federation = Federation.of(7)
    federation.open_round()
    quiet, late, *others = federation.members
    federation.abstain(quiet)
    for silo in others:
        federation.propose(silo)
    federation.deadline()
    for _ in range([Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL, Phase.DONE].index(phase)):
        for silo in others:
            if federation.round.phase is Phase.SUBMIT:
                federation.submit(silo)
        for silo in others:
            if federation.round.phase is Phase.CONFIRM and phase is not Phase.CONFIRM:
                federation.confirm(silo)
        if phase is Phase.DONE and not federation.over:
            federation.deadline()
    assert federation.round.phase is phase
    assert_refused(federation.round, abstaining(federation, late), OutOfPhaseError, "OUT_OF_PHASE")
    said = next(message for message in quiet.player.wire if isinstance(message, Abstention))
    assert_ignored(federation.round, said)


def spoke(silo: Silo) -> list[type]:
    return [type(message) for message in silo.player.wire if isinstance(message, Proposal | Abstention)]


def test_a_silo_whose_budget_is_spent_abstains_says_so_and_leaves_after_the_round() -> None:
    federation = Federation.of(5)
    federation.policy = Policy(epsilon_budget=1e-3)
    silo = Silo(federation, federation.run.silos[0], federation.silos[federation.run.silos[0]].signing_key, federation.rng)
    federation.silos[silo.name] = silo
    silo.player.start()
    federation.answer_join(silo, None)
    manifest = federation.new_round()
    for each in federation.members:
        if each is not silo:
            federation.announce(each)
    with pytest.raises(FedrepError) as caught:
        federation.announce(silo)
    assert caught.value.reason == "EPSILON_BUDGET"
    assert spoke(silo) == [Abstention]
    assert silo.player.train is None
    assert silo.machine.state.journal.last_round == manifest.round, "on disk before it spoke"
    assert silo.machine.state.journal.ledger.rounds == 0
    federation.round.receive(silo.said(Abstention))
    for each in federation.members[1:]:
        federation.propose(each)
    assert federation.round.phase is Phase.SUBMIT
    federation.deadline()
    federation.deadline()
    federation.finish()
    assert silo.machine.phase is SiloPhase.ENDED
    assert silo.player.stopped is not None
    assert silo.player.stopped.error is caught.value
    assert silo.player.stopped.polite


def test_what_another_run_spends_while_this_one_trains_counts() -> None:
    federation = Federation.of(5)
    silo = federation.silos[federation.run.silos[0]]
    spent = [0.0]

    class Elsewhere(NoLedgers):
        def elsewhere(self, _run: str) -> float | None:
            return spent[0]

    silo.machine._own = replace(silo.machine._own, policy=Policy(epsilon_budget=100.0), ledgers=Elsewhere())
    federation.open_round()
    assert silo.player.train is not None, "there is enough when it begins"
    spent[0] = 99.9
    federation.train(silo)
    assert [news.error.reason for news in silo.player.news if isinstance(news, Problem)] == ["EPSILON_BUDGET"]
    assert spoke(silo) == [Abstention]
    assert silo.machine.state.journal.ledger.rounds == 0


@pytest.mark.parametrize(("hours", "speech"), [((22, 6), Proposal), ((6, 22), Abstention)])
def test_outside_its_hours_a_silo_abstains(hours: tuple[int, int], speech: type) -> None:
    federation = Federation.of(5)
    silo = federation.silos[federation.run.silos[0]]
    silo.machine._own = replace(silo.machine._own, policy=Policy(hours=hours))
    federation.new_round()
    federation.announce(silo)  # at midnight
    federation.train(silo)
    assert spoke(silo) == [speech]


def test_a_silo_whose_training_fails_abstains_and_tries_again_in_the_next_round() -> None:
    federation = Federation.of(5)
    silo = federation.silos[federation.run.silos[0]]
    for number in range(1, 5):
        federation.open_round()
        assert silo.player.train is not None
        federation.abstain(silo)
        federation.deadline()
        federation.finish()
        assert spoke(silo) == [Abstention] * number
        assert silo.player.stopped is None
    federation.open_round()
    assert federation.manifest is not None
    effects = SiloMachine.receive(copy(silo.machine), TrainingFailed(federation.model.state.version, "no data"), Moment())
    assert Report(FailedTraining(federation.manifest, "no data")) in effects, "its operator hears of it"
    federation.abstain(silo)
    federation.deadline()
    federation.finish()
    assert silo.player.stopped is not None
    assert "training failed 5 times in a row" in str(silo.player.stopped.error)


def test_a_silo_that_may_train_no_more_holds_shares_once_and_leaves() -> None:
    federation = Federation.of(5)
    silo = federation.silos[federation.run.silos[0]]
    federation.open_round()
    train = silo.player.train
    assert train is not None
    assert (train.run, train.trainings) == (silo.machine.state.journal.ledger_name, federation.run.rounds)
    late = Federation.of(5)
    late.round_number = late.run.rounds - 1
    late.open_round()
    told = late.silos[silo.name].player.train
    assert told is not None
    assert (told.round, told.trainings) == (late.run.rounds, train.trainings), "the server's number decides nothing about noise"
    spent = RefusedError("no further training fits", reason="RECORD_BUDGET")
    silo.player.feed(TrainingRefused(train.model.version, spent))
    assert spoke(silo) == [Abstention]
    federation.round.receive(silo.said(Abstention))
    silo.answer(Abstention, Accepted())
    federation.deadline()
    federation.finish()
    assert silo.player.stopped is not None
    assert silo.player.stopped.error is spent
    assert silo.player.stopped.polite


def test_a_refusal_that_comes_after_its_round_still_stops_the_silo_in_the_next() -> None:
    federation = Federation.of(5)
    silo = federation.silos[federation.run.silos[0]]
    silo.machine._finished = TrainingRefused(0, RefusedError("no further training fits", reason="RECORD_BUDGET"))
    with pytest.raises(RefusedError, match="no further training fits"):
        federation.open_round()
    assert silo.player.train is None
    assert spoke(silo) == [Abstention]


@pytest.mark.parametrize(
    "update", [np.full(64, np.nan), np.array([np.inf, -np.inf, *np.zeros(62)]), np.zeros(63), np.zeros((64, 1))]
)
def test_a_training_that_gives_no_vector_of_numbers_counts_as_failed(update: NDArray[np.float64]) -> None:
    federation = Federation.of(5)
    federation.open_round()
    silo = federation.members[0]
    silo.player.feed(Trained(0, update.astype(np.float32), {}))
    assert any(isinstance(news, FailedTraining) for news in silo.player.news)
    assert spoke(silo) == [Abstention]
    assert silo.machine._contribution is None
    federation.round.receive(silo.said(Abstention))


def test_a_silo_that_abstains_pays_nothing_and_keeps_its_memory() -> None:
    federation = Federation.of(5)
    federation.play()
    silo = federation.silos[federation.run.silos[0]]
    residual, ledger = silo.memory.residual.copy(), silo.machine.state.journal.ledger
    federation.open_round()
    federation.abstain(silo)
    assert silo.machine.state.journal.ledger is ledger
    assert silo.memory.pending is None
    np.testing.assert_array_equal(silo.memory.residual, residual)
    assert not any(isinstance(news, Problem) for news in silo.player.news)
