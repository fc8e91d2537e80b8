"""An older model comes back: real daemons take it on an admin's signed word, also after a restart, and on nobody else's (N5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrep.errors import RefusedError
from fedrep.protocol.silo_effects import Joined
from fedrep_silo.daemon import SiloDaemon
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario
from tests.harness.scenarios import finish

ROLLED_BACK_IN = 3


@asynccontextmanager
async def held_in_third_round(federation: Federation) -> AsyncIterator[list[SiloDaemon]]:
    """Everyone has submitted in round 3, and nobody hears of the survivors before the block has ended."""
    assert federation.running is not None
    driver = federation.running.coordinator.run_named("run")
    daemons, held = [federation.daemon(number) for number in range(4)], asyncio.Event()

    def hold(daemon: SiloDaemon) -> None:
        survivors = daemon.connection.survivors

        async def later(*arguments: Any) -> Any:
            if arguments[1] == ROLLED_BACK_IN:
                await held.wait()
            return await survivors(*arguments)

        daemon.connection.survivors = later  # type: ignore[method-assign, assignment]

    for daemon in daemons:
        hold(daemon)
    silos = asyncio.ensure_future(finish(*daemons))
    while driver.open is None or (driver.open.number, driver.open.machine.phase.value) != (ROLLED_BACK_IN, "confirm"):
        assert not silos.done(), silos.result()
        await asyncio.sleep(0.02)
    try:
        yield daemons
    except asyncio.CancelledError:
        raise
    else:
        held.set()
        ended = await silos
        assert ended == [None] * 4, ended
    finally:
        silos.cancel()
        with suppress(asyncio.CancelledError):
            await silos


async def check_that_all_hold_the_servers_model(federation: Federation, daemons: list[SiloDaemon], version: int) -> None:
    assert federation.running is not None
    held = federation.running.coordinator.run_named("run").model.state
    assert held.version == version
    for daemon in daemons:
        assert daemon.model is not None
        assert daemon.model.name == held.name
        assert np.array_equal(daemon.model.vector, held.vector)


def test_a_run_that_was_rolled_back_goes_on_with_its_silos(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=4)

    async def scenario() -> None:
        async with federation.serving() as server:
            await federation.create_run(rounds=5, keep_models=10)
            async with held_in_third_round(federation) as daemons:
                await federation.roll_back(1)
            driver = server.coordinator.run_named("run")
            first, back = [await server.coordinator.model(driver, version) for version in (1, 3)]
            assert first.hash == back.hash
            assert first.chain != back.chain
            outcomes = [each.reason for each in await federation.rounds()]
            assert outcomes == ["", "", "the run was rolled back", "", ""]
            await check_that_all_hold_the_servers_model(federation, daemons, 5)
            said = [event.text for event in await federation.events(kind="rolled_back")]
            assert said == ["rolled back to the parameters of version 1 by admin"]
            assert await federation.events(kind="problem") == []

    run_scenario(scenario())


class KilledError(Exception):
    pass


def deaf_to_orders(daemon: SiloDaemon) -> SiloDaemon:
    """The server's answers reach it without the admin's word, as if there were none."""
    join = daemon.connection.join

    async def without(*arguments: Any) -> Joined:
        return replace(await join(*arguments), rollback=None)

    daemon.connection.join = without  # type: ignore[method-assign, assignment]
    return daemon


@pytest.mark.parametrize("deaf", [False, True])
def test_after_a_restart_silos_take_the_older_model_with_the_order_and_stop_without_it(tmp_path: Path, deaf: bool) -> None:
    federation = Federation.create(tmp_path, silos=4)

    async def scenario() -> None:
        async with federation.serving() as server:
            await federation.create_run(rounds=5, keep_models=10, quorum=3)
            with suppress(KilledError):
                async with held_in_third_round(federation):
                    await server.coordinator.run_named("run").pause("look")  # no round starts before the restart
                    await federation.roll_back(1)
                    raise KilledError
        async with federation.serving() as server:
            await server.coordinator.run_named("run").go_on()
            if deaf:
                federation.not_waiting_for(3)
            daemons = [federation.daemon(number) for number in range(4)]
            assert all(daemon.state.journal.last_round == ROLLED_BACK_IN for daemon in daemons)
            assert [daemon.model.version for daemon in daemons if daemon.model is not None] == [2] * 4
            if deaf:
                deaf_to_orders(daemons[3])
            *others, last = await finish(*daemons)
            assert others == [None] * 3
            if not deaf:
                assert last is None
                await check_that_all_hold_the_servers_model(federation, daemons, 5)
                return
            assert isinstance(last, RefusedError)
            assert last.reason == "MODEL_DIVERGED"
            assert "no admin signed a rollback" in str(last)
            assert "fedrep run rollback" in str(last)
            assert daemons[3].model is not None
            assert daemons[3].model.version == 2
            assert daemons[3].state.journal.last_round == ROLLED_BACK_IN
            [said] = await federation.events(kind="problem")
            assert (said.silo, said.round) == ("silo-3", 4)
            await check_that_all_hold_the_servers_model(federation, daemons[:3], 5)

    run_scenario(scenario())
