"""The run around its rounds: who starts one, what must be on disk before anybody hears of it, what admins may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrep.errors import FedrepError, OutOfPhaseError, UnknownSiloError, WrongRoundError
from fedrep.protocol.announcement import Dice
from fedrep.protocol.goals import Goals, Totals
from fedrep.protocol.manifests import RoundManifest, RunHash, SiloName
from fedrep.protocol.messages import Aborted, Confirmation, Outcome, Phase
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.run_effects import (
    Announced,
    Answered,
    CommitRound,
    Count,
    Gather,
    KeepAttendance,
    KeepLine,
    KeepModel,
    KeepState,
    OpenRound,
    RunEffect,
    Save,
    SetTimer,
)
from fedrep.protocol.run_events import (
    Counted,
    CountUnknown,
    Exclude,
    Joined,
    Left,
    Pause,
    Readmit,
    Restarted,
    Resume,
    RoundDue,
    RunEvent,
    Saved,
    Stop,
    TimedOut,
)
from fedrep.protocol.run_progress import RunState
from fedrep.protocol.server_run import STATES, ServerRun
from tests.protocol.federation import Silo
from tests.protocol.played_run import Interpreter, MemoryDisk, PlayedRun, unsigned


def four(**changes: object) -> PlayedRun:
    """Four silos, of whom three are a quorum; nobody has joined."""
    made = PlayedRun.of(4, **{"quorum": 3, **changes})  # type: ignore[arg-type]
    assert isinstance(made, PlayedRun)
    made.serve(MemoryDisk.of(made.run, made.model))
    return made


def joining(run: PlayedRun, name: SiloName) -> Joined:
    silo = run.silos[name]
    return Joined(run.entry(silo), silo.signing_key.verify_key)


def the_disk(run: PlayedRun) -> MemoryDisk:
    disk = run.interpreter.disk
    assert isinstance(disk, MemoryDisk)
    return disk


def kinds(run: PlayedRun) -> list[str]:
    return [line.kind for line in the_disk(run).lines]


def names_of(run: PlayedRun) -> list[SiloName]:
    return list(run.silos)


def the_save(effects: list[RunEffect]) -> Save:
    [save] = effects
    assert isinstance(save, Save)
    return save


def test_a_quorum_waits_for_the_others_and_everyone_waits_for_nobody() -> None:
    run = four()
    names = names_of(run)
    run.join(*names[:2])
    assert run.interpreter.gathered == []
    run.join(names[2])
    assert run.interpreter.gathered == [False]
    run.join(names[3])
    assert run.interpreter.gathered == [False, True]


def test_an_excluded_silo_is_not_waited_for() -> None:
    run = four()
    names = names_of(run)
    run.interpreter.tell(Exclude(names[3], "admin"))
    run.join(*names[:3])
    assert run.interpreter.gathered == [True]
    assert [entry.name for entry in run.open_round().roster] == names[:3]


def test_no_round_is_due_below_the_quorum() -> None:
    run = four()
    run.join(*names_of(run)[:2])
    assert run.interpreter.machine.receive(RoundDue()) == []


def test_a_round_is_announced_only_once_its_number_is_on_disk() -> None:
    run = four()
    run.join()
    machine = run.interpreter.machine
    [opening] = machine.receive(RoundDue())
    assert isinstance(opening, OpenRound)
    assert (machine.open, machine.progress.state) == (None, RunState.WAITING)
    effects = machine.receive(Saved(opening))
    assert effects == [Announced(opening), SetTimer(1, Phase.PROPOSE, 60)]
    assert machine.open is opening.round
    assert machine.progress.state is RunState.RUNNING
    assert machine.receive(RoundDue()) == []


def test_a_save_that_failed_changed_nothing_and_is_asked_for_again() -> None:
    run = four()
    run.join()
    machine = run.interpreter.machine
    before = machine.progress
    commands: list[RunEvent] = [RoundDue(), Pause("look"), Exclude(names_of(run)[0], "admin"), Left(names_of(run)[0]), Stop("")]
    for event in (*commands, run.rollback_to(0, before.model.state.vector)):
        for _ in range(2):
            machine.receive(event)
            assert machine.progress is before
            assert machine.open is None


def test_a_save_that_something_else_overtook_is_refused() -> None:
    """It would take back what came in between."""
    run = four()
    names = names_of(run)
    run.join()
    machine = run.interpreter.machine
    first = the_save(machine.receive(Left(names[0])))
    machine.receive(joining(run, names[1]))  # known already: believed without a save
    with pytest.raises(OutOfPhaseError):
        machine.receive(Saved(first))
    second = the_save(machine.receive(Left(names[0])))
    third = the_save(machine.receive(Left(names[1])))
    with pytest.raises(OutOfPhaseError):
        machine.receive(Saved(second))
    machine.receive(Saved(third))
    assert not machine.progress.attendance.standings[names[1]].present
    assert machine.progress.attendance.standings[names[0]].present
    with pytest.raises(OutOfPhaseError):
        machine.receive(Saved(third))


def test_a_silo_the_run_does_not_list_cannot_join() -> None:
    run = four()
    event = joining(run, names_of(run)[0])
    stranger = replace(event, entry=replace(event.entry, name=SiloName("stranger")))
    with pytest.raises(UnknownSiloError) as refused:
        run.interpreter.tell(stranger)
    assert refused.value.reason == "NOT_ALLOWED"
    assert kinds(run) == []


def test_who_may_have_trained_again_is_charged_for_the_same_coordinates() -> None:
    run = four()
    run.join()
    machine = run.interpreter.machine
    first, *others = names_of(run)
    machine.progress = replace(machine.progress, unsent=dict.fromkeys((first, *others), b"hash"))
    run.join(first)
    assert set(machine.progress.unsent) == set(others), "a silo that joins again may have started again"
    run.interpreter.tell(run.rollback_to(0, run.model.state.vector))
    assert machine.progress.unsent == {}, "everybody trains on another model"


def test_joining_and_leaving_again_are_no_news() -> None:
    run = four()
    first = names_of(run)[0]
    for _ in range(2):
        run.join(first)
    for _ in range(2):
        run.interpreter.tell(Left(first))
    assert kinds(run) == ["joined", "left"]
    run.join(first)
    assert kinds(run) == ["joined", "left", "joined"]
    run.interpreter.tell(Left(names_of(run)[1]))
    assert kinds(run) == ["joined", "left", "joined"], "this one had never come"


def test_rounds_follow_each_other_and_the_outcome_is_answered_once_it_is_on_disk() -> None:
    run = four()
    interpreter = run.interpreter
    for number in (1, 2):
        update = run.play_all()
        assert (update.round, update.outcome, update.model.version) == (number, Outcome.APPLIED, number)
        assert the_disk(run).updates[number] is update
        assert interpreter.machine.update_of(number) is update
    numbers = [told.signed.manifest.round for told in interpreter.heard if isinstance(told, Announced)]
    assert numbers == [1, 2]
    assert interpreter.gathered[-1] is True
    assert kinds(run) == [*["joined"] * 4, "state", "round_applied", "round_applied"]
    assert [timer.phase for timer in interpreter.timers] == [*list(Phase)[:-1]] * 2


def until_the_commit(run: PlayedRun) -> CommitRound:
    """A round whose outcome is known to the machine and not yet on disk."""
    asked: list[CommitRound] = []

    class Held(Interpreter):
        def save(self, save: Save) -> None:
            if isinstance(save, CommitRound):
                asked.append(save)
            else:
                super().save(save)

    run.serve(MemoryDisk.of(run.run, run.model), Held)
    run.join()
    run.until(Phase.REVEAL)
    for silo in run.members:
        if not asked:
            run.reveal(silo)
    return asked[0]


def test_an_outcome_that_is_not_on_disk_is_not_known() -> None:
    run = four()
    commit = until_the_commit(run)
    machine = run.interpreter.machine
    assert machine.is_open(1)
    assert (machine.progress.last_round, machine.progress.model.state.version) == (0, 0)
    with pytest.raises(WrongRoundError):
        machine.update_of(1)
    assert machine.receive(Saved(commit)) == [Answered(commit), Count()]
    assert (machine.progress.last_round, machine.progress.model.state.version) == (1, 1)
    assert machine.update_of(1) is commit.closed.update


def test_messages_find_their_round_or_are_told_where_it_is() -> None:
    run = four()
    machine = run.interpreter.machine
    run.join()
    with pytest.raises(OutOfPhaseError):
        machine.round_for(1)
    run.open_round()
    proposal = run.prepare(run.members[0]).message
    with pytest.raises(WrongRoundError):
        machine.receive(replace(proposal, round=2))
    assert machine.receive(proposal) == []
    assert machine.round_for(1).proposed == {proposal.silo}


def test_a_timer_of_an_older_round_changes_nothing() -> None:
    run = four()
    run.play_all()
    run.open_round()
    machine = run.interpreter.machine
    assert machine.receive(TimedOut(1, Phase.PROPOSE)) == []
    assert machine.receive(TimedOut(2, Phase.SUBMIT)) == []
    assert machine.round_for(2).phase is Phase.PROPOSE


def confirmation_of(run: PlayedRun, silo: Silo) -> Confirmation:
    return Confirmation(silo.name, run.run.digest(), 1, b"signed")


def test_late_holders_of_an_applied_round_miss_nothing() -> None:
    run = four()
    update = run.play_all()
    late = [silo for silo in run.members if silo.revealed is not None][-1]
    assert late.revealed is not None
    assert run.interpreter.machine.receive(late.revealed.message) == []
    assert run.interpreter.machine.receive(confirmation_of(run, late)) == []
    assert run.interpreter.machine.confirmed_before(1) == update.evidence.confirmations
    assert run.interpreter.machine.confirmed_before(2) is None


def test_late_holders_of_a_skipped_round_get_no_signatures() -> None:
    run = four()
    run.join()
    run.open_round()
    run.interpreter.tell(Aborted("maintenance"))
    assert run.interpreter.machine.confirmed_before(1) is None
    with pytest.raises(OutOfPhaseError):
        run.interpreter.machine.receive(confirmation_of(run, run.members[0]))


def test_the_outcome_of_an_old_round_is_on_disk_only_and_of_a_future_one_nowhere() -> None:
    run = four()
    for _ in range(2):
        run.play_all()
    machine = run.interpreter.machine
    assert machine.update_of(1) is None
    with pytest.raises(WrongRoundError):
        machine.update_of(3)


def test_r_follows_what_proposers_say_about_their_values() -> None:
    run = four()
    run.updates = {name: np.full(run.run.parameters, 5.0, np.float32) for name in run.silos}
    run.play_all()
    assert run.interpreter.machine.progress.clip_range.value == 2 * run.run.initial_range
    run.updates = {name: np.zeros(run.run.parameters, np.float32) for name in run.silos}
    run.play_all()


def bring_to(run: PlayedRun, state: RunState) -> ServerRun:
    """Between rounds."""
    run.join()
    machine = run.interpreter.machine
    if state is not RunState.WAITING:
        run.play()
    if state is RunState.PAUSED:
        run.interpreter.tell(Pause("look"))
    if state is RunState.STOPPED:
        run.interpreter.tell(Stop("enough"))
    if state is RunState.FINISHED:
        run.interpreter.tell(Counted(Totals(run.run.rounds, None, 0.0)))
    assert machine.progress.state is state
    return machine


OVER = "RUN_OVER"
NEVER: dict[tuple[RunState, type[RunEvent]], str | None] = {
    (RunState.WAITING, Resume): None,
    (RunState.RUNNING, Resume): None,
    (RunState.PAUSED, Pause): None,
    (RunState.STOPPED, Stop): None,
    (RunState.STOPPED, Pause): OVER,
    (RunState.STOPPED, Resume): OVER,
    (RunState.FINISHED, Stop): OVER,
    (RunState.FINISHED, Pause): OVER,
    (RunState.FINISHED, Resume): OVER,
}


@pytest.mark.parametrize("event", [Pause("p"), Resume(), Stop("s")], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", RunState)
def test_a_command_moves_the_run_as_the_table_says(state: RunState, event: Pause | Resume | Stop) -> None:
    run = four()
    machine = bring_to(run, state)
    before = machine.progress
    row = (state, type(event))
    assert (row in STATES) != (row in NEVER)
    if row in STATES:
        run.interpreter.tell(event)
        assert machine.progress.state is STATES[row]
        assert the_disk(run).state is STATES[row]
        assert machine.progress.reason == getattr(event, "reason", "")
    elif NEVER[row] is None:
        assert machine.receive(event) == []
        assert machine.progress is before
    else:
        with pytest.raises(FedrepError) as refused:
            machine.receive(event)
        assert refused.value.reason == NEVER[row]
        assert machine.progress is before


@pytest.mark.parametrize("state", RunState)
def test_only_a_run_that_waits_or_runs_starts_rounds(state: RunState) -> None:
    run = four()
    machine = bring_to(run, state)
    run.join()
    opens = [type(effect) for effect in machine.receive(RoundDue())] == [OpenRound]
    assert opens == ((state, RoundDue) in STATES)
    assert opens == (state in (RunState.WAITING, RunState.RUNNING))


@pytest.mark.parametrize("state", RunState)
def test_only_a_run_that_runs_can_finish(state: RunState) -> None:
    run = four()
    machine = bring_to(run, state)
    run.join()
    effects = machine.receive(Counted(Totals(run.run.rounds, None, 0.0)))
    finishes = [type(effect) for effect in effects] == [KeepState]
    assert finishes == ((state, Counted) in STATES)
    assert finishes == (state is RunState.RUNNING)


def test_a_paused_run_plays_its_round_to_the_end_and_starts_no_other() -> None:
    run = four()
    run.join()
    run.open_round()
    run.interpreter.tell(Pause("look"))
    run.interpreter.gathered.clear()
    for phase in (run.propose, run.submit, run.confirm, run.reveal):
        for silo in run.members:
            phase(silo)
    assert run.finish().outcome is Outcome.APPLIED
    assert run.interpreter.gathered == []
    run.interpreter.tell(Resume())
    assert run.interpreter.gathered == [True]


def test_stopping_is_on_disk_before_the_open_round_is_skipped() -> None:
    run = four()
    run.join()
    run.open_round()
    machine = run.interpreter.machine
    [stopping] = machine.receive(Stop("enough"))
    assert isinstance(stopping, KeepState)
    assert machine.is_open(1)
    [commit] = machine.receive(Saved(stopping))
    assert isinstance(commit, CommitRound)
    assert (commit.closed.update.outcome, commit.closed.update.reason) == (Outcome.SKIPPED, "enough")
    assert machine.progress.state is RunState.STOPPED
    machine.receive(Saved(commit))
    assert machine.open is None
    assert machine.receive(Counted(Totals(1, None, 0.0))) == []


def test_aborting_without_a_round_changes_nothing() -> None:
    run = four()
    assert run.interpreter.machine.receive(Aborted("maintenance")) == []


def test_an_older_model_comes_back_as_a_new_version_without_residual() -> None:
    run = four()
    first = run.model.state.vector
    run.play_all()
    machine = run.interpreter.machine
    assert np.any(machine.progress.model.residual)
    [save] = machine.receive(run.rollback_to(0, first))
    assert isinstance(save, KeepModel)
    machine.receive(Saved(save))
    model = machine.progress.model
    assert model.state.version == 2
    np.testing.assert_array_equal(model.state.vector, first)
    assert not np.any(model.residual)
    run.model = model
    run.order_rollback()
    assert run.play_all().model.version == 3


def test_the_model_is_not_rolled_back_under_an_open_round() -> None:
    run = four()
    run.join()
    run.open_round()
    with pytest.raises(OutOfPhaseError):
        run.interpreter.machine.receive(run.rollback_to(0, run.model.state.vector))


def test_a_silo_that_missed_the_rounds_after_a_rollback_goes_on_once_it_sees_the_order() -> None:
    """Its own updates do not lead to the newer model, and it heard of every round: without the order it would stop."""
    run = PlayedRun.of(6, buffer_size=3, min_survivors=2, colluders=0, quorum=5)
    assert isinstance(run, PlayedRun)
    run.serve(MemoryDisk.of(run.run, run.model))
    first = run.model.state.vector
    away = names_of(run)[0]
    run.play_all()
    run.interpreter.tell(Exclude(away, "ada"))
    run.interpreter.tell(run.rollback_to(0, first))
    opened = run.open_round

    def before_an_onlooker(roster: Iterable[SiloName] | None = None) -> RoundManifest:
        manifest = opened(roster)
        run.announce(run.silos[away])
        return manifest

    run.open_round = before_an_onlooker  # type: ignore[method-assign]
    assert run.play_all().outcome is Outcome.APPLIED
    run.open_round = opened  # type: ignore[method-assign]
    run.interpreter.tell(Readmit(away, "ada"))
    assert away in run.play_all().evidence.survivors.names()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"run": RunHash(b"other")}, "WRONG_RUN"), ({"version": 2}, "MODEL_MOVED"), ({"model_hash": bytes(32)}, "WRONG_MODEL")],
)
def test_a_rollback_that_says_something_else_than_what_would_happen_is_refused(change: dict[str, Any], reason: str) -> None:
    run = four()
    machine = run.interpreter.machine
    before = machine.progress
    with pytest.raises(FedrepError) as refused:
        machine.receive(run.rollback_to(0, run.model.state.vector, **change))
    assert refused.value.reason == reason
    assert machine.progress is before


def test_excluding_and_readmitting_are_on_disk() -> None:
    run = four()
    first = names_of(run)[0]
    machine = run.interpreter.machine
    [save] = machine.receive(Exclude(first, "ada", "too slow"))
    assert isinstance(save, KeepAttendance)
    assert (save.line.kind, save.line.text, save.line.silo) == ("excluded", f"{first} excluded by ada: too slow", first)
    run.interpreter.tell(Exclude(first, "ada"))
    assert the_disk(run).attendance.excluded == {first}
    run.interpreter.tell(Readmit(first, "ada"))
    assert the_disk(run).attendance.excluded == frozenset()
    assert [line.text for line in the_disk(run).lines] == [f"{first} excluded by ada", f"{first} readmitted by ada"]


def test_totals_that_cannot_be_read_do_not_stop_the_run() -> None:
    run = four()
    run.play_all()
    run.join()
    assert run.interpreter.machine.receive(CountUnknown()) == [Gather(True)]


class Uncounting(Interpreter):
    """Its database never says the totals."""

    def _carry_out(self, effects: Iterable[RunEffect]) -> None:
        super()._carry_out(effect for effect in effects if not isinstance(effect, Count))


@pytest.mark.parametrize("spent", [0.5, 1.0], ids=["less than the budget", "the budget"])
def test_no_round_opens_before_the_totals_of_the_last_one_are_known(spent: float) -> None:
    run = four()
    machine = run.serve(the_disk(run).copy(), Uncounting).machine
    machine._goals = Goals(run.run.rounds, epsilon=1.0)
    run.play_all()
    run.join()
    assert machine.receive(CountUnknown()) == [Gather(True)]
    for _ in range(2):
        assert machine.receive(RoundDue()) == [Count()]
    effects = machine.receive(Counted(Totals(1, None, spent)))
    if spent < 1.0:
        assert effects == [Gather(True)]
        assert isinstance(the_save(machine.receive(RoundDue())), OpenRound)
    else:
        assert isinstance(the_save(effects), KeepState)
        assert machine.receive(RoundDue()) == [Count()], "the end is not on disk yet"


@pytest.mark.parametrize("spent", [0.5, 1.0], ids=["less than the budget", "the budget"])
def test_a_server_that_starts_counts_before_anything_else(spent: float) -> None:
    run = four()
    run.play_all()
    progress, was_open = the_disk(run).read()
    machine = ServerRun(run.run, progress, Dice(bytes(32)), unsigned, Goals(run.run.rounds, epsilon=1.0))
    assert machine.receive(Restarted(was_open)) == [Count()]
    effects = machine.receive(Counted(Totals(1, None, spent)))
    assert [type(effect) for effect in effects] == ([KeepState] if spent == 1.0 else [])


def play_paused(run: PlayedRun) -> None:
    """One round, to its end, in which the run is paused."""
    run.join()
    run.open_round()
    run.interpreter.tell(Pause("look"))
    for phase in (run.propose, run.submit, run.confirm, run.reveal):
        for silo in run.members:
            phase(silo)


def test_a_run_that_was_paused_while_it_reached_its_goal_ends_when_it_goes_on() -> None:
    run = four()
    run.interpreter.machine._goals = Goals(run.run.rounds, epsilon=1.0)
    play_paused(run)
    run.finish()
    run.interpreter.tell(Resume())
    assert run.interpreter.machine.receive(RoundDue()) == [Count()]


def test_a_run_without_its_model_opens_no_round_until_it_is_rolled_back() -> None:
    run = four()
    first = run.model.state.vector
    run.play_all()
    disk = the_disk(run).copy()
    disk.files[1] = ServerModel.lost(disk.files[1].state.name)
    machine = run.serve(disk).machine
    run.join()
    assert run.interpreter.gathered == []
    assert machine.receive(RoundDue()) == []
    run.interpreter.tell(run.rollback_to(0, first))
    assert run.interpreter.gathered == [True]
    assert isinstance(the_save(machine.receive(RoundDue())), OpenRound)


def test_a_run_ends_by_itself_after_its_rounds() -> None:
    run = four(rounds=2)
    for _ in range(2):
        run.play_all()
    progress = run.interpreter.machine.progress
    assert (progress.state, progress.reason) == (RunState.FINISHED, "all 2 rounds played")


def uncounted(rounds: int) -> PlayedRun:
    """All rounds of it are played, and nobody has heard so."""
    run = four(rounds=rounds)
    run.interpreter.machine._goals = Goals(99)
    for _ in range(rounds):
        run.play_all()
    assert run.interpreter.machine.progress.state is RunState.RUNNING
    return run


def test_no_round_is_opened_beyond_the_signed_number_though_the_totals_are_unknown() -> None:
    """Silos would refuse it."""
    run = uncounted(2)
    machine = run.interpreter.machine
    assert machine.receive(CountUnknown()) == [Gather(True)]
    finish = the_save(machine.receive(RoundDue()))
    assert isinstance(finish, KeepState)
    assert machine.receive(Saved(finish)) == []
    assert (machine.progress.state, machine.progress.reason) == (RunState.FINISHED, "round 2 was the last")


def test_a_run_whose_end_was_not_written_ends_at_the_next_start() -> None:
    assert restarted(uncounted(2)).machine.progress.state is RunState.FINISHED


def test_a_run_that_was_paused_in_its_last_round_ends_when_it_goes_on() -> None:
    run = four(rounds=1)
    play_paused(run)
    assert run.interpreter.machine.progress.state is RunState.PAUSED
    run.interpreter.tell(Resume())
    run.interpreter.tell(RoundDue())
    assert (run.interpreter.machine.progress.state, run.interpreter.machine.open) == (RunState.FINISHED, None)


def test_a_run_ends_when_waiting_out_penalties_would_lead_beyond_its_last_round() -> None:
    run = four(rounds=5)
    run.play_all()
    machine = run.interpreter.machine
    attendance = machine.progress.attendance
    late = {name: replace(attendance.standings[name], back_in_round=7) for name in names_of(run)[:2]}
    sitting_out = replace(attendance, standings={**attendance.standings, **late})
    machine.progress = replace(machine.progress, attendance=sitting_out)
    run.interpreter.tell(RoundDue())
    assert machine.open is None
    assert machine.progress.state is RunState.FINISHED
    assert machine.progress.reason == "penalties leave no quorum before round 7, and round 5 is the last"


def restarted(run: PlayedRun) -> Interpreter:
    return run.serve(the_disk(run).copy())


def test_a_restart_skips_the_round_that_was_open_and_never_gives_its_number_out_again() -> None:
    run = four()
    run.play_all()
    run.open_round()
    again = restarted(run)
    update = the_disk(run).updates[2]
    assert (update.outcome, update.reason) == (Outcome.SKIPPED, "the server restarted during the round")
    assert update.model == run.model.state.name
    assert update.evidence.survivors is None
    assert again.machine.update_of(2) is update
    assert run.play_all().round == 3


def test_a_restart_between_rounds_skips_nothing() -> None:
    run = four()
    run.play_all()
    again = restarted(run)
    assert again.machine.progress.last_round == 1
    assert sorted(the_disk(run).updates) == [1]


def test_after_a_restart_penalties_and_exclusions_stand_and_presence_does_not() -> None:
    run = four()
    names = names_of(run)
    run.join()
    run.open_round()
    for silo in run.members:
        run.propose(silo)
    for silo in run.members[1:]:
        run.submit(silo)
    run.deadline()
    run.interpreter.tell(Aborted("maintenance"))
    run.interpreter.tell(Exclude(names[3], "ada"))
    again = restarted(run)
    attendance = again.machine.progress.attendance
    assert attendance.standings[names[0]].misses == 1
    assert attendance.excluded == {names[3]}
    assert not any(standing.present for standing in attendance.standings.values())
    assert again.machine.receive(RoundDue()) == []


def test_a_restart_that_skips_the_last_round_ends_the_run() -> None:
    run = four(rounds=2)
    run.play_all()
    run.open_round()
    assert restarted(run).machine.progress.state is RunState.FINISHED


def test_nothing_is_believed_of_a_restart_that_could_not_be_written() -> None:
    run = four()
    run.join()
    run.open_round()
    disk = the_disk(run).copy()
    disk.open_round = 0
    machine = run.serve(disk).machine
    for _ in range(2):
        [commit] = machine.receive(Restarted(1))
        assert isinstance(commit, CommitRound)
        assert machine.progress.last_round == 0


def test_lines_about_who_came_say_only_that() -> None:
    run = four()
    silo: Silo = run.silos[names_of(run)[0]]
    [save] = run.interpreter.machine.receive(joining(run, silo.name))
    assert isinstance(save, KeepLine)
    assert (save.line.kind, save.line.severity, save.line.silo) == ("joined", "info", silo.name)
