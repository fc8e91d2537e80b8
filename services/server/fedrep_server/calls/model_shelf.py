"""Models that silos fetch piece by piece, kept at hand from one piece to the next: the run may have gone on meanwhile."""

from __future__ import annotations

import asyncio

from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.model_store import StoredModel
from fedrep_server.rounds.run_driver import RunDriver

HELD_SECONDS = 30.0
FETCHED_SECONDS = 2.0  # after somebody has had the last piece; others are at it at the same time
MOST_HELD = 2  # each takes as much memory as the model that a run is at

Key = tuple[bytes, int]


class ModelShelf:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._held: dict[Key, tuple[StoredModel, asyncio.TimerHandle]] = {}
        self._fetching = asyncio.Lock()

    async def model(self, driver: RunDriver, version: int, *, in_pieces: bool) -> StoredModel:
        if not in_pieces:
            return await self._coordinator.model(driver, version)
        key = (driver.manifest.digest(), version)
        if key not in self._held:
            async with self._fetching:  # one silo fetches an old version from the disk, the others find it here
                if key not in self._held:
                    self._put(key, await self._coordinator.model(driver, version))
        model, _ = self._held[key]
        self._put(key, model)
        return model

    def fetched(self, driver: RunDriver, version: int) -> None:
        """Somebody has all of it: a model that is held costs its run a copy in every round."""
        key = (driver.manifest.digest(), version)
        if key in self._held:
            self._put(key, self._held[key][0], FETCHED_SECONDS)

    def _put(self, key: Key, model: StoredModel, seconds: float = HELD_SECONDS) -> None:
        known = self._held.pop(key, None)
        if known is not None:
            known[1].cancel()
        while len(self._held) >= MOST_HELD:
            oldest = next(iter(self._held))
            self._held.pop(oldest)[1].cancel()
        timer = asyncio.get_running_loop().call_later(seconds, self._held.pop, key, None)
        self._held[key] = (model, timer)
