"""One broken silo holds nobody up: deadlines here are days, so whatever waits for one hangs."""

from __future__ import annotations

import asyncio

import pytest

from fedrep.errors import FedrepError
from fedrep.wire.v1 import federation_pb2
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_silo.training import in_thread
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import SiloProcess
from tests.harness.scenarios import serve


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("broken"), silos=5, line_grace_seconds=0.5)


def statuses(rounds: list[pb.Round], silo: int) -> list[str]:
    return [row.silos[silo].status for row in rounds]


def start_training_for_ever(federation: Federation, run: str) -> SiloProcess:
    trainer = {"user_code": "stub_code:build", "user_code_dir": federation.folder, "options": {"number": 0, "seconds": 1e6}}
    return federation.start_silo_process(0, run, trainer=trainer)


async def until_only_it_is_waited_for(federation: Federation, run: str) -> pb.GetRunResponse:
    def only_it(status: pb.GetRunResponse) -> bool:
        return status.phase == "propose" and [silo.name for silo in status.summary.waiting.silos] == ["silo-0"]

    return await federation.until(only_it, run)


def test_a_killed_silo_is_waited_for_a_moment_and_never_until_the_deadline(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=3, quorum=4)
        victim = start_training_for_ever(federation, run)
        others = [asyncio.create_task(federation.daemon(n, run).run()) for n in range(1, 5)]
        waiting = await until_only_it_is_waited_for(federation, run)
        assert (waiting.open_round, waiting.phase) == (1, "propose")
        victim.kill()
        lost = await federation.until(lambda status: status.silos[0].state != "present", run)
        assert (lost.silos[0].state, lost.silos[0].reason) in (("lost", "connection lost"), ("left", "the run is over"))
        await asyncio.gather(*others)
        over = await federation.until(lambda status: status.summary.silos_present == 0, run)
        assert {(silo.state, silo.reason) for silo in over.silos} == {("left", "the run is over")}, "everyone went home"
        rounds = await federation.rounds(run)
        assert [row.outcome for row in rounds] == [federation_pb2.OUTCOME_APPLIED] * 3
        assert statuses(rounds, 0) == ["late", "absent", "absent"]
        assert [event.silo for event in await federation.events(run, "lost")] == ["silo-0"]
        (late,) = await federation.events(run, "late")
        assert late.text == "silo-0 did not propose: it lost its connection"

    serve(federation, scenario, "killed")


def test_a_trainer_that_raises_holds_nobody_up_neither_while_it_stays_nor_when_it_leaves(federation: Federation) -> None:
    def fail(round_number: int) -> None:
        raise RuntimeError("CUDA out of memory")

    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=4, quorum=4)
        broken = federation.daemon(0, run, StubTrainer(0, before_training=fail), training_failures=2)
        tasks = [asyncio.create_task(daemon.run()) for daemon in (broken, *(federation.daemon(n, run) for n in range(1, 5)))]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(ended[0], FedrepError)
        assert ended[1:] == [None] * 4
        rounds = await federation.rounds(run)
        assert [row.outcome for row in rounds] == [federation_pb2.OUTCOME_APPLIED] * 4
        assert statuses(rounds, 0)[:2] == ["abstained", "abstained"]

    serve(federation, scenario, "raises")


def test_a_silo_that_is_stopped_while_it_trains_holds_nobody_up(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=2, quorum=4)
        polite = start_training_for_ever(federation, run)
        others = [asyncio.create_task(federation.daemon(n, run).run()) for n in range(1, 5)]
        await until_only_it_is_waited_for(federation, run)
        await in_thread(polite.terminate)
        await asyncio.gather(*others)
        assert [row.outcome for row in await federation.rounds(run)] == [federation_pb2.OUTCOME_APPLIED] * 2
        assert [event.silo for event in await federation.events(run, "late")] == ["silo-0"]
        assert [event.silo for event in await federation.events(run, "left")] == ["silo-0"]

    serve(federation, scenario, "polite")


def test_a_silo_that_is_killed_and_started_again_sits_that_round_out_and_plays_the_next(federation: Federation) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, rounds=2, quorum=4)
        victim = start_training_for_ever(federation, run)
        others = [asyncio.create_task(federation.daemon(n, run).run()) for n in range(1, 5)]
        await until_only_it_is_waited_for(federation, run)
        victim.kill()
        again = asyncio.create_task(federation.daemon(0, run).run())
        await asyncio.gather(*others, again)
        rounds = await federation.rounds(run)
        assert [row.outcome for row in rounds] == [federation_pb2.OUTCOME_APPLIED] * 2
        assert statuses(rounds, 0)[0] == "late"

    serve(federation, scenario, "again")
