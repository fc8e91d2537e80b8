"""The observer client's channel is replaced under those who watch, without ending them."""

from __future__ import annotations

import asyncio

import pytest

from fedrep_dashboard.observer import Observer, ServerUnreachableError
from tests.harness.dashboard_server import ScriptedServer, scripted_run
from tests.harness.dashboard_site import insecure, shared_loop


def test_a_new_channel_ends_open_streams_as_unreachable_and_serves_the_next_call() -> None:
    server = ScriptedServer().start()
    server.add(scripted_run("digits"), 2)

    async def play() -> None:
        observer = Observer(insecure(server.address).open_channel, server.address)
        await observer.start()
        seen = asyncio.Event()

        async def follow() -> None:
            async for _ in observer.watch("digits", 0):
                seen.set()

        following = asyncio.create_task(follow())
        await seen.wait()
        await observer.start()
        with pytest.raises(ServerUnreachableError):
            await following
        assert [run.name for run in await observer.runs()] == ["digits"]
        seen.clear()
        watching = asyncio.create_task(follow())
        await seen.wait()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await observer.close()

    asyncio.run_coroutine_threadsafe(play(), shared_loop()).result(120)
    server.die()
