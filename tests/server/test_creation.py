"""A run is created whole or not at all, found by its name from then on, and nobody else's model is its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrep.errors import ConflictError, StoreUnavailableError
from fedrep.protocol.manifests import SignedRunManifest
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.run_progress import RunState
from fedrep.wire.v1 import observer_pb2
from fedrep_server.rounds import waiting
from tests.protocol.played_run import PlayedRun
from tests.server.test_killed_server import Server, credentials, four_silos

__all__ = ["credentials"]

SECONDS = 60.0


class Pause:
    """The first write waits, so that whoever asked for it can go away meanwhile."""

    def __init__(self) -> None:
        self.written = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        self.written.set()
        assert self.go_on.wait(SECONDS)


async def interrupted(work: Coroutine[Any, Any, None], pause: Pause) -> None:
    """Its caller goes away after the first write; returns when nothing of it goes on."""
    call = asyncio.create_task(work)
    assert await asyncio.to_thread(pause.written.wait, SECONDS)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    carried = list(waiting._carried)
    pause.go_on.set()
    await asyncio.gather(*carried)


def other_model(run: PlayedRun) -> ServerModel:
    return ServerModel.initial(np.ones(run.run.parameters, np.float32), run.run.model_hash)


def test_a_run_whose_creator_goes_away_meanwhile_is_there(credentials: Path, tmp_path: Path) -> None:
    run, pause = four_silos(), Pause()
    server = Server(tmp_path, credentials, pause)
    signed, vector = SignedRunManifest(run.run, "admin", b"", b""), run.model.state.vector.tobytes()
    asyncio.run(interrupted(server.coordinator.create_run(signed, observer_pb2.RunOptions(), vector), pause))
    assert [driver.manifest for driver in server.coordinator.drivers] == [run.run]
    assert [stored.name for stored in server.store.runs()] == [run.run.name]
    server.store.close()


def test_a_run_whose_deletion_was_begun_is_gone_although_its_admin_has_gone(credentials: Path, tmp_path: Path) -> None:
    run, pause = four_silos(), Pause()
    server = Server(tmp_path, credentials, lambda: None)
    driver = server.create(run)
    driver.machine.progress = replace(driver.machine.progress, state=RunState.STOPPED)
    server.coordinator._add(driver)
    real = server.coordinator.store.delete_run

    def delete_run(*args: Any) -> None:
        real(*args)
        pause()

    vars(server.coordinator.store)["delete_run"] = delete_run
    asyncio.run(interrupted(server.coordinator.delete_run(driver), pause))
    assert server.coordinator.drivers == ()
    server.store.close()


def test_a_second_creation_that_is_refused_leaves_the_model_of_the_first(credentials: Path, tmp_path: Path) -> None:
    run = four_silos()
    server = Server(tmp_path, credentials)
    server.create(run)
    model = other_model(run)
    second = SignedRunManifest(replace(run.run, model_hash=model.state.hash), "admin", b"", b"")
    with pytest.raises(ConflictError, match="choose another name"):
        server.coordinator._created(second, observer_pb2.RunOptions(), model)
    assert server.resume(run).model.state.hash == run.run.model_hash
    server.store.close()


def test_a_model_that_the_database_does_not_name_is_not_taken(credentials: Path, tmp_path: Path) -> None:
    run = four_silos()
    server = Server(tmp_path, credentials)
    server.create(run)
    model = other_model(run)
    state = model.state
    server.coordinator.models.put(run.run.name, 0, state.vector, model.residual, state.hash, state.chain)
    driver = server.resume(run)
    assert driver.model.is_lost
    assert "not the one that the database names" in driver.state_reason
    with pytest.raises(StoreUnavailableError, match="not the one that the database names"):
        asyncio.run(server.coordinator.model(driver, 0))
    server.store.close()
