"""Local training in a thread of its own: the silo goes on speaking meanwhile, and leaving never waits for it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np
import structlog

from fedrep.errors import FedrepError, InvalidInputError
from fedrep.patched import Difference
from fedrep.protocol.silo_effects import Train, Trained, TrainingFailed, TrainingRefused
from fedrep.protocol.silo_state import TrainerState
from fedrep_runtime.freed_memory import give_back
from fedrep_silo.audit import Audit
from fedrep_silo.record_books import RecordBooks
from fedrep_trainers.trainer import ProjectingTrainer, Trainer, TrainResult
from fedrep_trainers.user_errors import explained

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Training:
    """Carries out `Train`, one at a time. `busy` while nobody else may use the trainer."""

    def __init__(self, trainer: Trainer, stands_at: TrainerState, books: RecordBooks, audit: Audit) -> None:
        self.trainer = trainer
        self._books = books
        self._audit = audit
        self.busy = False
        self._stands_at: TrainerState | None = stands_at

    async def carry_out(self, train: Train) -> Trained | TrainingFailed | TrainingRefused:
        self.busy = True
        try:
            return await self._train(train)
        except FedrepError as error:
            if error.reason == "RECORD_BUDGET":
                return TrainingRefused(train.model.version, error)
            return TrainingFailed(train.model.version, str(error))
        except Exception as error:  # user code may raise anything; the round is left, the silo goes on
            log.error("training_raised", round=train.round, exc_info=True)
            return TrainingFailed(train.model.version, explained(error))
        finally:
            self.busy = False

    async def _train(self, train: Train) -> Trained | TrainingFailed:
        started, model = time.monotonic(), train.model
        standing, self._stands_at = self._stands_at, None
        if standing is not train.start_from:
            self.trainer.load_state(train.start_from)
        result = await in_thread(lambda: self._pay_and_train(train), self.trainer)
        trained = np.asarray(result.model, np.float32)
        if trained.shape != model.vector.shape:
            raise InvalidInputError(f"the trainer returned {trained.shape} values for a model of {model.vector.shape}")
        update = Difference(model.vector, trained)  # by its contract the trainer leaves a result alone
        self._stands_at = self.trainer.state()
        seconds = time.monotonic() - started
        return Trained(model.version, update, self._stands_at, result.loss, result.samples, seconds)

    def _pay_and_train(self, train: Train) -> TrainResult:
        """Paid for before it starts: a crash in between costs a training, and never hides one."""
        if self._books.charge(train.run, self.trainer, train.trainings) is not None:
            self._audit.sent("training", 0, train.round, **self._books.standing().figures())
        give_back(train.model.vector.nbytes)  # of the last round: the trainer needs a vector or more
        if train.coordinates is not None and isinstance(self.trainer, ProjectingTrainer):
            return self.trainer.train_on(train.model.vector, train.round, train.coordinates)
        return self.trainer.train(train.model.vector, train.round)


async def in_thread(function: Callable[[], T], trainer: Trainer | None = None) -> T:
    """Like asyncio.to_thread, but the process can end while `function` runs: training may take hours, leaving must not.

    Who stops waiting does not end it: `at_rest` says when nobody works with `trainer` any more.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    over: Future[None] = Future()
    over.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        problem: Exception | None = None
        try:
            result = function()
        except Exception as error:
            # A future cannot carry StopIteration, which an exhausted iterator in user code raises.
            problem = RuntimeError("StopIteration: the data ran out") if isinstance(error, StopIteration) else error
        except BaseException as error:  # sys.exit() in user code ends a training, not the silo
            problem = RuntimeError(repr(error))
        finally:
            del _working[over]
            over.set_result(None)
        with suppress(RuntimeError):  # the loop is closed: the daemon has left meanwhile
            loop.call_soon_threadsafe(settle, result, problem)

    try:
        thread = _resting.pop()
    except IndexError:
        thread = SimpleQueue()
        threading.Thread(target=_serve, args=(thread,), name="training", daemon=True).start()
    _working[over] = trainer
    thread.put(work)
    return await done


def is_under_way(trainer: Trainer | None = None) -> bool:
    """Whether some training goes on, or one with this trainer, be it that nobody waits for it any more."""
    return bool(_with(trainer) if trainer is not None else _working)


async def at_rest(trainer: Trainer) -> None:
    """Until nobody works with it. A private training that shares its trainer with another one shares buffers too, and may take a
    step between the other's gradient and its noise."""
    while under_way := _with(trainer):
        await asyncio.wait([asyncio.wrap_future(over) for over in under_way])


def _with(trainer: Trainer) -> list[Future[None]]:
    return [over for over, user in list(_working.items()) if user is trainer]


Work = Callable[[], None]

_working: dict[Future[None], Trainer | None] = {}

REST_SECONDS = 60.0

# What each thread that has nothing to do waits at. A library that computes on all cores keeps workers for every thread that ever
# called it, so the next training goes to the thread of the last one; those that a crowd once needed leave again.
_resting: list[SimpleQueue[Work]] = []
os.register_at_fork(after_in_child=_resting.clear)  # threads do not pass on to a child
os.register_at_fork(after_in_child=_working.clear)


def _serve(tasks: SimpleQueue[Work]) -> None:
    while True:
        try:
            work = tasks.get(timeout=REST_SECONDS)
        except Empty:
            try:
                _resting.remove(tasks)
            except ValueError:  # somebody took it just now: the work is on its way
                work = tasks.get()
            else:
                return
        work()
        del work  # it knows the result, which is as large as the model
        _resting.append(tasks)
