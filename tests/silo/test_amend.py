"""Silos come and go for good: a run with real daemons over the boundary of an epoch."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedrep.errors import FedrepError
from fedrep.privacy import Ledger
from fedrep.wire import codec
from tests.harness.federation import Federation, StubTrainer
from tests.harness.processes import run_scenario
from tests.harness.scenarios import finish

ROUNDS = 5


def proposals_on(ledger: Path) -> list[int]:
    """How many rounds each ledger of the folder has."""
    return [Ledger.from_dict(json.loads(path.read_bytes().splitlines()[-1])).rounds for path in sorted(ledger.glob("*-*.json"))]


def test_a_silo_is_added_and_one_removed_over_the_boundary_of_an_epoch(tmp_path: Path, lines: list[Any]) -> None:
    federation = Federation.create(tmp_path, silos=5)
    first, *staying, newcomer = federation.names

    async def scenario() -> None:
        async with federation.serving() as server:
            old = await federation.create_run(rounds=ROUNDS, reshuffle_every=2, silos=federation.names[:4])
            amended = threading.Event()

            def until_amended(round_number: int) -> None:
                assert round_number > 1 or amended.wait(60)

            trainers = [StubTrainer(number, before_training=until_amended) for number in range(5)]
            daemons = [federation.daemon(number, trainer=trainers[number]) for number in range(5)]
            silos = asyncio.ensure_future(finish(*daemons[:4]))
            await federation.until(lambda status: status.open_round == 1)
            await federation.amend(add=[newcomer], remove=[first])
            waiting = await federation.status()
            assert waiting.summary.run == old
            assert waiting.amendment.manifest.from_round == 2
            late = asyncio.ensure_future(finish(daemons[4]))
            while not any(line["event"] == "waiting_for_run" for line in lines):
                await asyncio.sleep(0.02)
            amended.set()
            [removed, *others], [added] = await silos, await late
            assert (others, added) == ([None] * 3, None)
            assert isinstance(removed, FedrepError)
            assert f"took {first!r} off the list" in str(removed)

            status = await federation.status()
            new = status.summary.run
            assert new != old
            assert (status.summary.rounds_applied, status.summary.rounds_skipped) == (ROUNDS, 0)
            taken = [{silo.silo for silo in each.silos if silo.status == "on_time"} for each in await federation.rounds()]
            assert taken == [{first, *staying}] + [{*staying, newcomer}] * (ROUNDS - 1)
            held = server.coordinator.run_named("run").model.state
            for daemon in daemons[1:]:
                assert daemon.model is not None
                assert daemon.model.name == held.name
                assert daemon.state.journal.run == new.hex()
                assert daemon.state.journal.ledger_name == old.hex()
                assert daemon.state.memory.pending is None
                assert daemon.state.memory.given_up == 0
            spent = [proposals_on(federation.settings(number).ledger) for number in range(5)]
            assert spent == [[1], [ROUNDS], [ROUNDS], [ROUNDS], [ROUNDS - 1]]
            assert daemons[0].state.journal.run == old.hex()
            assert [event.text for event in await federation.events(kind="amended")] == [
                f"list of silos amended by admin from round 2 on: {newcomer} added; {first} removed"
            ]

        async with federation.serving() as server:
            driver = server.coordinator.run_named("run")
            assert (driver.run, server.coordinator.run_hashed(old)) == (new, driver)
            assert codec.signed_run_from_wire(status.manifest) == driver.signed
            leaver = federation.daemon(0)
            concluded = await leaver.connection.update(old, 1)
            assert (concluded.update.run, concluded.update.round) == (old, 1)
            for run in (old, new):
                with pytest.raises(FedrepError, match="off the list"):
                    await leaver.connection.update(run, 2)
                with pytest.raises(FedrepError, match="off the list"):
                    await leaver.connection.model(run, held.version)
            await leaver.connection.close()

    run_scenario(scenario())


def test_a_silo_that_missed_two_amendments_follows_the_chain_after_a_restart(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, silos=6, gather_seconds=1.0)

    async def scenario() -> None:
        async with federation.serving() as server:
            first = await federation.create_run(rounds=4, reshuffle_every=1, silos=federation.names[:4])
            driver = server.coordinator.run_named("run")
            await _play_one_round(federation, range(4))
            for newcomer in (4, 5):
                await federation.amend(add=[federation.names[newcomer]])
                await _play_one_round(federation, range(1, newcomer + 1))
            latest = driver.run
            assert [signed.manifest.from_round for signed in driver.chain] == [0, 2, 3]
        async with federation.serving() as server:
            await server.coordinator.run_named("run").go_on()
            daemons = [federation.daemon(number) for number in range(6)]
            assert [daemon.state.journal.run for daemon in daemons] == [first.hex()] + [latest.hex()] * 5
            assert await finish(*daemons) == [None] * 6
            assert daemons[0].state.journal.run == latest.hex()
            assert daemons[0].state.journal.ledger_name == first.hex()
            [last] = [each for each in await federation.rounds() if each.round == 4]
            assert (last.roster_size, last.reason) == (6, "")

    run_scenario(scenario())


async def _play_one_round(federation: Federation, numbers: Iterable[int]) -> None:
    """With these silos, which then stop; the run is left paused."""
    assert federation.running is not None
    driver = federation.running.coordinator.run_named("run")
    await driver.go_on()
    daemons, before = [federation.daemon(number) for number in numbers], driver.last_round
    silos = asyncio.ensure_future(finish(*daemons))
    while driver.open is None:
        assert not silos.done(), silos.result()
        await asyncio.sleep(0.02)
    await driver.pause("one round at a time")
    while driver.last_round == before:
        await asyncio.sleep(0.02)
    for daemon in daemons:
        daemon.stop()
    assert set(await silos) == {None}
