"""Silos that train on a Ray cluster: as many workers as it has room for, each with the share of a GPU that a silo needs.

Where they run is Ray's decision. A worker keeps the trainers of its silos, so data are loaded once; a trainer's state travels
with every order and comes back with the result. On a cluster the folder of the user's code and the data must be there on every
machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedrep.errors import FedrepError, SettingsError
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.silo_effects import Train
from fedrep.protocol.silo_state import TrainerState
from fedrep_runtime.ray_cluster import ray_cluster
from fedrep_simulator.desks import Desk, RecordCost, Result
from fedrep_simulator.engines import Arrays, Build, Judge, Progress, TrainingThread, require_one_layout, settings_of
from fedrep_trainers.layout import ModelLayout, Vector
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Evaluation


class Worker:
    """One process of the cluster: the trainers of some silos, and the judge's in one of them."""

    def __init__(self, build: Build, settings: TrainerSettings) -> None:
        self._build = build
        self._settings = settings
        self._desks: dict[SiloName, Desk] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="fedrep-simulation-")
        self._thread = TrainingThread()
        self._judge: Judge | None = None

    def adopt(self, silo: SiloName, index: int, count: int) -> tuple[ModelLayout, TrainerState]:
        trainer = self._build(settings_of(self._settings, index, count))
        desk = self._desks[silo] = Desk(trainer, Path(self._folder.name) / silo, self._settings.privacy)
        return desk.layout, desk.first_state

    def train(self, silo: SiloName, order: Train) -> Result:
        return self._thread.carry_out(self._desks[silo], order)

    def open_books(self, silo: SiloName, ledger: Mapping[str, Any]) -> None:
        self._desks[silo].open_books(ledger)

    def cost(self, silo: SiloName) -> RecordCost:
        return self._desks[silo].cost()

    def judge(self) -> tuple[ModelLayout, Vector, bool]:
        self._judge = Judge(self._build, self._settings)
        return self._judge.layout, self._judge.initial(), self._judge.makes_tensors

    def evaluate(self, model: Vector) -> Evaluation:
        assert self._judge is not None
        return self._judge.evaluate(model)

    def central(self, rounds: int) -> Evaluation:
        assert self._judge is not None
        return self._judge.central(rounds, lambda _: None)

    def export(self, model: Vector) -> Arrays:
        assert self._judge is not None
        return self._judge.export(model)


class RayEngine:
    def __init__(self, build: Build, settings: TrainerSettings, silos: Sequence[SiloName], gpus_per_silo: float = 0.0) -> None:
        self._private = settings.privacy is not None
        with ExitStack() as stack:
            self._ray = stack.enter_context(ray_cluster())
            count = workers_for(self._ray.cluster_resources(), len(silos), gpus_per_silo)
            actor = self._ray.remote(num_cpus=1, num_gpus=gpus_per_silo)(Worker)
            workers = [actor.remote(build, settings) for _ in range(count)]
            self._judge = workers[0]
            self._of = {silo: workers[index % count] for index, silo in enumerate(silos)}
            self._layout, self._initial, self._tensors = self._get(self._judge.judge.remote())
            adopted = [self._of[silo].adopt.remote(silo, index, len(silos)) for index, silo in enumerate(silos)]
            made: list[tuple[ModelLayout, TrainerState]] = self._get(adopted)
            require_one_layout({silo: layout for silo, (layout, _) in zip(silos, made, strict=True)}, self._layout)
            self._states = {silo: state for silo, (_, state) in zip(silos, made, strict=True)}
            self._open = stack.pop_all()

    @property
    def layout(self) -> ModelLayout:
        layout: ModelLayout = self._layout
        return layout

    @property
    def makes_tensors(self) -> bool:
        tensors: bool = self._tensors
        return tensors

    def initial(self) -> Vector:
        vector: Vector = self._initial.copy()
        return vector

    def states(self) -> Mapping[SiloName, TrainerState]:
        return self._states

    def train(self, orders: Mapping[SiloName, Train]) -> Mapping[SiloName, Result]:
        results = self._get([self._of[silo].train.remote(silo, order) for silo, order in orders.items()])
        return dict(zip(orders, results, strict=True))

    def open_books(self, ledgers: Mapping[SiloName, Mapping[str, Any]]) -> None:
        self._get([self._of[silo].open_books.remote(silo, ledger) for silo, ledger in ledgers.items()])

    def costs(self) -> Mapping[SiloName, RecordCost]:
        if not self._private:
            return {}
        return dict(zip(self._of, self._get([worker.cost.remote(silo) for silo, worker in self._of.items()]), strict=True))

    def evaluate(self, model: Vector) -> Evaluation:
        seen: Evaluation = self._get(self._judge.evaluate.remote(model))
        return seen

    def central(self, rounds: int, progress: Progress) -> Evaluation:
        seen: Evaluation = self._get(self._judge.central.remote(rounds))
        progress(rounds)
        return seen

    def export(self, model: Vector) -> Arrays:
        arrays: Arrays = self._get(self._judge.export.remote(model))
        return arrays

    def close(self) -> None:
        self._open.close()

    def _get(self, waited_for: Any) -> Any:
        with _own_words(self._ray):
            return self._ray.get(waited_for)


@contextmanager
def _own_words(ray: Any) -> Iterator[None]:
    """What a worker raised, without the traceback that Ray puts around it."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, FedrepError):
            raise cause from None
        raise


def workers_for(resources: Mapping[str, float], silos: int, gpus_per_silo: float) -> int:
    """As many as the cluster holds at once, and no more than there are silos; the others wait their turn."""
    room = int(resources.get("CPU", 1))
    if gpus_per_silo:
        gpus = resources.get("GPU", 0.0)
        if gpus < gpus_per_silo:
            raise SettingsError(
                f"the cluster has {gpus:g} GPUs, and a silo is to have {gpus_per_silo:g}: lower --gpus-per-silo, or leave it "
                "out to train on processors"
            )
        room = min(room, int(gpus / gpus_per_silo))
    return max(1, min(silos, room))
