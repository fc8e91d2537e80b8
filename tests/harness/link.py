"""A TCP proxy on this machine that stands for the network between one silo and the server, in any condition.

A `Link` listens on 127.0.0.1 and carries what arrives to its target and back. Delay and rate are those of a wire: what enters at
time t leaves at t + delay, whatever else is under way, so delay alone limits no rate; the rate is for each way and shared by all
connections of the link. A new connection waits one round trip first, as SYN and SYN-ACK would. What is not played is TCP's
own slow start and loss: both ends talk to this machine's kernel.

Besides, a link can fail: `reset` (RST to both ends), `half_close` (one end hears that the other has no more to say, which goes on
talking into nothing), `black_hole` (connections are taken and stay open, and nothing moves until it is over), `refuse` (new
connections are reset at once). `LinkProcess` (link_process.py) has links in a process of their own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Way = Literal["up", "down"]
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with no time at all: close sends RST
SECONDS_PER_PIECE = 0.002  # a throttled link carries pieces of this length, so that no piece waits for a large one
LARGEST_PIECE, SMALLEST_PIECE = 1 << 16, 1460
QUEUED_SECONDS = 0.05  # what a throttled link takes in beyond what it can carry at once: the queue of a router
UNDER_WAY = 1 << 26  # bytes that one connection may have between its ends


@dataclass(frozen=True)
class Conditions:
    """`delay` is in seconds and one way; `bytes_per_second` is for each way, None is no limit."""

    delay: float = 0.0
    bytes_per_second: float | None = None
    black_hole: bool = False
    refuse: bool = False


@dataclass
class Counts:
    """What the link carried. `round_trips` is the longest chain of messages in which each way up was taken only after an answer
    to the one before had come down: what the link's delay costs is about that many times twice the delay."""

    connections: int = 0
    resets: int = 0
    up: int = 0
    down: int = 0
    round_trips: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes that the link carried, on the clock of this machine (`time.monotonic`)."""

    way: Way
    entered: float
    arrived: float
    size: int


@dataclass
class _End:
    """How far one end has got in the chain of messages."""

    depth: int = 0


class _Wire:
    """One way of a link: when the last piece that entered has left."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def leaves_at(self, now: float, size: int, rate: float | None) -> float:
        self._free_at = max(now, self._free_at) + (size / rate if rate else 0.0)
        return self._free_at


@dataclass(eq=False)
class _Connection:
    """The two sockets of one connection, and which ways are closed by a half-close."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    cut: set[Way] = field(default_factory=set)
    under_way: int = 0  # bytes that have entered and not left, both ways

    def reset(self) -> None:
        for writer in (self.client, self.server):
            end = writer.get_extra_info("socket")
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()

    def half_close(self, way: Way) -> None:
        self.cut.add(way)
        with suppress(OSError):
            (self.server if way == "up" else self.client).write_eof()


class Link:
    """Made and used within one event loop; `listening` opens it."""

    def __init__(self, target: int, conditions: Conditions | None = None, *, traced: bool = False) -> None:
        """`target` is a port of this machine; it may be set anew at any time, for the connections that follow."""
        self.target = target
        self.pieces: list[Piece] | None = [] if traced else None
        self.port = 0
        self.conditions = conditions or Conditions()
        self.counts = Counts()
        self._moving = asyncio.Event()
        self._moving.set()
        self._wires: dict[Way, _Wire] = {"up": _Wire(), "down": _Wire()}
        self._silo, self._server = _End(), _End()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def set(self, **changes: Any) -> None:
        """Any of the conditions, for what enters from now on."""
        self.conditions = replace(self.conditions, **changes)
        if self.conditions.black_hole:
            self._moving.clear()
        else:
            self._moving.set()

    def reset(self) -> int:
        """RST to both ends of every connection; how many there were."""
        connections = list(self._connections)
        for connection in connections:
            connection.reset()
        self.counts.resets += len(connections)
        return len(connections)

    def half_close(self, way: Way) -> int:
        """Ends one way of every connection; how many there were."""
        connections = list(self._connections)
        for connection in connections:
            connection.half_close(way)
        return len(connections)

    def snapshot(self) -> dict[str, Any]:
        """Counts, open connections, bytes between the ends, and conditions."""
        now = {"open": len(self._connections), "under_way": sum(connection.under_way for connection in self._connections)}
        return asdict(self.counts) | now | {"conditions": asdict(self.conditions)}

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
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
            await self._join(reader, writer)
        except asyncio.CancelledError:
            return  # asyncio's streams would report a cancelled handler as a fault
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        waiting = _Connection(writer, writer)  # so that a reset finds it already
        self._connections.add(waiting)
        try:
            if self.conditions.refuse:
                waiting.reset()
                return
            await self._moving.wait()
            await asyncio.sleep(2 * self.conditions.delay)
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            waiting.reset()  # nobody listens there: as a refused connection, it ends at once
            return
        finally:
            self._connections.discard(waiting)
        connection = _Connection(writer, other_writer)
        self._connections.add(connection)
        try:
            ways = (self._carry("up", reader, connection), self._carry("down", other_reader, connection))
            async with asyncio.TaskGroup() as group:
                for way in ways:
                    group.create_task(way)
        finally:
            self._connections.discard(connection)
            other_writer.close()

    async def _carry(self, way: Way, reader: asyncio.StreamReader, connection: _Connection) -> None:
        """Until this way is over. An error is the end of both."""
        flow = _Flow(self, way, connection)
        taking, giving = asyncio.create_task(flow.take(reader)), asyncio.create_task(flow.give())
        try:
            await asyncio.gather(taking, giving)
        except OSError:
            connection.reset()
        finally:
            taking.cancel()
            giving.cancel()


class _Flow:
    """One way of one connection: what entered, when it leaves, and how long the chain was that led to it."""

    def __init__(self, link: Link, way: Way, connection: _Connection) -> None:
        self._link, self._way, self._connection = link, way, connection
        self._writer = connection.server if way == "up" else connection.client
        self._under_way: asyncio.Queue[tuple[float, float, bytes, int]] = asyncio.Queue()
        self._bytes, self._room = 0, asyncio.Event()
        self._room.set()

    async def take(self, reader: asyncio.StreamReader) -> None:
        link, loop = self._link, asyncio.get_running_loop()
        sender = link._silo if self._way == "up" else link._server
        while True:
            await link._moving.wait()
            rate = link.conditions.bytes_per_second
            piece = LARGEST_PIECE if rate is None else min(LARGEST_PIECE, max(SMALLEST_PIECE, int(rate * SECONDS_PER_PIECE)))
            data = await reader.read(piece)
            await link._moving.wait()  # what was read while the link fell silent waits for it too
            now = loop.time()
            leaves = link._wires[self._way].leaves_at(now, len(data), rate)
            self._under_way.put_nowait((now, leaves + link.conditions.delay, data, sender.depth))
            if not data:
                return
            self._bytes += len(data)
            self._connection.under_way += len(data)
            if self._bytes > UNDER_WAY:
                self._room.clear()
            await self._room.wait()
            await asyncio.sleep(max(0.0, leaves - now - QUEUED_SECONDS))

    async def give(self) -> None:
        link, loop = self._link, asyncio.get_running_loop()
        while True:
            entered, arrives, data, depth = await self._under_way.get()
            if arrives > (now := loop.time()):
                await asyncio.sleep(arrives - now)
            await link._moving.wait()
            if not data:
                if self._way not in self._connection.cut and not self._writer.is_closing():
                    self._writer.write_eof()
                return
            self._bytes -= len(data)
            self._connection.under_way -= len(data)
            self._room.set()
            self._count(len(data), depth)
            if link.pieces is not None:
                link.pieces.append(Piece(self._way, entered, loop.time(), len(data)))
            if self._way not in self._connection.cut:
                self._writer.write(data)
                await self._writer.drain()

    def _count(self, size: int, depth: int) -> None:
        link = self._link
        if self._way == "up":
            link.counts.up += size
            link._server.depth = max(link._server.depth, depth + 1)
        else:
            link.counts.down += size
            link._silo.depth = max(link._silo.depth, depth)
            link.counts.round_trips = link._silo.depth
