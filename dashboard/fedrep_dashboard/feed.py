"""Follows runs on the server: the whole history once, then every event, through restarts of either side.

A page asks the feed, not the server, so a hundred open pages cost the server one stream per run, and the last known
figures stay on the screen while the server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from itertools import takewhile

import grpc
import structlog

from fedrep.errors import FedrepError
from fedrep.wire.v1 import observer_pb2
from fedrep_dashboard import schema, view
from fedrep_dashboard.history import History
from fedrep_dashboard.observer import Observer, ServerRefusedError, ServerUnreachableError

KEPT_EVENTS = 2000
MOST_FEEDS = 64
NEWEST = 16
RETRY_SECONDS = 1.0
REOPEN_SECONDS = 30.0  # a renewed certificate is presented by a new channel only
PATIENCE_SECONDS = 3.0
AMEND_SECONDS, AMEND_TIMES, AMENDED_ROUNDS = 2.0, 3, 8

log = structlog.get_logger()


@dataclass(frozen=True)
class Item:
    """One event and the round it changed, 0 if none."""

    event: schema.EventRow
    round: int


class RunFeed:
    def __init__(self, observer: Observer, name: str) -> None:
        self.name = name
        self.history = History()
        self.items: deque[Item] = deque(maxlen=KEPT_EVENTS)
        self.position = 0
        self.amended = 0  # rounds changed without an event, counted
        self.amendments: deque[tuple[int, int]] = deque(maxlen=KEPT_EVENTS)  # (count, round)
        self.generation = 0  # grows when the server's history is not the one we knew
        self.summary: observer_pb2.RunSummary | None = None
        self.answer: observer_pb2.GetRunResponse | None = None
        self.used_at = time.monotonic()
        self.watchers = 0
        self._observer = observer
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._followed = b""  # hash of the run whose history this is
        self._unsettled = 0
        self._task = asyncio.create_task(self._follow())
        self._amending = asyncio.create_task(self._amend())

    @property
    def oldest(self) -> int:
        """Resuming is possible after this position or any later one."""
        return self.items[0].event.position - 1 if self.items else self.position

    async def ready(self) -> None:
        """Until the history is loaded; raises if the server does not know the run or cannot be reached."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def changed(self) -> asyncio.Event:
        """Set when something is taken in after this was read."""
        return self._changed

    async def close(self) -> None:
        for task in (self._task, self._amending):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def over(self) -> bool:
        """Whether the run's last round has ended."""
        return self.summary is not None and self.summary.state in ("finished", "stopped")

    @property
    def ended(self) -> bool:
        return self._task.done()

    def run(self) -> schema.Run:
        assert self.summary is not None  # `ready` was awaited
        alerts = [item.event for item in self.items if item.event.severity == "alert"]
        return view.run_of(self.summary, len(alerts), alerts[-1].text if alerts else "")

    async def refresh(self) -> observer_pb2.GetRunResponse:
        """The run with its silos as the server has it now, or as it last was."""
        with contextlib.suppress(ServerUnreachableError):
            self._adopt(await self._observer.run(self.name))
        assert self.answer is not None
        return self.answer

    async def _follow(self) -> None:
        while True:
            try:
                await self._load()
                self._failure = None
                async for message in self._observer.watch(self.name, self.position):
                    self._take(message)
            except ServerUnreachableError as error:
                if not self._ready.is_set():
                    self._failure = error
                    self._ready.set()
                    return  # the next request starts a new feed
            except ServerRefusedError as error:
                log.warning("run cannot be followed", run=self.name, problem=str(error))
                if error.code is grpc.StatusCode.NOT_FOUND or not self._ready.is_set():
                    self._failure = error
                    self._ready.set()
                    return
            await asyncio.sleep(RETRY_SECONDS)

    async def _amend(self) -> None:
        """Silos report on a round after it has ended, and no event says so: look again for a while."""
        while not self._task.done():
            await asyncio.sleep(AMEND_SECONDS)
            if self._unsettled == 0 or not self._ready.is_set():
                continue
            self._unsettled -= 1
            with contextlib.suppress(ServerUnreachableError, ServerRefusedError):
                page, _ = await self._observer.rounds(self.name, max(1, self.history.last - AMENDED_ROUNDS + 1))
                changed = [item.round for item in page if self.history.put(item)]
                for number in changed:
                    self.amendments.append((self.amended + 1, number))
                    self.amended += 1
                if changed:
                    self._wake()

    async def _load(self) -> None:
        answer = await self._observer.run(self.name)
        new = self._followed != answer.summary.run or answer.last_event < self.position
        if new and self._followed:
            self.history.clear()
            self.items.clear()
            self.generation += 1
        self._followed = answer.summary.run
        self._adopt(answer)
        if new:
            self.position = max(0, answer.last_event - KEPT_EVENTS)
        following = self.history.last + 1
        while following:
            page, following = await self._observer.rounds(self.name, following)
            for item in page:
                self.history.put(item)
        if self.position >= answer.last_event:
            self._ready.set()
        else:  # a log cut short must not keep pages waiting
            asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._ready.set)
        self._wake()

    def _adopt(self, answer: observer_pb2.GetRunResponse) -> None:
        self.answer = answer
        self.summary = answer.summary
        self.history.coordinates = answer.manifest.manifest.coordinates
        self.history.dense = answer.dense_bytes_per_silo_round
        self.history.reshuffle_every = answer.manifest.manifest.reshuffle_every

    def _take(self, message: observer_pb2.WatchRunResponse) -> None:
        self._unsettled = AMEND_TIMES
        if message.HasField("round"):
            self.history.put(message.round)
        if message.HasField("summary"):
            self.summary = message.summary
        if message.HasField("event") and message.event.position > self.position:
            self.position = message.event.position
            self.items.append(Item(view.event_of(message.event), message.round.round if message.HasField("round") else 0))
        if self.answer is not None and self.position >= self.answer.last_event:
            self._ready.set()
        self._wake()

    def since(self, position: int) -> list[Item]:
        fresh = list(takewhile(lambda item: item.event.position > position, reversed(self.items)))
        return fresh[::-1]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Feeds:
    """One feed per run somebody asked for, and the list of all runs, polled."""

    def __init__(self, observer: Observer, poll_seconds: float) -> None:
        self.observer = observer
        self.summaries: list[observer_pb2.RunSummary] = []
        self.polls = 0
        self._poll_seconds = poll_seconds
        self._feeds: dict[str, RunFeed] = {}
        self._changed = asyncio.Event()

    async def get(self, name: str) -> RunFeed:
        feed = self._feeds.get(name)
        if feed is None or feed.ended:
            feed = self._feeds[name] = RunFeed(self.observer, name)
        feed.used_at = time.monotonic()
        await self._evict()
        try:
            await feed.ready()
        except (ServerUnreachableError, ServerRefusedError):
            if self._feeds.get(name) is feed:  # names that do not exist must not push out those that do
                del self._feeds[name]
            raise
        return feed

    async def runs(self) -> list[schema.Run]:
        """The latest list; asked for anew only before the first poll has come back."""
        if not self.polls:
            self._keep(await self.observer.runs())
        return self.known_runs()

    def known_runs(self) -> list[schema.Run]:
        followed = {name: feed for name, feed in self._feeds.items() if feed.summary is not None}
        found = []
        for summary in self.summaries:
            feed = followed.get(summary.name)
            run = feed.run() if feed is not None else view.run_of(summary)
            found.append(view.run_of(summary, run.alerts, run.last_alert))
        return found

    @property
    def changed(self) -> asyncio.Event:
        return self._changed

    async def poll(self) -> None:
        """Asks for all runs again and again; this is also what notices the server's death and return."""
        tried = time.monotonic()
        while True:
            try:
                self._keep(await self.observer.runs())
                await self._follow_newest()
            except ServerUnreachableError:
                pass
            except ServerRefusedError as error:
                self.observer.refused(str(error))
            if self.observer.state.reachable:
                tried = time.monotonic()
            elif time.monotonic() - tried > REOPEN_SECONDS:
                tried = time.monotonic()
                await self.reopen()
            await asyncio.sleep(self._poll_seconds)

    async def reopen(self) -> None:
        """Go on over a channel that presents the certificate of now. While one is being replaced it cannot be read, and is tried
        again when the server no longer answers to the old one."""
        try:
            await self.observer.start()
        except (FedrepError, OSError) as error:
            log.warning("credentials not read", problem=str(error))

    async def close(self) -> None:
        for feed in self._feeds.values():
            await feed.close()

    def _keep(self, summaries: list[observer_pb2.RunSummary]) -> None:
        self.polls += 1
        if summaries != self.summaries or self.polls == 1:
            self.summaries = summaries
            self._changed.set()
            self._changed = asyncio.Event()

    async def _follow_newest(self) -> None:
        """Followed before anybody asks, so that their alerts are on the overview."""
        unfinished = [s for s in self.summaries if s.state in ("waiting", "running", "paused")]
        for summary in [*unfinished[: MOST_FEEDS // 2], *self.summaries[:NEWEST]]:
            if summary.name not in self._feeds:
                with contextlib.suppress(ServerUnreachableError, ServerRefusedError):
                    await self.get(summary.name)

    async def _evict(self) -> None:
        idle = sorted((f for f in self._feeds.values() if not f.watchers), key=lambda feed: feed.used_at)
        for feed in idle[: max(0, len(self._feeds) - MOST_FEEDS)]:
            del self._feeds[feed.name]
            await feed.close()
