"""Server-sent events: what changed, as it changes, with a position to resume from and a heartbeat.

Events named `event`, `round` and `run` belong to a run; `runs` is the overview's list; `server` says whether the
federation server answers; `reset` asks the page to load everything again because resuming is not possible.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel

from fedrep_dashboard import schema
from fedrep_dashboard.feed import AMENDED_ROUNDS, Feeds, RunFeed
from fedrep_dashboard.observer import Observer

Message = dict[str, Any]


def message(kind: str, body: BaseModel | Message, position: int | None = None) -> Message:
    data = body.model_dump_json() if isinstance(body, BaseModel) else json.dumps(body)
    return {"event": kind, "data": data} | ({} if position is None else {"id": str(position)})


def server_state(observer: Observer) -> schema.ServerState:
    state = observer.state
    return schema.ServerState(reachable=state.reachable, since=state.since, address=observer.address, problem=state.problem[:300])


async def run_stream(feed: RunFeed, observer: Observer, after: int) -> AsyncIterator[Message]:
    """Everything about one run after a position, for as long as the page is open."""
    feed.watchers += 1
    try:
        generation, position, shown = feed.generation, after, None
        yield message("run", feed.run())
        amended = feed.amended
        if position < feed.oldest or position > feed.position:
            position = feed.position
            yield message("reset", {"reason": "the dashboard no longer has the events since then"}, position)
        for recent in feed.history.rows()[-AMENDED_ROUNDS:]:  # they may have changed since the page was loaded
            yield message("round", recent)
        while True:
            waiting = [feed.changed, observer.state_changed]  # read first, so that nothing is missed in between
            if observer.state != shown:
                shown = observer.state
                yield message("server", server_state(observer))
            if feed.generation != generation:
                generation, position = feed.generation, feed.position
                yield message("reset", {"reason": "the run was created anew"}, position)
            fresh = feed.since(position)
            for item in fresh:
                position = item.event.position
                row = feed.history.row(item.round) if item.round else None
                if row is not None:
                    yield message("round", row)
                yield message("event", item.event, position)
            if fresh:
                yield message("run", feed.run())
            late = [number for count, number in feed.amendments if count > amended]
            amended = feed.amended
            for number in late:
                row = feed.history.row(number)
                if row is not None:
                    yield message("round", row)
            await first_of(waiting)
    finally:
        feed.watchers -= 1


async def overview_stream(feeds: Feeds) -> AsyncIterator[Message]:
    observer, shown, sent = feeds.observer, None, None
    while True:
        waiting = [feeds.changed, observer.state_changed]
        if observer.state != shown:
            shown = observer.state
            yield message("server", server_state(observer))
        body = schema.Runs(runs=feeds.known_runs())
        if feeds.polls and body != sent:
            sent = body
            yield message("runs", body)
        await first_of(waiting)


async def first_of(events: list[asyncio.Event]) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
