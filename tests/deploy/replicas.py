"""Two server processes on one PostgreSQL, and what a cluster puts around them: a service that sends silos to the ready one.

`Relay` stands for a network path that can be cut without either end being told, as a pulled cable does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from fedrep_cli.free_ports import free_port
from fedrep_silo.training import in_thread
from tests.harness.federation import Federation
from tests.harness.processes import ServerProcess

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


@dataclass
class Replicas:
    """Starts replicas of a federation's server; `ready` is the one a cluster's service would choose."""

    federation: Federation
    database: str

    def __post_init__(self) -> None:
        self.started: list[ServerProcess] = []

    def start(self, name: str, database: str | None = None) -> ServerProcess:
        folder = self.federation.folder
        changes = {"port": free_port(), "data": folder / name, "database": database or self.database}
        replica = ServerProcess.start(self.federation.server_settings().model_copy(update=changes), folder / f"{name}.toml")
        self.started.append(replica)
        return replica

    async def ready(self) -> Streams:
        for replica in reversed(self.started):
            if replica.process.poll() is None and await in_thread(partial(replica.health, seconds=1.0)) == "SERVING":
                return await asyncio.open_connection("127.0.0.1", replica.port)
        raise ConnectionRefusedError("no replica is ready")


class Relay:
    """Carries bytes between whoever connects and whoever `connect` finds, until `cut`: then it carries nothing more."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._open.clear()

    def give_up(self) -> None:
        """What keepalives do to both ends of a cut path after a while."""
        for task in self._tasks:
            task.cancel()

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            other_reader, other_writer = await self._connect()
        except OSError:
            writer.close()
            return
        ends = [asyncio.create_task(self._carry(reader, other_writer)), asyncio.create_task(self._carry(other_reader, writer))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return  # asyncio's streams would report a cancelled handler as a fault
        finally:
            for end in ends:
                end.cancel()
            writer.close()
            other_writer.close()
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        await self._open.wait()  # over a path that is cut, nobody hears that the other end is gone
