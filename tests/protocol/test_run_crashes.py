"""The server killed at every moment: after each step of each write, and before and after anybody hears of anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest

from fedrep.protocol.messages import Outcome, Phase
from fedrep.protocol.run_effects import (
    Announced,
    Answered,
    CommitRound,
    KeepAttendance,
    KeepModel,
    KeepState,
    OpenRound,
    Save,
)
from tests.protocol.played_run import Interpreter, MemoryDisk, PlayedRun
from tests.protocol.run_crashes import Past, check_restart, play_commands, play_rounds

PHASES = (None, Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL)


@dataclass
class Moment:
    disk: MemoryDisk
    past: Past


def four_silos() -> PlayedRun:
    made = PlayedRun.of(4, parameters=32, quorum=3)
    assert isinstance(made, PlayedRun)
    return made


def moments(
    run: PlayedRun,
    script: Callable[[PlayedRun], None],
    disk_of: Callable[[PlayedRun], MemoryDisk] = lambda run: MemoryDisk.of(run.run, run.model),
    driven_by: type[Interpreter] = Interpreter,
) -> list[Moment]:
    """Everything a kill could leave behind, at each place where something has changed."""
    first, disk = run.model, disk_of(run)
    interpreter = run.serve(disk, driven_by)
    found: list[Moment] = []

    def moment() -> None:
        found.append(Moment(disk.copy(), Past.of(interpreter, first)))

    interpreter.moment = moment
    moment()
    script(run)
    return found


def check(run: PlayedRun, found: list[Moment]) -> None:
    for moment in found:
        check_restart(run, moment.past, run.serve(moment.disk))


@pytest.mark.parametrize("silent", PHASES, ids=lambda phase: phase.value if phase else "stays")
def test_whoever_drops_out_a_server_killed_at_any_moment_goes_on_and_takes_nothing_back(silent: Phase | None) -> None:
    """Three of four silos fall silent in every combination of phases."""
    counted = 0
    outcomes = set()
    for others in product(PHASES, repeat=2):
        run = four_silos()
        chosen = dict(zip(list(run.silos)[1:], (silent, *others), strict=True))
        gone = {name: phase for name, phase in chosen.items() if phase is not None}
        found = moments(run, lambda run, gone=gone: play_rounds(run, gone))  # type: ignore[misc]
        outcomes |= {told.update.outcome for told in found[-1].past.heard if isinstance(told, Answered)}
        check(run, found)
        counted += len(found)
    assert Outcome.APPLIED in outcomes
    assert counted > 300, "a kill at each of these moments was tried"


def test_what_an_admin_was_told_stands_after_a_kill_at_any_moment() -> None:
    run = four_silos()
    check(run, moments(run, play_commands))


def test_a_round_that_went_on_after_a_kill_applies() -> None:
    """The silos, too, take the restarted server's rounds."""
    run = four_silos()
    found = moments(run, lambda run: play_rounds(run, {}))
    run.serve(found[-1].disk)
    for silo in run.silos.values():
        update = run.interpreter.disk.update(silo.last_round)
        assert update is not None
        run.told[update.round] = update
    update = run.play_all()
    assert (update.round, update.outcome) == (4, Outcome.APPLIED)


class WrongOrder(MemoryDisk):
    """The row first, the model's file second."""

    def steps(self, save: Save) -> list[Callable[[], None]]:
        return super().steps(save)[::-1]


def disk_without(kind: type) -> Callable[[PlayedRun], MemoryDisk]:
    """A disk that never gets one kind of save."""

    class Without(MemoryDisk):
        def steps(self, save: Save) -> list[Callable[[], None]]:
            return [] if isinstance(save, kind) else super().steps(save)

    return lambda run: Without.of(run.run, run.model)


def disk_without_files(run: PlayedRun) -> MemoryDisk:
    class WithoutFiles(MemoryDisk):
        def steps(self, save: Save) -> list[Callable[[], None]]:
            return super().steps(save)[-1:]

    return WithoutFiles.of(run.run, run.model)


class AnnouncesFirst(Interpreter):
    def save(self, save: Save) -> None:
        if isinstance(save, OpenRound):
            self.hear(Announced(save))
        super().save(save)


class AnswersFirst(Interpreter):
    def save(self, save: Save) -> None:
        if isinstance(save, CommitRound):
            self.hear(Answered(save))
        super().save(save)


def rounds(run: PlayedRun) -> None:
    play_rounds(run, {})


@pytest.mark.parametrize(
    ("script", "disk_of"),
    [
        (rounds, disk_without(OpenRound)),
        (rounds, disk_without(CommitRound)),
        (rounds, disk_without_files),
        (rounds, lambda run: WrongOrder.of(run.run, run.model)),
        (play_commands, disk_without(KeepState)),
        (play_commands, disk_without(KeepAttendance)),
        (play_commands, disk_without(KeepModel)),
    ],
    ids=["OpenRound", "CommitRound", "files", "row before file", "KeepState", "KeepAttendance", "KeepModel"],
)
def test_the_check_notices_a_save_that_is_dropped_or_in_the_wrong_order(
    script: Callable[[PlayedRun], None], disk_of: Callable[[PlayedRun], MemoryDisk]
) -> None:
    run = four_silos()
    with pytest.raises((AssertionError, KeyError)):
        check(run, moments(run, script, disk_of))


@pytest.mark.parametrize("driven_by", [AnnouncesFirst, AnswersFirst])
def test_the_check_notices_a_server_that_speaks_before_it_wrote(driven_by: type[Interpreter]) -> None:
    run = four_silos()
    with pytest.raises(AssertionError):
        check(run, moments(run, rounds, driven_by=driven_by))
