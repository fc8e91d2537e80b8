"""What must hold whenever a server is killed: stated once, for the machine alone and for the real store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Outcome, Phase
from fedrep.protocol.model_state import ModelState, ServerModel, indices_of, model_hash
from fedrep.protocol.run_effects import Announced, Answered, KeepModel, Save
from fedrep.protocol.run_events import Exclude, Pause, Resume, RollBack, RoundDue, RunEvent, Stop
from fedrep.protocol.run_progress import RunState
from tests.protocol.played_run import Interpreter, PlayedRun

Told = Announced | Answered | RunEvent


@dataclass(frozen=True)
class Past:
    """What others had heard when the server was killed, and the models it had asked to keep until then, `rolled_back` or not."""

    heard: tuple[Told, ...]
    models: dict[int, ServerModel]
    rolled_back: bool

    @classmethod
    def of(cls, interpreter: Interpreter, first: ServerModel) -> Past:
        asked: Sequence[Save] = interpreter.asked
        return cls(tuple(interpreter.heard), {0: first, **interpreter.models}, any(isinstance(save, KeepModel) for save in asked))


def play_rounds(run: PlayedRun, silent_from: dict[SiloName, Phase]) -> None:
    """One round in which silos fall silent, one in which nobody does, one that is cut off."""
    run.play_all(silent_from)
    run.play_all()
    run.join()
    run.open_round()


def play_commands(run: PlayedRun) -> None:
    """All that an admin can do, with rounds in between; the end comes in the middle of one."""
    first = next(iter(run.silos))
    vector = run.interpreter.machine.progress.model.state.vector
    run.play_all()
    run.interpreter.command(Exclude(first, "ada"))
    run.play_all()
    run.interpreter.command(run.rollback_to(0, vector))
    run.interpreter.command(Pause("look"))
    run.interpreter.command(Resume())
    run.play_all()
    run.join()
    run.open_round()
    run.interpreter.command(Stop("enough"))


def check_restart(run: PlayedRun, past: Past, again: Interpreter) -> None:
    """`again` has just started from what the killed server left."""
    announced = [told.signed.manifest.round for told in past.heard if isinstance(told, Announced)]
    assert announced == sorted(set(announced)), "a number was announced twice"
    _check_outcomes(past, announced, again)
    _check_model(run, past, again)
    _check_commands(past.heard, again)
    _check_that_it_goes_on(run, announced, again)


def _check_outcomes(past: Past, announced: list[int], again: Interpreter) -> None:
    disk, last_round = again.disk, again.machine.progress.last_round
    for told in past.heard:
        if isinstance(told, Answered):
            assert disk.update(told.update.round) == told.update, "a silo heard another outcome than the committed one"
    for number in announced:
        assert disk.update(number) is not None, f"silos heard of round {number}, and it has no outcome"
        assert number <= last_round


def _check_model(run: PlayedRun, past: Past, again: Interpreter) -> None:
    """The newest model that was asked for and is named on disk, whole: parameters, hashes and residual of one version."""
    progress = again.machine.progress
    found, wanted = progress.model, past.models[progress.model.state.version]
    np.testing.assert_array_equal(found.state.vector, wanted.state.vector)
    np.testing.assert_array_equal(found.residual, wanted.residual)
    assert found.state.name == wanted.state.name
    assert model_hash(found.state.vector) == found.state.hash
    updates = [update for number in range(1, progress.last_round + 1) if (update := again.disk.update(number)) is not None]
    assert [update.round for update in updates][-1:] in ([], [progress.last_round])
    applied = [told for told in past.heard if isinstance(told, Answered) and told.update.outcome is Outcome.APPLIED]
    told_of = len(applied) + sum(isinstance(told, RollBack) for told in past.heard)
    assert told_of <= found.state.version <= told_of + 1, "at most one version is on disk that nobody has heard of"
    if not past.rolled_back:
        followed = ModelState.initial(past.models[0].state.vector)
        for update in updates:
            if update.outcome is Outcome.APPLIED:
                followed = followed.follow(update, indices_of(update, run.run.parameters))
        assert followed.name == found.state.name, "who follows all updates has another model"


def _check_commands(heard: tuple[Told, ...], again: Interpreter) -> None:
    progress = again.machine.progress
    state = None
    for told in heard:
        match told:
            case RollBack():
                assert progress.rollback == told.order, "silos that come later need it"
            case Exclude():
                assert told.silo in progress.attendance.excluded
            case Pause():
                state = RunState.PAUSED
            case Resume():
                state = RunState.RUNNING
            case Stop():
                state = RunState.STOPPED
    if state is RunState.STOPPED:
        assert progress.state is state
    elif state is RunState.PAUSED:
        assert progress.state in (RunState.PAUSED, RunState.RUNNING), "resuming may be on disk before it is answered"


def _check_that_it_goes_on(run: PlayedRun, announced: list[int], again: Interpreter) -> None:
    run.interpreter = again
    progress = again.machine.progress
    assert not any(standing.present for standing in progress.attendance.standings.values())
    run.join()
    again.tell(RoundDue())
    if progress.state in (RunState.WAITING, RunState.RUNNING):
        opened = again.machine.open
        assert opened is not None, "the run does not go on"
        assert opened.number not in announced, "a number is given out twice"
        assert opened.number > max(announced, default=0)
        assert opened.signed.manifest.model_hash == progress.model.state.hash
    else:
        assert again.machine.open is None
