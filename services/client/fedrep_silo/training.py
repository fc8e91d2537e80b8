"""Local training in a thread of its own: the silo goes on speaking meanwhile, and leaving never waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np
import structlog

from fedrep.errors import FedrepError
from fedrep.protocol.silo_effects import Train, Trained, TrainingFailed
from fedrep.protocol.silo_state import TrainerState
from fedrep_trainers.trainer import Trainer, TrainResult

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Training:
    """Carries out `Train`, one at a time. `busy` while nobody else may use the trainer."""

    def __init__(self, trainer: Trainer, stands_at: TrainerState) -> None:
        self.trainer = trainer
        self.busy = False
        self._stands_at: TrainerState | None = stands_at

    async def carry_out(self, train: Train) -> Trained | TrainingFailed:
        self.busy = True
        try:
            return await self._train(train)
        except FedrepError as error:
            return TrainingFailed(train.model.version, str(error))
        except Exception as error:  # user code may raise anything; the round is left, the silo goes on
            log.error("training_raised", round=train.round, exc_info=True)
            return TrainingFailed(train.model.version, f"{type(error).__name__}: {error}")
        finally:
            self.busy = False

    async def _train(self, train: Train) -> Trained | TrainingFailed:
        started, model = time.monotonic(), train.model
        standing, self._stands_at = self._stands_at, None
        if standing is not train.start_from:
            self.trainer.load_state(train.start_from)
        result: TrainResult = await in_thread(lambda: self.trainer.train(model.vector, train.round))
        update = model.vector - result.model
        if not np.isfinite(update).all():
            text = "the local update holds NaN or infinity; lower the learning rate or clip gradients"
            return TrainingFailed(model.version, text)
        self._stands_at = self.trainer.state()
        seconds = time.monotonic() - started
        return Trained(model.version, update, self._stands_at, result.loss, result.samples, seconds)


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
