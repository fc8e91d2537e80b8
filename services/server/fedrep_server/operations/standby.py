"""What a server does until it leads: it says where it stands, and passes connections on to the leader.

Bytes are passed on as they come. TLS is between the caller and the leader, so a standby sees no call, judges nobody and holds no
state; whoever is sent to it by a service that knows nothing about leaders is served all the same. It never passes on to itself:
the database may still name it as the leader that it was before a restart.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from fedrep_runtime.listening import ALL, ALL_OF_IPV4, listening
from fedrep_server.config import ServerSettings
from fedrep_server.operations.leadership import Seen
from fedrep_server.operations.metrics import StandingFigures
from fedrep_server.operations.ports import cannot_listen

log = structlog.get_logger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

CONNECT_SECONDS = 5.0
MOST_CONNECTIONS = 4096
WINDOW = 1 << 16


class Relay:
    """Listens where the server will listen once it leads; `leader` is where connections go, and nowhere while it is empty."""

    def __init__(self, host: str, port: int, own_address: str) -> None:
        self._host, self._port, self._own = host, port, own_address
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._leader = ""

    async def lead_to(self, leader: str) -> None:
        """Connections to a former leader end: those behind them dial again, and find the new one."""
        if leader == self._own:
            leader = ""
        if leader != self._leader:
            await self._drop()
            self._leader = leader
        if self._server is None:
            try:
                # gRPC, whose place it holds, takes 0.0.0.0 for both families.
                host = ALL if self._host == ALL_OF_IPV4 else self._host
                self._server = await asyncio.start_server(self._serve, sock=listening(host, self._port), limit=WINDOW)
            except OSError as error:
                raise cannot_listen(self._host, self._port) from error

    async def close(self) -> None:
        """The port is free when this returns."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop()

    async def _drop(self) -> None:
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or not self._leader or len(self._connections) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, TimeoutError) as error:
            log.info("leader_not_reached", leader=self._leader, problem=str(error) or type(error).__name__)
        except asyncio.CancelledError:
            return  # asyncio's streams would report a cancelled handler as a fault
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._leader.rpartition(":")
        async with asyncio.timeout(CONNECT_SECONDS):
            there, back = await asyncio.open_connection(host.strip("[]"), int(port), limit=WINDOW)
        ways = [asyncio.create_task(_carry(reader, back)), asyncio.create_task(_carry(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            back.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(WINDOW):
            writer.write(data)
            await writer.drain()


class Waiting:
    """How a server stands until it leads: in its log, on its health and metrics ports, and at its door."""

    def __init__(self, settings: ServerSettings, health: HealthServicer, figures: StandingFigures) -> None:
        self._health = health
        self._figures = figures
        self._relay = Relay(settings.host, settings.port, settings.advertise) if settings.advertise else None
        self._said: Seen | None = None

    async def stands_by(self, seen: Seen) -> None:
        self._figures.database_answered(not seen.trouble)
        if seen != self._said:
            self._said = seen
            if seen.trouble:
                log.warning("waiting_for_database", why=seen.trouble, do="nothing if it comes back; this server goes on asking")
            else:
                log.info("standing_by", why=f"{seen.leader or 'another server'} leads")
        if self._relay is not None:
            await self._relay.lead_to(seen.leader)
            # Also where the leader named no address, as older releases do: a rollout must not wait for it to go.
            await self._health.set("", NOT_SERVING if seen.trouble else SERVING)

    async def leads(self) -> None:
        await self._health.set("", NOT_SERVING)
        self._figures.led()
        await self.close()

    def lead_held(self) -> None:
        self._figures.database_answered(True)

    async def close(self) -> None:
        if self._relay is not None:
            await self._relay.close()
