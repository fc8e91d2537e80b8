"""The observer client's channel is replaced under those who watch, without ending them."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from fedrep.errors import SettingsError
from fedrep_dashboard.feed import Feeds
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


def test_a_key_that_could_not_be_read_while_the_server_was_away_does_not_end_the_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrep_dashboard.feed.REOPEN_SECONDS", 0.0)
    server = ScriptedServer().start()
    server.add(scripted_run("digits"), 2)

    async def play() -> None:
        opened: list[str] = []

        def open_channel() -> grpc.aio.Channel:
            opened.append("")
            if len(opened) == 2:
                raise SettingsError("key.pem and cert.pem do not belong together.")
            return insecure(server.address if len(opened) > 2 else "127.0.0.1:1").open_channel()

        observer = Observer(open_channel, server.address)
        await observer.start()
        feeds = Feeds(observer, 0.01)
        changed, polling = feeds.changed, asyncio.create_task(feeds.poll())
        seen = asyncio.create_task(changed.wait())
        await asyncio.wait((seen, polling), return_when=asyncio.FIRST_COMPLETED, timeout=120)
        assert not polling.done()
        assert [run.name for run in feeds.known_runs()] == ["digits"]
        polling.cancel()
        await feeds.close()
        await observer.close()

    asyncio.run_coroutine_threadsafe(play(), shared_loop()).result(120)
    server.die()
