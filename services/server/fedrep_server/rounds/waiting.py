"""Callers come and go; the run does not: how calls wait cheaply, and how a change outlives the caller who asked for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_carried: set[asyncio.Task[Any]] = set()


def carried_through(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A caller that goes away must not cut a change in half: what has begun is finished without it."""

    @functools.wraps(method)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(method(*args, **kwargs))
        _carried.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(_ended)
        return await asyncio.shield(task)

    return whole


def _ended(task: asyncio.Task[Any]) -> None:
    _carried.discard(task)
    if not task.cancelled():
        task.exception()  # seen: nobody may be left to hear of it


class Bell:
    """Wakes everyone who waits: a waiting call costs one future, and looks at its condition when the bell rings."""

    def __init__(self) -> None:
        self._ring = asyncio.Event()

    def ring(self) -> None:
        rung, self._ring = self._ring, asyncio.Event()
        rung.set()

    async def wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        """Returns when the condition is over or the time is."""
        if not condition():
            return
        try:
            async with asyncio.timeout(seconds):
                while condition():
                    await self._ring.wait()
        except TimeoutError:
            return
