"""Who measures the model, and how often."""

from __future__ import annotations

import asyncio

import pytest

from tests.services.federation import Federation
from tests.services.scenarios import finish, serve


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


@pytest.mark.parametrize(("own", "evaluated"), [(None, [0, 2, 3]), (3, [0, 3])], ids=["as the run says", "its own setting"])
def test_evaluator_and_silos_evaluate_as_often_as_the_run_says_unless_told_otherwise(
    federation: Federation, own: int | None, evaluated: list[int]
) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, evaluation_interval=2)
        evaluator = federation.evaluator(run, evaluate_every=own)
        watching = asyncio.ensure_future(evaluator.run())
        await federation.until(lambda status: status.summary.HasField("accuracy"), run)
        assert await finish(*(federation.daemon(n, run, evaluate_every=own) for n in range(4))) == [None] * 4
        await watching
        await evaluator.leave()
        assert [event.round for event in await federation.events(run, "metrics")] == evaluated
        with_figures = [round.round for round in await federation.rounds(run) if round.silo_accuracy]
        assert with_figures == [number for number in (2, 3) if number % (own or 2) == 0]

    serve(federation, scenario, f"interval-{own}")
