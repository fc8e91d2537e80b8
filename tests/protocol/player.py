"""One silo's machine with everything around it played by hand: a disk that keeps what was saved, a wire that keeps what was said.

`fuse` counts every moment at which a process can die: before each effect, and between two files of one save. `points` are the
moments that differ: between two others nothing was written, said or heard, and a process that dies there leaves the same world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.error_memory import ErrorMemory, Pending
from fedrep.protocol.silo_effects import (
    Answer,
    Answered,
    Ask,
    Effect,
    Event,
    Moment,
    News,
    Problem,
    Report,
    Request,
    RunRefused,
    Save,
    Send,
    Started,
    Stop,
    TimePassed,
    Train,
    Wait,
)
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_state import SiloState


class Killed(Exception):  # noqa: N818 - nothing is wrong: this is what the test asked for
    """kill -9: whatever was not saved is gone."""


class Player:
    def __init__(self, make: Callable[[SiloState], SiloMachine], state: SiloState) -> None:
        self._make = make
        self.disk = state
        self.light(None)
        self.wire: list[Request] = []
        self.disk_when_said: list[SiloState] = []
        self.submitted: dict[int, Pending] = {}
        self.settled: dict[int, ErrorMemory] = {}
        self.worst: dict[int, NDArray[np.float32]] = {}
        self.before: dict[int, NDArray[np.float32]] = {}
        self.restart()

    def light(self, fuse: int | None) -> None:
        """Moments are counted from here, and the silo dies at that one."""
        self.fuse = fuse
        self.moments = 0
        self.points: list[int] = []
        self._heard = 0
        self._world: tuple[int, SiloState, int] | None = None

    def restart(self) -> None:
        """A new process over what the disk holds. What was on its way to nobody is lost."""
        self.machine = self._make(self.disk)
        self.waiting: list[Request] = []
        self.train: Train | None = None
        self.wait: Wait | None = None
        self.news: list[News] = []
        self.stopped: Stop | None = None

    def start(self) -> None:
        self.feed(Started())

    def feed(self, event: Event) -> list[Effect]:
        self._heard += 1
        effects = self.machine.receive(event, Moment())
        for effect in effects:
            self._moment()
            self._carry_out(effect)
        return effects

    def answer(self, kind: type, answer: Answer) -> list[Effect]:
        """To the request of that kind that is waiting."""
        request = next(request for request in self.waiting if isinstance(request, kind))
        self.waiting = [each for each in self.waiting if each is not request]
        return self.feed_answer(request, answer)

    def feed_answer(self, request: Request, answer: Answer) -> list[Effect]:
        return self.feed(Answered(request, answer))

    def waits_for(self, kind: type) -> bool:
        return any(isinstance(request, kind) for request in self.waiting)

    def time_passes(self) -> None:
        assert self.wait is not None
        wait, self.wait = self.wait, None
        self.feed(TimePassed(wait))

    def complaint(self) -> Problem | RunRefused | None:
        """What this silo's own rules refused last, if that is the last thing it said."""
        found = [news for news in self.news if isinstance(news, Problem | RunRefused)]
        return found[-1] if found else None

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Save(state):
                self._write(state)
            case Send(message, needs):
                self._write(needs.state)
                self.wire.append(message)
                self.disk_when_said.append(self.disk)
                self.waiting.append(message)
            case Ask(question):
                self.waiting.append(question)
            case Train():
                self.train = effect
            case Wait():
                self.wait = effect
            case Report(news):
                self.news.append(news)
            case Stop():
                self.stopped = effect

    def _write(self, state: SiloState) -> None:
        """Part after part, as `StateFolder.write` does."""
        disk = self.disk
        if state.journal is not disk.journal:
            self.disk = replace(self.disk, journal=state.journal)
            self._moment()
        if state.memory is not disk.memory or state.trainer is not disk.trainer:
            self._note(disk.memory.pending, state.memory)
            self.disk = replace(self.disk, memory=state.memory, trainer=state.trainer)
            self._moment()
        if state.model is not None and state.model is not disk.model:
            self.disk = replace(self.disk, model=state.model)
            self._moment()

    def _note(self, before: Pending | None, memory: ErrorMemory) -> None:
        """What was pending on disk, and the first memory without it: every fate that was ever decided."""
        if before is not None and memory.pending is not before:
            self.settled[before.place.round] = memory
        if memory.pending is not None:
            self.submitted[memory.pending.place.round] = memory.pending
            self.worst[memory.pending.place.round] = memory.residual
            self.before[memory.pending.place.round] = memory.before.dense()

    def _moment(self) -> None:
        heard, disk, said = self._world or (-1, None, -1)
        if heard != self._heard or disk is not self.disk or said != len(self.wire):
            self.points.append(self.moments)
            self._world = (self._heard, self.disk, len(self.wire))
        self.moments += 1
        if self.fuse is not None and self.moments > self.fuse:
            self.fuse = None
            raise Killed
