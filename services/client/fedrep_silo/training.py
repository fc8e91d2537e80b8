"""Local training beside the protocol: a slow trainer makes the silo a bystander of the round, never an absentee."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep.errors import FedrepError
from fedrep.protocol.model_state import ModelState
from fedrep_trainers.trainer import Trainer, TrainerState, TrainResult

log = structlog.get_logger(__name__)

T = TypeVar("T")


class TrainingFailedError(FedrepError):
    """User code, data or device failed; the text is the trainer's own."""

    default_reason = "TRAINING_FAILED"


@dataclass(frozen=True, slots=True)
class Trained:
    """`update` is w^t - w_k^{t+1}, and `state` the trainer's state after exactly this training."""

    version: int
    update: NDArray[np.float32]
    loss: float
    samples: int
    seconds: float
    state: TrainerState


class Training:
    """At most one training runs at a time; what it makes of an older model version is thrown away."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._task: asyncio.Task[Trained] | None = None
        self._version: int | None = None
        self._before: TrainerState | None = None

    @property
    def busy(self) -> bool:
        """While it is, nobody else may use the trainer."""
        return self._task is not None and not self._task.done()

    async def result(
        self, model: ModelState, round_number: int, too_late: asyncio.Future[Any], start_from: TrainerState | None
    ) -> Trained | None:
        """The update for this version, or None if `too_late` came first; asking again goes on waiting for it.

        `start_from` is what the trainer is put back to before a new training, or None if it already stands there.
        """
        if self._task is not None and self._version != model.version:
            if not await self._ready_before(too_late):
                return None
            self._task.exception()  # nobody else asks how a training for an older model went
            self._task = None
            start_from = self._before
        if self._task is None:
            if start_from is not None:
                self.trainer.load_state(start_from)
            self._version, self._before = model.version, self.trainer.state()
            self._task = asyncio.create_task(self._train(model, round_number))
        if not await self._ready_before(too_late):
            return None
        task, self._task = self._task, None
        if task.exception() is not None:
            with suppress(Exception):  # a trainer that keeps its promise has done so already
                self.trainer.load_state(self._before or {})
        return task.result()

    async def _ready_before(self, too_late: asyncio.Future[Any]) -> bool:
        assert self._task is not None
        await asyncio.wait({self._task, too_late}, return_when=asyncio.FIRST_COMPLETED)
        return self._task.done()

    async def _train(self, model: ModelState, round_number: int) -> Trained:
        started = time.monotonic()
        try:
            result: TrainResult = await in_thread(lambda: self.trainer.train(model.vector, round_number))
            update = model.vector - result.model
            finite = bool(np.isfinite(update).all())
        except FedrepError as error:
            raise TrainingFailedError(str(error)) from error
        except Exception as error:  # user code may raise anything; the round is left, the silo goes on
            log.error("training_raised", round=round_number, exc_info=True)
            raise TrainingFailedError(f"{type(error).__name__}: {error}") from error
        if not finite:
            raise TrainingFailedError("the local update holds NaN or infinity; lower the learning rate or clip gradients")
        return Trained(model.version, update, result.loss, result.samples, time.monotonic() - started, self.trainer.state())


async def in_thread(function: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but the process can end while `function` runs: training may take hours, leaving must not."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

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
        with suppress(RuntimeError):  # the loop is closed: the daemon has left meanwhile
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=work, name="training", daemon=True).start()
    return await done
