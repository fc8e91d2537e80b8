"""Dropouts at every stage: up to the threshold the round is applied, one beyond it it is skipped, and never is it wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Outcome, Phase, Update
from fedrep.protocol.preflight import preflight
from fedrep.protocol.thresholds import share_threshold
from tests.protocol.federation import Federation

M = 9
T = share_threshold(M)  # 7: two may be missing


def federation_of_nine(**changes: object) -> Federation:
    """Two buffers of four and five, which open with two survivors: only the thresholds on holders are at stake."""
    settings: dict[str, object] = {"buffer_size": 4, "min_survivors": 2, "colluders": 0, "quorum": T, **changes}
    federation = Federation.of(M, parameters=80, **settings)  # type: ignore[arg-type]
    assert preflight(federation.run) == []
    return federation


def check_sum(federation: Federation, update: Update) -> None:
    """What was applied is the mean of exactly the survivors."""
    result = federation.round.result
    assert result is not None
    assert result.combined is not None
    assert update.evidence.survivors is not None
    sent = [federation.silos[name].submitted for name in update.evidence.survivors.names()]
    values = [submitted.values.dequantized for submitted in sent if submitted is not None]
    assert len(values) == len(sent)
    np.testing.assert_allclose(result.combined.vector, np.mean(values, axis=0), atol=1e-5)


def gone(federation: Federation, count: int, phase: Phase) -> dict[SiloName, Phase]:
    return dict.fromkeys(list(federation.silos)[1 : 1 + count], phase)


@pytest.mark.parametrize("phase", [Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL])
@pytest.mark.parametrize("count", range(M - T + 1))
def test_up_to_the_threshold_silos_may_vanish_before_any_stage(phase: Phase, count: int) -> None:
    federation = federation_of_nine()
    update = federation.play(silent_from=gone(federation, count, phase))
    assert update.outcome is Outcome.APPLIED, update.reason
    assert update.evidence.survivors is not None
    vanished = count if phase in (Phase.PROPOSE, Phase.SUBMIT) else 0
    assert len(update.evidence.survivors.names()) == M - vanished
    check_sum(federation, update)


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (Phase.PROPOSE, "6 holders confirmed the survivors, 7 are needed"),
        (Phase.SUBMIT, "6 holders confirmed the survivors, 7 are needed"),
        (Phase.CONFIRM, "6 holders confirmed the survivors, 7 are needed"),
        (Phase.REVEAL, "0 buffers could be opened, 1 are needed"),
    ],
)
def test_one_beyond_the_threshold_skips_the_round_and_changes_nothing(phase: Phase, reason: str) -> None:
    federation = federation_of_nine()
    before = federation.model
    update = federation.play(silent_from=gone(federation, M - T + 1, phase))
    assert (update.outcome, update.reason) == (Outcome.SKIPPED, reason)
    assert federation.model is before


def test_a_silo_that_confirmed_and_vanished_costs_no_more_than_one_that_never_came() -> None:
    federation = federation_of_nine()
    names = list(federation.silos)
    update = federation.play(silent_from={names[0]: Phase.PROPOSE, names[4]: Phase.REVEAL})
    assert update.outcome is Outcome.APPLIED
    check_sum(federation, update)


def test_buffers_of_two_survive_a_dropout_after_submission() -> None:
    federation = Federation.of(6)
    update = federation.play(silent_from={next(iter(federation.silos)): Phase.CONFIRM})
    assert update.outcome is Outcome.APPLIED
    assert update.evidence.opened == (0, 1, 2)
    check_sum(federation, update)


def test_a_dropout_before_submission_costs_a_buffer_of_two_and_no_other() -> None:
    federation = Federation.of(6, quorum=6)
    lost = next(iter(federation.silos))
    update = federation.play(silent_from={lost: Phase.SUBMIT})
    assert update.outcome is Outcome.APPLIED
    assert len(update.evidence.opened) == 2
    result = federation.round.result
    assert result is not None
    (number,) = set(range(3)) - set(update.evidence.opened)
    assert result.discarded == {number: "1 survivors, fewer than 2"}
    assert result.report.missed == {lost}
    assert result.report.failed == frozenset()


def test_no_secret_of_a_buffer_that_stays_shut_reaches_the_server() -> None:
    federation = Federation.of(6, quorum=6)
    lost = federation.silos[next(iter(federation.silos))]
    federation.play(silent_from={lost.name: Phase.SUBMIT})
    shut = next(buffer for buffer in federation.by_buffer() if lost in buffer)
    for silo in federation.members:
        if silo.revealed is not None:
            assert not {share.dealer for share in silo.revealed.message.shares} & {mate.name for mate in shut}


@pytest.mark.parametrize("survivors", [2, 3, 4, 5])
def test_a_buffer_opens_with_min_survivors_and_not_with_one_less(survivors: int) -> None:
    """One buffer of nine with min_survivors 4: the others stay as holders, so that only the buffer's rule decides."""
    federation = Federation.of(M, parameters=80, buffer_size=5, min_survivors=4, colluders=1, quorum=M)
    federation.until(Phase.SUBMIT)
    for silo in federation.members[:survivors]:
        federation.submit(silo)
    federation.deadline()
    federation.effects.clear()
    for silo in federation.members[:survivors]:
        federation.confirm(silo)
    for silo in federation.members[survivors:]:
        if federation.over:
            break
        federation.submit_in_vain(silo)  # it still holds shares of the others
        federation.confirm(silo)
    for silo in federation.members:
        if not federation.over and silo.confirmed:
            federation.reveal(silo)
    result = federation.round.result
    assert result is not None
    assert (result.outcome is Outcome.APPLIED) is (survivors >= 4), result.reason


@settings(max_examples=15)
@given(data=st.data())
def test_any_pattern_of_dropouts_is_applied_rightly_or_skipped(data: st.DataObject) -> None:
    federation = federation_of_nine()
    phases = st.sampled_from([Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL])
    pattern = data.draw(st.dictionaries(st.sampled_from(list(federation.silos)), phases, max_size=4))
    update = federation.play(silent_from=pattern)
    by_reveal, by_confirm = M - len(pattern), M - sum(phase is not Phase.REVEAL for phase in pattern.values())
    assert (update.outcome is Outcome.APPLIED) == (min(by_reveal, by_confirm) >= T)
    if update.outcome is Outcome.APPLIED:
        check_sum(federation, update)


def test_rounds_go_on_after_a_skipped_one_with_fresh_secrets() -> None:
    federation = federation_of_nine()
    assert federation.play(silent_from=gone(federation, 3, Phase.CONFIRM)).outcome is Outcome.SKIPPED
    update = federation.play()
    assert update.outcome is Outcome.APPLIED
    assert (update.round, update.model.version) == (2, 1)
    check_sum(federation, update)
