"""Models that are fetched, kept at hand from one piece to the next: the run may have gone on meanwhile.

Whoever asks for a model that somebody is still being sent gets the same copy. Whoever asks while it is being loaded waits for the
same load. It goes on when they leave, since a thread cannot be called
back: so asking again and again costs one thread and one model, whoever asks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.model_store import StoredModel
from fedrep_server.rounds.run_driver import RunDriver

HELD_SECONDS = 30.0
FETCHED_SECONDS = 2.0  # after somebody has had the last piece; others are at it at the same time
MOST_HELD = 2  # each takes as much memory as the model that a run is at

Key = tuple[bytes, int, int | None]
Form = Callable[[StoredModel, RunDriver, int | None], memoryview]


def as_vector(model: StoredModel, _: RunDriver, __: int | None) -> memoryview:
    return model.vector.astype("<f4", copy=False).view(np.uint8).data


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ShelvedModel:
    """`data` is what its chunks are cut from, `sha256` the hash that goes with them. Whoever sends them holds on to all of it."""

    version: int
    parameters: int
    hash: bytes
    chain: bytes
    data: memoryview
    sha256: bytes


@dataclass(eq=False)
class _Load:
    task: asyncio.Task[ShelvedModel] | None = None
    waiting: int = 0


class ModelShelf:
    def __init__(self, coordinator: Coordinator, form: Form = as_vector) -> None:
        self._coordinator = coordinator
        self._form = form
        self._in_use: WeakValueDictionary[Key, ShelvedModel] = WeakValueDictionary()
        self._held: dict[Key, tuple[ShelvedModel, asyncio.TimerHandle]] = {}
        self._loads: dict[Key, _Load] = {}
        self._loading = asyncio.Lock()

    async def model(self, driver: RunDriver, version: int, last_round: int | None = None) -> ShelvedModel:
        """`last_round` goes into the form, if that says it: a copy that says another is another."""
        key = (driver.manifest.digest(), version, last_round)
        shelved = self._in_use.get(key) or await self._loaded(key, driver)
        self._put(key, shelved)
        return shelved

    def fetched(self, driver: RunDriver, version: int, last_round: int | None = None) -> None:
        """Somebody has all of it: a model that is held costs its run a copy in every round."""
        key = (driver.manifest.digest(), version, last_round)
        if key in self._held:
            self._put(key, self._held[key][0], FETCHED_SECONDS)

    async def _loaded(self, key: Key, driver: RunDriver) -> ShelvedModel:
        load = self._loads.setdefault(key, _Load())
        if load.task is None:
            load.task = asyncio.create_task(self._load(key, driver, load))
            load.task.add_done_callback(_seen)
        load.waiting += 1
        try:
            return await asyncio.shield(load.task)
        finally:
            load.waiting -= 1

    async def _load(self, key: Key, driver: RunDriver, load: _Load) -> ShelvedModel:
        """One at a time, and none that nobody waits for any more when its turn comes."""
        async with self._loading:
            try:
                if not load.waiting:
                    raise asyncio.CancelledError
                model = await self._coordinator.model(driver, key[1])
                shelved = await asyncio.to_thread(self._shelved, model, driver, key[2])
                self._in_use[key] = shelved
                self._put(key, shelved)
                return shelved
            finally:
                del self._loads[key]

    def _shelved(self, model: StoredModel, driver: RunDriver, last_round: int | None) -> ShelvedModel:
        data = self._form(model, driver, last_round)
        sha256 = hashlib.sha256(data).digest()
        return ShelvedModel(model.version, model.vector.size, model.hash, model.chain, data, sha256)

    def _put(self, key: Key, model: ShelvedModel, seconds: float = HELD_SECONDS) -> None:
        known = self._held.pop(key, None)
        if known is not None:
            known[1].cancel()
        while len(self._held) >= MOST_HELD:
            oldest = next(iter(self._held))
            self._held.pop(oldest)[1].cancel()
        timer = asyncio.get_running_loop().call_later(seconds, self._held.pop, key, None)
        self._held[key] = (model, timer)


def _seen(task: asyncio.Task[ShelvedModel]) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be left to hear of it
