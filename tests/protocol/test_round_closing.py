"""What a finished round changes: model, attendance, range, whom it charges, and the update everyone hears."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.privacy import coordinate_epsilon
from fedrep.protocol.clip_range import RangeBits
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Outcome, Phase, Statement
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.round_closing import ClosedRound, Fate, close_round, skip_after_restart, with_statements
from fedrep.protocol.round_effects import RoundResult
from fedrep.protocol.run_progress import RunProgress
from fedrep.protocol.seats import seats
from tests.protocol.federation import Federation
from tests.protocol.refusal import abort


def played(federation: Federation, **silent_from: Phase) -> RoundResult:
    federation.play(silent_from={SiloName(name.replace("_", "-")): phase for name, phase in silent_from.items()})
    assert federation.round.result is not None
    return federation.round.result


def progress_of(federation: Federation, model: ServerModel) -> RunProgress:
    progress = RunProgress.first(federation.run, model)
    assert federation.manifest is not None
    attendance = progress.attendance
    for entry in federation.manifest.roster:
        attendance = attendance.join(entry, 0)
    return replace(progress, attendance=attendance)


def closed(federation: Federation, result: RoundResult, progress: RunProgress) -> ClosedRound:
    assert federation.manifest is not None
    return close_round(federation.run, federation.manifest, result, progress)


def test_an_applied_round_moves_the_model_and_names_it_in_the_update() -> None:
    federation = Federation.of(4)
    before = federation.model
    result = played(federation)
    after = closed(federation, result, progress_of(federation, before))
    assert (after.update.round, after.update.outcome, after.update.reason) == (1, Outcome.APPLIED, "")
    assert after.progress.last_round == 1
    assert after.progress.model.state.version == 1
    assert after.update.model == after.progress.model.state.name
    assert after.update.descent is not None
    assert result.combined is not None
    assert after.update_norm == pytest.approx(np.linalg.norm(result.combined.vector))
    assert after.update.evidence.survivors is result.survivors
    assert (after.line().kind, after.line().text) == ("round_applied", "round 1 applied with 4 silos")
    np.testing.assert_array_equal(after.progress.model.state.vector, federation.model.state.vector)


def test_a_skipped_round_names_the_model_that_stays() -> None:
    federation = Federation.of(4, quorum=4)
    before = federation.model
    federation.play(silent_from={seat[0]: Phase.PROPOSE for seat in seats(federation.run, 1)})
    assert federation.round.result is not None
    after = closed(federation, federation.round.result, progress_of(federation, before))
    assert (after.update.outcome, after.update.descent) == (Outcome.SKIPPED, None)
    assert after.update.model == before.state.name
    assert after.progress.model is before
    assert after.line().text == "round 1 skipped: 2 silos proposed: fewer than 1 buffers have 2 of them"
    assert after.update_norm is None


def test_a_model_that_would_become_infinite_is_left_alone_and_the_run_goes_on() -> None:
    federation = Federation.of(4)
    edge = np.full(federation.run.parameters, np.finfo(np.float32).max, np.float32)
    result = played(federation)
    assert result.combined is not None
    huge = replace(result.combined, vector=np.full_like(result.combined.vector, -np.finfo(np.float32).max))
    before = ServerModel.initial(edge)
    after = closed(federation, replace(result, combined=huge), progress_of(federation, before))
    assert after.update.outcome is Outcome.SKIPPED
    assert after.update.reason.startswith("the update cannot be applied: Applying the update makes parameter")
    assert after.progress.model is before
    assert (after.update.descent, after.update.evidence.opened) == (None, ())
    assert after.progress.last_round == 1


def test_the_same_coordinates_cost_nothing_again_until_a_silo_may_have_trained_again() -> None:
    federation = Federation.of(4)
    unanswered = played(federation, silo_00=Phase.PROPOSE, silo_02=Phase.PROPOSE)
    assert (unanswered.outcome, unanswered.assignment) == (Outcome.SKIPPED, ())
    first = closed(federation, unanswered, progress_of(federation, federation.model))
    proposers = tuple(sorted(unanswered.proposals))
    assert first.charge.silos == proposers
    manifest = federation.round.manifest
    assert first.charge.epsilon == coordinate_epsilon(manifest.parameters, manifest.per_silo, manifest.alpha)
    again = closed(federation, unanswered, first.progress)
    assert again.charge.silos == (), "nobody had anything to submit, so everybody proposes what they proposed"
    moved = proposers[0]
    news = replace(unanswered, proposals={**unanswered.proposals, moved: bytes(32)})
    assert closed(federation, news, again.progress).charge.silos == (moved,)
    assert closed(federation, unanswered, again.progress.after_restart()).charge.silos == proposers


def test_equal_coordinates_of_another_training_are_charged() -> None:
    federation = Federation.of(4)
    result = played(federation)
    everybody = tuple(sorted(federation.silos))
    first = closed(federation, result, progress_of(federation, federation.model))
    assert (first.update.outcome, first.charge.silos) == (Outcome.APPLIED, everybody)
    assert closed(federation, result, first.progress).charge.silos == everybody, "the model moved on"
    skipped = replace(result, outcome=Outcome.SKIPPED, combined=None)
    second = closed(federation, skipped, first.progress)
    assert closed(federation, skipped, second.progress).charge.silos == everybody, "who submitted may have trained again"


def test_what_proposers_say_about_their_values_steers_the_range() -> None:
    federation = Federation.of(6)
    before = federation.model
    result = played(federation)
    progress = progress_of(federation, before)
    loud = replace(result, bits={name: RangeBits(clips=name != "silo-00", quiet=False) for name in result.bits})
    assert closed(federation, loud, progress).clip_rate == pytest.approx(5 / 6)
    assert closed(federation, loud, progress).progress.clip_range.value == 2 * progress.clip_range.value
    calm = replace(result, bits={name: RangeBits(clips=False, quiet=False) for name in result.bits})
    assert closed(federation, calm, progress).progress.clip_range.value == progress.clip_range.value


def test_every_silo_of_the_run_has_its_fate() -> None:
    federation = Federation.of(8, quorum=3, buffer_size=8, min_survivors=2, colluders=0)
    names = list(federation.silos)
    federation.open_round(names[3:])
    for silo in federation.members[1:]:
        federation.propose(silo)
    federation.deadline()
    for silo in federation.members[2:]:
        federation.submit(silo)
    federation.deadline()
    federation.round.receive(abort())
    assert federation.round.result is not None
    progress = progress_of(federation, federation.model)
    standing = progress.attendance.standings[names[3]]
    attendance = replace(
        progress.attendance.exclude(names[0]),
        standings={**progress.attendance.standings, names[1]: replace(standing, back_in_round=3)},
    )
    fates = closed(federation, federation.round.result, replace(progress, attendance=attendance)).fates
    expected = [Fate.EXCLUDED, Fate.SITTING_OUT, Fate.ABSENT, Fate.LATE, Fate.DROPPED, *[Fate.ON_TIME] * 3]
    assert fates == dict(zip(names, expected, strict=True))


def test_a_silo_whose_buffer_had_too_few_proposers_did_not_drop_out() -> None:
    federation = Federation.of(6)
    mate, lonely = seats(federation.run, 1)[0]
    federation.play(silent_from={mate: Phase.PROPOSE})
    assert federation.round.result is not None
    fates = closed(federation, federation.round.result, progress_of(federation, federation.model)).fates
    assert (fates[mate], fates[lonely]) == (Fate.LATE, Fate.ON_TIME)


def test_who_submitted_and_was_waited_for_in_vain_is_counted() -> None:
    federation = Federation.of(6)
    names = list(federation.silos)
    result = played(federation, silo_00=Phase.SUBMIT, silo_04=Phase.REVEAL, silo_05=Phase.REVEAL)
    after = closed(federation, result, progress_of(federation, federation.model))
    assert result.outcome is Outcome.SKIPPED
    assert result.report.missed == {names[0], names[4], names[5]}
    assert after.failed_to_reveal == 2


def test_a_round_that_a_restart_cut_off_changes_its_number_and_nothing_else() -> None:
    federation = Federation.of(4)
    progress = RunProgress.first(federation.run, federation.model)
    after = skip_after_restart(federation.run, 7, progress)
    assert (after.update.round, after.progress.last_round) == (7, 7)
    assert after.update.run == federation.run.digest()
    assert after.update.outcome is Outcome.SKIPPED
    assert after.update.model == progress.model.state.name
    assert after.progress.attendance is progress.attendance
    assert (after.manifest, after.charge.silos, after.fates, after.failed_to_reveal) == (None, (), {}, 0)


def test_who_may_have_proposed_in_a_round_that_was_cut_off_is_charged_at_the_most_it_may_have_cost() -> None:
    federation = Federation.of(5)
    played(federation)
    progress = progress_of(federation, federation.model)
    gone, *others = sorted(federation.silos)
    progress = replace(progress, attendance=progress.attendance.exclude(gone))
    rules = replace(federation.run, silos=(*federation.run.silos, SiloName("silo-99")))  # listed, and never seen
    after = skip_after_restart(rules, 2, progress.after_restart())
    assert after.charge.silos == tuple(others)
    epsilon = coordinate_epsilon(rules.parameters, rules.coordinates // 6, rules.alpha)
    assert after.charge.epsilon == epsilon
    manifest = federation.round.manifest
    assert epsilon is not None
    assert epsilon >= (coordinate_epsilon(manifest.parameters, manifest.per_silo, manifest.alpha) or 0.0)


def test_statements_join_the_evidence_and_nothing_else_changes() -> None:
    federation = Federation.of(4)
    update = skip_after_restart(federation.run, 1, RunProgress.first(federation.run, federation.model)).update
    statement = Statement(SiloName("silo-00"), update.run, 1, b"signed")
    answered = with_statements(update, (statement,))
    assert answered.evidence.statements == (statement,)
    assert replace(answered, evidence=update.evidence) == update
