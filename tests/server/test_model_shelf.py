"""Models that silos fetch: however often they ask, one load at a time, and one for all who want the same."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedrep.errors import NotFoundError
from fedrep_server.calls import model_shelf
from fedrep_server.calls.model_shelf import ModelShelf
from fedrep_server.rounds.model_store import StoredModel

SECONDS = 60.0
DRIVER: Any = SimpleNamespace(manifest=SimpleNamespace(digest=lambda: b"run"))


class SlowCoordinator:
    """Loads nothing before it is told to, and knows ten versions."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun: list[int] = []
        self.at_once = self.most_at_once = 0

    async def model(self, _: Any, version: int) -> StoredModel:
        self.begun.append(version)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.go_on.wait()
            if version >= 10:
                raise NotFoundError("no such version")
            vector = np.full(10, version, np.float32)
            return StoredModel(version, vector, np.zeros_like(vector), b"hash", b"chain")
        finally:
            self.at_once -= 1


def played(scenario: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await scenario

    asyncio.run(in_time())


async def asked_and_gone(shelf: ModelShelf, *versions: int) -> None:
    """One call after the other, each ended by the next."""
    for version in versions:
        call = asyncio.create_task(shelf.model(DRIVER, version))
        for _ in range(3):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call,))


def test_whoever_asks_again_and_again_waits_for_the_load_that_is_under_way() -> None:
    async def scenario() -> None:
        coordinator: Any = SlowCoordinator()
        shelf = ModelShelf(coordinator)
        await asked_and_gone(shelf, *[3] * 50)
        last = asyncio.create_task(shelf.model(DRIVER, 3))
        coordinator.go_on.set()
        shelved = await last
        assert shelved.sha256 == hashlib.sha256(np.full(10, 3, "<f4").tobytes()).digest()
        assert coordinator.begun == [3]

    played(scenario())


def test_a_load_that_all_have_left_reaches_the_shelf() -> None:
    async def scenario() -> None:
        coordinator: Any = SlowCoordinator()
        shelf = ModelShelf(coordinator)
        await asked_and_gone(shelf, 3)
        coordinator.go_on.set()
        while not shelf._held:
            await asyncio.sleep(0)
        assert (await shelf.model(DRIVER, 3)).version == 3
        assert coordinator.begun == [3]

    played(scenario())


def test_versions_asked_for_in_turn_are_loaded_one_at_a_time_and_only_if_somebody_waits() -> None:
    async def scenario() -> None:
        coordinator: Any = SlowCoordinator()
        shelf = ModelShelf(coordinator)
        await asked_and_gone(shelf, *range(8))
        last = asyncio.create_task(shelf.model(DRIVER, 8))
        coordinator.go_on.set()
        assert (await last).version == 8
        assert (coordinator.begun, coordinator.most_at_once) == ([0, 8], 1)

    played(scenario())


def test_a_version_that_is_not_there_is_refused_to_all_and_asked_for_anew() -> None:
    async def scenario() -> None:
        coordinator: Any = SlowCoordinator()
        coordinator.go_on.set()
        shelf = ModelShelf(coordinator)
        for _ in range(2):
            ended = await asyncio.gather(*(shelf.model(DRIVER, 11) for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in ended] == [NotFoundError] * 3
        assert coordinator.begun == [11, 11]

    played(scenario())


def test_models_fetched_in_turn_are_hashed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(data: Any) -> Any:
        hashed.append(len(data))
        return hashlib.sha256(data)

    async def scenario() -> None:
        coordinator: Any = SlowCoordinator()
        coordinator.go_on.set()
        shelf = ModelShelf(coordinator)
        for version in (1, 2) * 5:
            await shelf.model(DRIVER, version)

    monkeypatch.setattr(model_shelf, "hashlib", SimpleNamespace(sha256=counted))
    played(scenario())
    assert len(hashed) == 2
