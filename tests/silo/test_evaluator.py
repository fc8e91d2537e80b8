"""Who measures the model, and how often."""

from __future__ import annotations

import asyncio
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fedrep.errors import NotFoundError, RefusedError
from fedrep.protocol.silo_effects import Join, Joined
from fedrep_trainers.trainer import Evaluation
from tests.harness.federation import Federation, StubTrainer
from tests.harness.scenarios import finish, serve


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("evaluator"), silos=4)


def test_the_evaluator_reports_every_version_and_keeps_the_best_model(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        evaluator = federation.evaluator(run)
        watching = asyncio.ensure_future(evaluator.run())
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        summary = await federation.summary(run)
        best = federation.settings("evaluator", run).state / "best.safetensors"
        assert best.exists()
        assert summary.accuracy > 0
        assert evaluator.model is not None
        assert evaluator.model.version == 3
        written = best.stat().st_mtime_ns
        again = federation.evaluator(run)
        await again.run()
        await again.leave()
        assert best.stat().st_mtime_ns == written, "a restart does not replace the best by one no better"

    serve(federation, scenario, "evaluated")


class FallingFigure(StubTrainer):
    """Its accuracy rises from version to version, its figure falls."""

    evaluations = 0

    def evaluate(self, model: Any) -> Evaluation:
        self.layout.require_vector(model)
        self.evaluations += 1
        figures = {"recall": 1 / self.evaluations}
        return Evaluation(loss=1.0, accuracy=min(1.0, self.evaluations / 10), samples=5, metrics=figures)


def test_the_figure_that_the_run_names_chooses_the_best_model_on_both_sides(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, best="recall", keep_models=10)
        evaluator = federation.evaluator(run, FallingFigure(1000))
        watching = asyncio.ensure_future(evaluator.run())
        await federation.until(lambda status: bool(status.summary.metrics), run)
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        status = await federation.status(run)
        assert status.summary.metrics["recall"] == pytest.approx(1 / evaluator._trainer.evaluations)  # type: ignore[attr-defined]
        assert [model.version for model in status.models if model.best] == [0]
        with safe_open(federation.settings("evaluator", run).state / "best.safetensors", "np") as file:
            assert json.loads(file.metadata()["fedrep"])["version"] == 0
        assert "recall 1.0000" in (await federation.events(run, "metrics"))[0].text

    serve(federation, scenario, "recall")


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_the_evaluators_figures_reach_its_trackers(federation: Federation, tmp_path: Path) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run)
        evaluator = federation.evaluator(run, FallingFigure(1000), tracking={"tensorboard": tmp_path})
        watching = asyncio.ensure_future(evaluator.run())
        await federation.until(lambda status: bool(status.summary.metrics), run)
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()

    serve(federation, scenario, "tracked")
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    read.Reload()
    assert read.Runs()["tracked"]["scalars"] == ["accuracy", "loss", "recall"]
    assert read.Scalars("tracked", "recall")[0].step == 0


@pytest.mark.parametrize(("own", "evaluated"), [(None, [0, 2, 3]), (3, [0, 3])], ids=["as the run says", "its own setting"])
def test_evaluator_and_silos_evaluate_as_often_as_the_run_says_unless_told_otherwise(
    federation: Federation, own: int | None, evaluated: list[int]
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, evaluation_interval=2)
        evaluator = federation.evaluator(run, evaluate_every=own)
        watching = asyncio.ensure_future(evaluator.run())
        await federation.until(lambda status: status.summary.HasField("accuracy"), run)

        def until_it_is_watched(round_number: int) -> None:
            """An evaluator that finds no round open looks again after a second: several rounds may have gone by."""
            while (evaluator.status["phase"], evaluator.status["round"]) != ("waiting for the update", round_number):
                time.sleep(0.02)

        watched = StubTrainer(0, before_training=until_it_is_watched)
        silos = [federation.daemon(n, run, watched if n == 0 else None, evaluate_every=own, report="all") for n in range(4)]
        assert await finish(*silos) == [None] * 4
        await watching
        await evaluator.leave()
        assert [event.round for event in await federation.events(run, "metrics")] == evaluated
        with_figures = [round.round for round in await federation.rounds(run) if round.silo_accuracy]
        assert with_figures == [number for number in (2, 3) if number % (own or 2) == 0]

    serve(federation, scenario, f"interval-{own}")


def test_an_evaluator_started_before_its_run_says_once_that_it_waits_and_follows_it(
    federation: Federation, lines: list[Any]
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        evaluator = federation.evaluator(run)
        ask, asked = evaluator.connection.join, []

        async def counted(*arguments: Any) -> Any:
            asked.append(arguments)
            return await ask(*arguments)

        evaluator.connection.join = counted  # type: ignore[method-assign, assignment]
        watching = asyncio.ensure_future(evaluator.run())
        while len(asked) < 3:
            await asyncio.sleep(0.05)
        await federation.create_run(run, rounds=1)
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        assert evaluator.model is not None
        assert evaluator.model.version == 1

    serve(federation, scenario, "to-come")
    assert [line["run"] for line in lines if line["event"] == "waiting_for_run"] == ["to-come"]


def test_an_evaluator_whose_run_never_comes_gives_up_with_the_reason(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        evaluator = federation.evaluator(run, give_up_after=0.5)
        with pytest.raises(NotFoundError, match="no run named 'never'"):
            await evaluator.run()
        await evaluator.leave()

    serve(federation, scenario, "never")


def test_an_evaluator_that_comes_too_late_for_a_model_asks_for_the_newest(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        evaluator = federation.evaluator(run)
        fetch, asked = evaluator.connection.model, []

        async def gone_at_first(run: bytes, version: int) -> Any:
            asked.append(version)
            if len(asked) == 1:
                raise NotFoundError("version 0 is not kept on this server", reason="UNKNOWN_MODEL")
            return await fetch(run, version)

        monkeypatch.setattr(evaluator.connection, "model", gone_at_first)
        watching = asyncio.ensure_future(evaluator.run())
        while len(asked) < 2:
            await asyncio.sleep(0.05)
        assert await finish(*(federation.daemon(n, run) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        assert evaluator.model is not None
        assert evaluator.model.version == 1

    serve(federation, scenario, "moved-on")


def test_an_evaluator_measures_no_other_run_and_no_other_model_than_is_named(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=1)
        another, deceived = federation.evaluator("mine"), federation.evaluator(run)
        join, fetch = another.connection.join, deceived.connection.model

        async def into_another_run(_: Join) -> Joined:
            return await join(Join(run, None))

        async def another_model(run: bytes, version: int) -> Any:
            version, vector = await fetch(run, version)
            return version, vector + 1

        monkeypatch.setattr(another.connection, "join", into_another_run)
        monkeypatch.setattr(deceived.connection, "model", another_model)
        for evaluator, says in ((another, "asked for run 'mine'"), (deceived, "another model than it names")):
            with pytest.raises(RefusedError, match=says):
                await evaluator.run()
            assert evaluator.model is None
            await evaluator.leave()

    serve(federation, scenario, "named")
