"""Callers come and go; the run does not: how calls wait cheaply, and how a change outlives the caller who asked for it."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
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


class Turn:
    """One at a time, in the order of asking. Whoever finds it free may take it without waiting."""

    def __init__(self) -> None:
        self._taken = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def is_free(self) -> bool:
        return not self._taken

    def take(self) -> None:
        if self._taken:
            raise AssertionError("it is another's turn")
        self._taken = True

    def give(self) -> None:
        """To whoever has waited longest; it is never free in between."""
        while self._waiters:
            following = self._waiters.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._taken = False

    async def come(self) -> None:
        """Returns when it is the caller's, who has to give it."""
        if self.is_free:
            return self.take()
        following = asyncio.get_running_loop().create_future()
        self._waiters.append(following)
        try:
            await following
        except asyncio.CancelledError:
            if following.done() and not following.cancelled():
                self.give()  # it was this one's already
            elif following in self._waiters:
                self._waiters.remove(following)
            raise

    async def __aenter__(self) -> None:
        await self.come()

    async def __aexit__(self, *_: object) -> None:
        self.give()


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
