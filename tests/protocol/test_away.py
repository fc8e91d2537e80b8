"""Whom a round waits for: nobody who failed, abstained, left, was excluded or lost its connection, and everybody else.

No deadline passes in these tests unless one says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedrep.protocol.attendance import MISSES_IN_A_ROW, Absence, Standing
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Outcome, Phase
from fedrep.protocol.run_effects import SetTimer
from fedrep.protocol.run_events import (
    Exclude,
    GraceOver,
    Left,
    LineBack,
    LineLost,
    Readmit,
    RoundDue,
    Stop,
    TimedOut,
    Withdrew,
)
from tests.protocol.federation import Silo
from tests.protocol.played_run import MemoryDisk, PlayedRun
from tests.protocol.test_server_run import kinds


def seven(phase: Phase = Phase.PROPOSE) -> PlayedRun:
    """Everybody has joined, and the first round has come so far."""
    run = PlayedRun.of(7, quorum=5)
    assert isinstance(run, PlayedRun)
    run.serve(MemoryDisk.of(run.run, run.model))
    run.join()
    run.until(phase)
    return run


def tell(run: PlayedRun, *events: object) -> None:
    for event in events:
        run.interpreter.tell(event)  # type: ignore[arg-type]


def lose(run: PlayedRun, silo: Silo) -> None:
    """Its connection breaks, and stays broken."""
    tell(run, LineLost(silo.name))
    tell(run, grace_of(run, silo.name))


def grace_of(run: PlayedRun, name: SiloName) -> GraceOver:
    last = run.interpreter.graces[-1]
    assert last.silo == name
    return GraceOver(name, last.loss)


WAYS: dict[str, Callable[[PlayedRun, Silo], None]] = {
    "its training failed": lambda run, silo: run.abstain(silo),
    "it left": lambda run, silo: tell(run, Left(silo.name)),
    "it was excluded": lambda run, silo: tell(run, Exclude(silo.name, "ada")),
    "its connection was lost": lose,
    "it asked how the round ends": lambda run, silo: tell(run, Withdrew(silo.name, run.round_number)),
}
MISSED = [way for way in WAYS if way != "its training failed"]


def phase_of(run: PlayedRun) -> Phase:
    return run.round.phase


def standing_of(run: PlayedRun, silo: Silo) -> Standing:
    return run.interpreter.machine.progress.attendance.standings[silo.name]


@pytest.mark.parametrize("way", WAYS)
def test_a_silo_that_is_away_before_the_others_answer_is_not_waited_for(way: str) -> None:
    run = seven()
    gone, *others = run.members
    WAYS[way](run, gone)
    for silo in others:
        assert phase_of(run) is Phase.PROPOSE, "as long as one that is here has not answered, the phase goes on"
        run.propose(silo)
    assert phase_of(run) is Phase.SUBMIT
    assert gone.name not in {silo.name for buffer in run.by_buffer() for silo in buffer}


@pytest.mark.parametrize("way", WAYS)
def test_the_last_one_waited_for_ends_the_phase_by_going_away(way: str) -> None:
    run = seven()
    gone, *others = run.members
    for silo in others:
        run.propose(silo)
    assert phase_of(run) is Phase.PROPOSE
    WAYS[way](run, gone)
    assert phase_of(run) is Phase.SUBMIT
    for act in (run.submit, run.confirm):
        for silo in others:
            if phase_of(run) is not Phase.REVEAL:
                act(silo)
    run.finish_reveals()
    assert run.finish().outcome is Outcome.APPLIED


@pytest.mark.parametrize("way", MISSED)
def test_going_away_is_a_miss_like_any_other(way: str) -> None:
    run = seven()
    gone, *others = run.members
    WAYS[way](run, gone)
    for silo in others:
        run.propose(silo)
    tell(run, TimedOut(1, Phase.SUBMIT), TimedOut(1, Phase.CONFIRM))
    assert standing_of(run, gone).misses == 1
    assert [line.silo for line in run.interpreter.notes if line.kind == "late"] == [gone.name]


def test_who_hangs_up_after_proposing_is_not_waited_for_and_sits_out_after_the_third_time() -> None:
    run = seven()
    for number in range(1, MISSES_IN_A_ROW + 1):
        gone = run.silos[run.run.silos[0]]
        for silo in run.members:
            run.propose(silo)
        assert phase_of(run) is Phase.SUBMIT
        for silo in run.members:
            if silo is not gone:
                run.submit(silo)
        assert phase_of(run) is Phase.SUBMIT
        lose(run, gone)
        assert phase_of(run) is Phase.CONFIRM
        tell(run, TimedOut(number, Phase.CONFIRM))
        run.finish()
        run.join()
        if number < MISSES_IN_A_ROW:
            assert standing_of(run, gone).misses == number
            run.open_round()
    assert (standing_of(run, gone).strikes, standing_of(run, gone).back_in_round) == (1, MISSES_IN_A_ROW + 2)
    assert gone.name not in run.open_round().names


def test_a_connection_that_is_back_within_its_grace_changes_nothing() -> None:
    run = seven()
    gone, *others = run.members
    tell(run, LineLost(gone.name))
    late = grace_of(run, gone.name)
    for silo in others:
        run.propose(silo)
    assert phase_of(run) is Phase.PROPOSE, "its grace is not over"
    tell(run, LineBack(gone.name), late)
    assert phase_of(run) is Phase.PROPOSE
    tell(run, LineLost(gone.name), late)
    assert phase_of(run) is Phase.PROPOSE, "that grace belonged to the loss before"
    tell(run, LineBack(gone.name))
    run.propose(gone)
    assert phase_of(run) is Phase.SUBMIT
    assert gone.name in {silo.name for buffer in run.by_buffer() for silo in buffer}
    assert kinds(run)[-1] != "lost"


def test_a_connection_that_is_back_after_its_grace_is_waited_for_again_and_listed_in_the_next_round() -> None:
    run = seven()
    gone, last, *others = run.members
    lose(run, gone)
    assert (standing_of(run, gone).present, standing_of(run, gone).absence) == (False, Absence.LOST)
    for silo in others:
        run.propose(silo)
    tell(run, LineBack(gone.name))
    run.propose(last)
    assert phase_of(run) is Phase.PROPOSE, "it is here again"
    run.propose(gone)
    assert phase_of(run) is Phase.SUBMIT
    assert standing_of(run, gone).present
    assert kinds(run)[-2:] == ["lost", "back"]


def test_joining_within_the_grace_is_as_good_as_a_connection() -> None:
    run = seven()
    gone = run.members[0]
    tell(run, LineLost(gone.name))
    run.join(gone.name)
    tell(run, grace_of(run, gone.name))
    assert standing_of(run, gone).present
    assert run.round.away == {}


def test_whoever_speaks_is_here() -> None:
    """The proposal came over another connection than the one that was lost."""
    run = seven()
    gone, *others = run.members
    lose(run, gone)
    run.propose(gone)
    assert run.round.away == {}
    for silo in others:
        run.propose(silo)
    for silo in others:
        run.submit(silo)
    assert phase_of(run) is Phase.SUBMIT, "it proposed, and is waited for"


def test_a_lost_silo_is_not_in_the_next_roster_until_its_connection_is_back() -> None:
    run = seven()
    gone, *others = run.members
    lose(run, gone)
    for silo in others:
        run.abstain(silo)
    run.finish()
    assert gone.name not in run.open_round().names
    tell(run, LineBack(gone.name))
    for silo in run.members:
        run.abstain(silo)
    run.finish()
    assert gone.name in run.open_round().names


def test_a_connection_brings_nobody_back_who_left_or_never_came() -> None:
    run = seven()
    gone = run.members[0]
    tell(run, Left(gone.name), LineLost(gone.name), LineBack(gone.name))
    assert not standing_of(run, gone).present
    assert run.interpreter.graces == [], "who left has no line to lose"
    assert gone.name in run.round.away


def test_a_silo_that_hung_up_before_it_said_goodbye_has_left() -> None:
    run = seven()
    gone = run.members[0]
    lose(run, gone)
    tell(run, Left(gone.name), LineBack(gone.name))
    assert (standing_of(run, gone).present, standing_of(run, gone).absence) == (False, Absence.LEFT)


def test_who_left_the_round_is_not_waited_for_again_in_it() -> None:
    run = seven()
    withdrawn, *others = run.members
    tell(run, Withdrew(withdrawn.name, 1), LineLost(withdrawn.name), LineBack(withdrawn.name))
    run.join(withdrawn.name)
    for silo in others:
        run.propose(silo)
    assert phase_of(run) is Phase.SUBMIT
    assert standing_of(run, withdrawn).present, "the next round lists it"


def test_joining_again_is_coming_back() -> None:
    run = seven()
    gone, *others = run.members
    lose(run, gone)
    run.join(gone.name)
    for silo in others:
        run.propose(silo)
    assert phase_of(run) is Phase.PROPOSE
    run.propose(gone)
    assert phase_of(run) is Phase.SUBMIT


def test_an_excluded_silo_that_is_readmitted_is_waited_for_again() -> None:
    run = seven()
    gone, *others = run.members
    tell(run, Exclude(gone.name, "ada"), Readmit(gone.name, "ada"))
    for silo in others:
        run.propose(silo)
    assert phase_of(run) is Phase.PROPOSE


def test_a_round_that_everybody_leaves_is_skipped_at_once_and_no_other_starts() -> None:
    run = seven()
    for silo in run.members:
        lose(run, silo)
    update = run.finish()
    assert (update.outcome, update.reason) == (Outcome.SKIPPED, "0 silos proposed: fewer than 1 buffers have 2 of them")
    tell(run, RoundDue())
    assert run.interpreter.machine.open is None, "the quorum counts as before"


def test_confirming_ends_without_its_deadline_when_too_few_are_left_to_confirm() -> None:
    run = seven(Phase.CONFIRM)
    first, *others = run.members
    run.confirm(first)
    for silo in others:
        assert phase_of(run) is Phase.CONFIRM, "one that is here might still confirm"
        lose(run, silo)
    update = run.finish()
    assert (update.outcome, update.reason) == (Outcome.SKIPPED, "1 holders confirmed the survivors, 5 are needed")


def test_revealing_ends_without_its_deadline_when_too_few_are_left_to_reveal() -> None:
    run = seven(Phase.REVEAL)
    first, *others = run.members
    run.reveal(first)
    for silo in others:
        assert phase_of(run) is Phase.REVEAL
        lose(run, silo)
    assert run.finish().outcome is Outcome.SKIPPED
    assert {silo.name for silo in run.members if standing_of(run, silo).misses} == {silo.name for silo in others}


def test_a_phase_whose_silos_are_all_away_when_it_begins_does_not_wait_either() -> None:
    run = seven()
    for silo in run.members[:-1]:
        run.propose(silo)
        lose(run, silo)
    run.abstain(run.members[-1])
    assert phase_of(run) is Phase.CONFIRM, "nobody was left to submit; the one that abstained can confirm"
    assert [timer.phase for timer in run.interpreter.timers] == [Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM]
    tell(run, Left(run.members[-1].name))
    assert run.finish().outcome is Outcome.SKIPPED


def test_less_time_than_the_run_grants_makes_a_silo_late_and_is_no_miss() -> None:
    run = seven()
    slow, gone, *others = run.members
    lose(run, gone)
    for silo in others:
        run.propose(silo)
    tell(run, TimedOut(1, Phase.PROPOSE, cut=True))
    assert phase_of(run) is Phase.SUBMIT
    tell(run, TimedOut(1, Phase.SUBMIT), TimedOut(1, Phase.CONFIRM))
    assert (standing_of(run, slow).misses, standing_of(run, gone).misses) == (0, 1)
    late = [line.text for line in run.interpreter.notes if line.kind == "late"]
    assert late == [f"{slow.name} did not propose in time", f"{gone.name} did not propose: it lost its connection"]


def test_nobody_is_lost_to_a_run_that_is_over() -> None:
    run = seven()
    tell(run, Stop("enough"), LineLost(run.members[0].name))
    assert run.interpreter.graces == []


def test_news_about_a_round_that_is_over_changes_nothing() -> None:
    run = seven()
    gone = run.members[0]
    for silo in run.members:
        run.abstain(silo)
    before = run.interpreter.machine.progress
    assert run.interpreter.machine.receive(Withdrew(gone.name, 1)) == []
    assert run.interpreter.machine.progress is before
    assert isinstance(run.interpreter.timers[0], SetTimer)
