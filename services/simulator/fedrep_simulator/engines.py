"""Where the silos of a simulation train: here, one after the other. `ray_engine` trains them on a cluster, to the same result."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import SettingsError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.silo_effects import Train
from fedrep.protocol.silo_state import TrainerState
from fedrep_simulator.desks import Desk, RecordCost, Result
from fedrep_trainers.layout import ModelLayout, Vector
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Evaluation, ModelExporter, Trainer

Build = Callable[[TrainerSettings], Trainer]
Progress = Callable[[int], None]
Arrays = dict[str, NDArray[np.generic]]


class Engine(Protocol):
    """All silos' trainers, and the judge: a trainer with all the data, as the evaluator of a federation has."""

    @property
    def layout(self) -> ModelLayout: ...
    @property
    def makes_tensors(self) -> bool:
        """Whether the model is a torch module's."""
        ...

    def initial(self) -> Vector: ...
    def states(self) -> Mapping[SiloName, TrainerState]:
        """Of every silo's trainer, before anything was trained."""
        ...

    def train(self, orders: Mapping[SiloName, Train]) -> Mapping[SiloName, Result]: ...
    def open_books(self, ledgers: Mapping[SiloName, Mapping[str, Any]]) -> None:
        """As they were when the simulation was interrupted."""
        ...

    def costs(self) -> Mapping[SiloName, RecordCost]:
        """What every silo's records have cost so far; empty where nobody keeps a budget for them."""
        ...

    def evaluate(self, model: Vector) -> Evaluation: ...
    def central(self, rounds: int, progress: Progress) -> Evaluation:
        """The same model and as many rounds of training on all data in one place."""
        ...

    def export(self, model: Vector) -> Arrays: ...
    def close(self) -> None: ...


def settings_of(settings: TrainerSettings, index: int, count: int) -> TrainerSettings:
    """One silo's: its shard of the data, and the same of everything else."""
    return settings.model_copy(update={"shard_index": index, "shard_count": count})


class Judge:
    """The trainer with all the data; it is never one of the silos'."""

    def __init__(self, build: Build, settings: TrainerSettings) -> None:
        self._build = build
        self._settings = settings_of(settings, 0, 1).model_copy(update={"privacy": None})  # nothing of it leaves anybody
        self._trainer = build(self._settings)
        self.layout = self._trainer.layout
        # By name: asking torch would load it.
        self.makes_tensors = any(kind.__name__ == "TorchTrainer" for kind in type(self._trainer).__mro__)

    def initial(self) -> Vector:
        return self._trainer.initial()

    def evaluate(self, model: Vector) -> Evaluation:
        return self._trainer.evaluate(model)

    def central(self, rounds: int, progress: Progress) -> Evaluation:
        trainer = self._build(self._settings)
        model = trainer.initial()
        for number in range(1, rounds + 1):
            model = trainer.train(model, number).model
            progress(number)
        return trainer.evaluate(model)

    def export(self, model: Vector) -> Arrays:
        if isinstance(self._trainer, ModelExporter):
            return self._trainer.export(model)
        return dict(self.layout.split(model))


class TrainingThread:
    """A loop of its own for the desks, which a notebook's running loop cannot give."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="silos", daemon=True)
        self._thread.start()

    def carry_out(self, desk: Desk, order: Train) -> Result:
        return asyncio.run_coroutine_threadsafe(desk.carry_out(order), self._loop).result()

    def close(self) -> None:
        """A training that was interrupted ends in its own thread, and nobody waits for it."""
        asyncio.run_coroutine_threadsafe(self._abandon(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _abandon(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class LocalEngine:
    """In this process. Trainers may use the process's own random numbers, so only one trains at a time."""

    def __init__(self, build: Build, settings: TrainerSettings, silos: Sequence[SiloName]) -> None:
        self._judge = Judge(build, settings)
        self._private = settings.privacy is not None
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedrep-simulation-")))
            self._desks = {
                name: Desk(build(settings_of(settings, index, len(silos))), folder / name, settings.privacy)
                for index, name in enumerate(silos)
            }
            require_one_layout({name: desk.layout for name, desk in self._desks.items()}, self._judge.layout)
            self._thread = TrainingThread()
            stack.callback(self._thread.close)
            self._open = stack.pop_all()

    @property
    def layout(self) -> ModelLayout:
        return self._judge.layout

    @property
    def makes_tensors(self) -> bool:
        return self._judge.makes_tensors

    def initial(self) -> Vector:
        return self._judge.initial()

    def states(self) -> Mapping[SiloName, TrainerState]:
        return {name: desk.first_state for name, desk in self._desks.items()}

    def train(self, orders: Mapping[SiloName, Train]) -> Mapping[SiloName, Result]:
        return {name: self._thread.carry_out(self._desks[name], order) for name, order in orders.items()}

    def open_books(self, ledgers: Mapping[SiloName, Mapping[str, Any]]) -> None:
        for name, ledger in ledgers.items():
            self._desks[name].open_books(ledger)

    def costs(self) -> Mapping[SiloName, RecordCost]:
        return {name: desk.cost() for name, desk in self._desks.items()} if self._private else {}

    def evaluate(self, model: Vector) -> Evaluation:
        return self._judge.evaluate(model)

    def central(self, rounds: int, progress: Progress) -> Evaluation:
        return self._judge.central(rounds, progress)

    def export(self, model: Vector) -> Arrays:
        return self._judge.export(model)

    def close(self) -> None:
        self._open.close()


def require_one_layout(layouts: Mapping[SiloName, ModelLayout], expected: ModelLayout) -> None:
    for name, layout in layouts.items():
        difference = layout.difference(expected)
        if difference is not None:
            raise SettingsError(
                f"the trainer of {name} has another model than the one made with all the data: {difference}. The model must not "
                "depend on the shard; take the number of classes and inputs from what all silos know"
            )


def names_of(silos: Iterable[str]) -> tuple[SiloName, ...]:
    return tuple(SiloName(name) for name in silos)
