"""The lab plays what the service does: the same tiny problem, in the lab and through the real protocol."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.protocol import opening
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.messages import Outcome, Phase, Update
from fedrep.protocol.model_state import ServerModel, model_hash
from fedrep.protocol.server_round import ServerRound
from fedrep.quantize import RingFormat, open_mean
from fedrep_lab.adversary import Adversary
from fedrep_lab.cell import Cell
from fedrep_lab.methods import ring
from fedrep_lab.methods.fedrep import FedREP
from fedrep_lab.methods.interface import DROP, ORDER, PROPOSE, ROUND_UP, Matrix, Seating, Setting, Step
from fedrep_lab.shards import load_dataset, trainer_settings
from fedrep_lab.silos import build_silos
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


def seating(cell: Cell) -> dict[str, Any]:
    """What the cell's run manifest says about buffers."""
    drawn = Seating.of(cell, np.random.default_rng([cell.seed, ORDER]))
    return {"reshuffle_every": drawn.reshuffle_every, "buffer_seed": drawn.buffer_seed}


class Recorded:
    """The lab's training of a cell, round by round: the consensus sets and the models.

    Silos are trained one after the other, to the service's last bit: digits have pixels that are always dark, so some of an
    update's entries are equal, and a rounding error would decide which of them are chosen.
    """

    def __init__(self, cell: Cell) -> None:
        self.consensus: list[NDArray[np.int64]] = []
        training = Training(cell, build_silos(cell, None, engine="loop"))
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
        coordinates=round(cell.ratio * d), aggregator=cell.rule, model_hash=model_hash(lab.models[0]), **seating(cell),
    )  # fmt: skip
    federation.model = type(federation.model).initial(lab.models[0])
    consensus = []
    for number in range(1, cell.rounds + 1):
        model = federation.model.state.vector
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


Opened = tuple[list[int], int, float, RingFormat, list[float]]  # a buffer's ring sum, survivors, R, ring and mean


class Opening:
    """Every buffer that is opened, in the lab or by the protocol's server: both go through `open_mean`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lab: list[Opened] = []
        self.service: list[Opened] = []
        for module, seen in ((ring, self.lab), (opening, self.service)):
            monkeypatch.setattr(module, "open_mean", self._noting(seen))

    @staticmethod
    def _noting(seen: list[Opened]):  # type: ignore[no-untyped-def]  # it is open_mean
        def noted(total: NDArray[np.unsignedinteger], survivors: int, clip_range: float, form: RingFormat) -> Matrix:
            mean = open_mean(total, survivors, clip_range, form)
            seen.append((total.tolist(), survivors, clip_range, form, mean.tolist()))
            return mean

        return noted


class SideBySide:
    """The same made-up updates through the lab's FedREP and through the protocol, with the same draws; masks and all."""

    def __init__(self, cell: Cell, parameters: int) -> None:
        self.cell = cell
        self.lab = FedREP(Setting(cell, parameters, np.ones(cell.m, np.int64), Adversary(cell, np.random.default_rng(0))))
        self.model = np.zeros(parameters, np.float32)
        self.service = InProcess.of(
            cell.m, parameters, alpha=cell.alpha, buffer_size=cell.s, byzantine=cell.f, ring_bits=cell.ring_bits,
            downlink_bits=32, coordinates=round(cell.ratio * parameters), aggregator=cell.rule,
            initial_range=cell.initial_range, model_hash=model_hash(self.model), **seating(cell),
        )  # fmt: skip
        self.service.model = ServerModel.initial(self.model.copy())
        self._unsent: Matrix | None = None

    def play(self, number: int, clip_range: float, silent: frozenset[int] = frozenset()) -> tuple[Step, Update]:
        """Round `number` in both; `silent` silos propose and are not heard of again."""
        cell, federation = self.cell, self.service
        rows = self._unsent
        if rows is None:
            rows = np.random.default_rng([7, number]).standard_t(3, size=(cell.m, self.model.size)).astype(np.float32)
        step = self.lab.step(rows.copy(), number)
        self._unsent = rows if step.skipped else None
        assert step.indices is not None
        self.model[step.indices] -= step.values

        federation.updates = dict(zip(federation.run.silos, rows, strict=True))
        self._open_round(clip_range)
        for stage, act in ((PROPOSE, federation.propose), (ROUND_UP, federation.submit)):
            for position, silo in enumerate(federation.members):
                silo.rng = np.random.default_rng([cell.seed, stage, position, number])
                if stage == PROPOSE or position not in silent:
                    act(silo)
        if federation.round.phase is Phase.SUBMIT:
            federation.deadline()
        heard = [silo for position, silo in enumerate(federation.members) if position not in silent]
        for phase, act in ((Phase.CONFIRM, federation.confirm), (Phase.REVEAL, federation.reveal)):
            for silo in heard:
                if not federation.over:
                    act(silo)
            if federation.round.phase is phase:
                federation.deadline()
        return step, federation.finish()

    def _open_round(self, clip_range: float) -> None:
        federation = self.service
        manifest = federation.manifest = replace(federation.new_round(), clip_range=clip_range)
        keys = {name: federation.silos[name].signing_key.verify_key for name in manifest.names}
        federation.server = ServerRound(federation.run, manifest, keys, federation.rng)
        for silo in federation.members:
            federation.announce(silo)

    def memories(self) -> Matrix:
        return np.stack([silo.memory.residual for silo in self.service.members])


RING_CELL = Cell(m=9, f=1, s=2, alpha=0.5, ratio=0.3, rule="geometric_median", initial_range=2.0, seed=5)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_lab_and_the_protocol_open_the_same_ring_sums_and_train_the_same_bits(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Opening(monkeypatch)
    both = SideBySide(replace(RING_CELL, ring_bits=bits), parameters=120)
    clip_range = ClipRange(RING_CELL.initial_range)
    for number in range(1, 9):
        step, update = both.play(number, clip_range.value)
        assert update.outcome is Outcome.APPLIED
        result = both.service.round.result
        assert result is not None
        assert result.combined is not None
        assert step.indices is not None
        assert np.array_equal(result.indices, step.indices)
        assert result.combined.vector.tobytes() == step.values.tobytes()
        assert both.service.model.state.vector.tobytes() == both.model.tobytes()
        clip_range = clip_range.after_round(result.bits.values(), both.cell.f, both.service.run)
        assert step.measures["clip_range"] == clip_range.value
        assert np.array_equal(both.memories(), both.lab.memory)
    assert len(seen.lab) == 8 * 4
    assert seen.lab == seen.service
    assert len({opened[2] for opened in seen.lab}) > 1, "R moved"


def silent_silos(cell: Cell, number: int) -> frozenset[int]:
    return frozenset(np.flatnonzero(np.random.default_rng([cell.seed, DROP, number]).random(cell.m) < cell.dropout).tolist())


@pytest.mark.parametrize("dropout", [0.2, 0.35])
def test_the_lab_and_the_protocol_open_the_same_buffers_when_silos_fall_silent(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = replace(RING_CELL, m=16, s=3, f=0, rule="mean", ring_bits=16, dropout=dropout)
    opened = set()
    for seed in range(6):
        seen = Opening(monkeypatch)
        both = SideBySide(replace(cell, seed=seed), parameters=120)
        silent = silent_silos(both.cell, 1)
        step, update = both.play(1, cell.initial_range, silent)
        assert seen.lab == seen.service
        assert (update.outcome is Outcome.SKIPPED) == bool(step.measures.get("skipped"))
        opened.add((len(silent), len(seen.lab)))
    assert len(opened) > 2, "the draws differ in who falls silent and in what that leaves"
    assert (0 in {buffers for _, buffers in opened}) == (dropout > 0.3), "with too few holders left nothing opens"


def test_memories_stay_the_same_bits_through_rounds_that_are_skipped_or_open_some_buffers() -> None:
    cell = replace(RING_CELL, m=16, s=3, f=3, rule="mean", ring_bits=16, dropout=0.15, reshuffle_every=4, seed=1)
    both = SideBySide(cell, parameters=120)
    clip_range = ClipRange(cell.initial_range)
    seen = []
    for number in range(1, 15):
        silent = silent_silos(cell, number)
        assert cell.m - len(silent) >= 11, "with fewer than t holders no silo has proof, and all give up"
        step, update = both.play(number, clip_range.value, silent)
        assert step.skipped == (update.outcome is Outcome.SKIPPED)
        assert both.service.model.state.vector.tobytes() == both.model.tobytes()
        assert np.array_equal(both.memories(), both.lab.memory)
        result = both.service.round.result
        assert result is not None
        clip_range = clip_range.after_round(result.bits.values(), cell.f, both.service.run)
        seen.append((step.skipped, len(result.opened)))
    assert sum(skipped for skipped, _ in seen) > 2
    assert {4, 5} <= {opened for skipped, opened in seen if not skipped}
