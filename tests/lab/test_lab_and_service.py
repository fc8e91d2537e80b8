"""The lab plays what the service does: the same tiny problem, in the lab and through the real protocol."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.messages import Outcome
from fedrep_lab.cell import Cell
from fedrep_lab.methods.interface import ORDER, PROPOSE, Matrix, Step
from fedrep_lab.silos import build_silos, load_dataset, trainer_settings
from fedrep_lab.simulation import Training
from fedrep_runtime.run_config import AggregatorConfig
from fedrep_trainers.build import image_trainer
from fedrep_trainers.layout import Vector
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.trainer import TrainResult
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario
from tests.protocol.federation import Federation as InProcess

ROUNDS = 5
CELL = Cell(
    dataset="digits", model="mlp", model_options={"hidden": [12]}, m=6, f=0, s=2, ratio=0.2, alpha=0.0, rule="mean",
    interval=2, rate=0.5, rounds=ROUNDS, decay_after=0.6, evaluations=1, evaluation_samples=50,
)  # fmt: skip


class Recorded:
    """The lab's training of a cell, round by round: the consensus sets and the models."""

    def __init__(self, cell: Cell) -> None:
        self.consensus: list[NDArray[np.int64]] = []
        training = Training(cell, build_silos(cell, None))
        self.models = [training.model]
        step = training.method.step

        def recorded(updates: Matrix, number: int) -> Step:
            done = step(updates, number)
            assert done.indices is not None
            self.consensus.append(done.indices)
            return done

        training.method.step = recorded  # type: ignore[method-assign, assignment]
        for number in range(1, cell.rounds + 1):
            assert training.advance(number)
            self.models.append(training.model)


def trainers(cell: Cell) -> list[TorchTrainer]:
    """As silos would build them from their settings."""
    dataset = load_dataset(cell.dataset, None)
    own = {"model": cell.model, "model_options": {"hidden": (12,)}, "threads": 1}
    return [image_trainer(trainer_settings(cell, dataset, silo, "cpu").model_copy(update=own), dataset) for silo in range(cell.m)]


def test_the_lab_and_a_federation_over_grpc_agree_on_coordinates_and_model(tmp_path: Path) -> None:
    lab = Recorded(CELL)
    seen: dict[int, Vector] = {}

    class Noting:
        """A silo's trainer that notes the model each round starts from."""

        def __init__(self, inner: TorchTrainer) -> None:
            self._inner = inner
            self.layout, self.initial, self.evaluate = inner.layout, inner.initial, inner.evaluate
            self.state, self.load_state = inner.state, inner.load_state

        def train(self, model: Vector, round_number: int) -> TrainResult:
            seen[round_number] = model.copy()
            return self._inner.train(model, round_number)

    silos = trainers(CELL)
    federation = Federation.create(tmp_path, silos=CELL.m)

    async def scenario() -> None:
        async with federation.serving() as server:
            await federation.create_run(
                trainer=silos[0], rounds=ROUNDS, fraction=CELL.ratio, alpha=0.0, buffer_size=CELL.s, ring_bits=32,
                downlink_bits=32, initial_range=4.0, aggregator=AggregatorConfig(name="mean"),
            )  # fmt: skip
            daemons = [federation.daemon(n, trainer=Noting(trainer)) for n, trainer in enumerate(silos)]
            await federation.run_silos(daemons)
            assert (await federation.summary()).rounds_applied == ROUNDS
            seen[ROUNDS + 1] = server.coordinator.run_named("run").model.state.vector
        await asyncio.sleep(0)

    run_scenario(scenario())
    models = [seen[number] for number in range(1, ROUNDS + 2)]
    assert np.array_equal(models[0], lab.models[0])
    for number in range(ROUNDS):
        # A model changes on the consensus set and nowhere else.
        assert np.array_equal(np.flatnonzero(models[number] != models[number + 1]), lab.consensus[number])
        np.testing.assert_allclose(models[number + 1], lab.models[number + 1], atol=1e-5)


def test_the_lab_and_the_protocol_agree_with_decoys_buffers_and_a_robust_rule() -> None:
    cell = replace(CELL, m=9, f=1, s=2, alpha=0.5, rule="geometric_median", seed=3)
    lab = Recorded(cell)
    silos = trainers(cell)
    d = silos[0].layout.size
    federation = InProcess.of(
        cell.m, d, alpha=cell.alpha, buffer_size=cell.s, byzantine=cell.f, ring_bits=32, downlink_bits=32, initial_range=4.0,
        coordinates=round(cell.ratio * d), aggregator=cell.rule,
    )  # fmt: skip
    federation.model = type(federation.model).initial(lab.models[0])
    consensus = []
    for number in range(1, cell.rounds + 1):
        model = federation.model.state.vector
        federation.rng = np.random.default_rng([cell.seed, ORDER, number])
        federation.updates = {
            name: model - silos[position].train(model, number).model for position, name in enumerate(federation.run.silos)
        }
        for position, name in enumerate(federation.run.silos):
            federation.silos[name].rng = np.random.default_rng([cell.seed, PROPOSE, position, number])
        assert federation.play().outcome is Outcome.APPLIED
        assert federation.round.result is not None
        consensus.append(federation.round.result.indices)
        np.testing.assert_allclose(federation.model.state.vector, lab.models[number], atol=1e-5)
    for ours, theirs in zip(lab.consensus, consensus, strict=True):
        assert np.array_equal(ours, theirs)
