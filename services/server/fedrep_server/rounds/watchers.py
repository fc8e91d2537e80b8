"""Wakes those who watch a run whenever something about it was written. They then read from the store, so none is ever behind."""

from __future__ import annotations

import asyncio


class Watchers:
    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Remember the loop that watchers live on; writes happen in threads."""
        self._loop = asyncio.get_running_loop()

    def changed(self, run: str) -> None:
        event = self._events.pop(run, None)
        if event is not None:
            event.set()

    def changed_from_thread(self, run: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.changed, run)

    async def wait(self, run: str, seconds: float) -> bool:
        """True if something was written within that time. Take the event before reading, so that nothing slips between."""
        event = self._events.setdefault(run, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        return True
