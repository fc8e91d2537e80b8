"""An HTTPS proxy that a test can watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def proxy_to(port: int, asked: list[str], answer: bytes = b"200 Connection established") -> AsyncIterator[int]:
    """Notes what it is asked for and leads every connection to one port of this machine."""
    writers: list[asyncio.StreamWriter] = []

    async def relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writers.append(writer)
        writer.write(b"HTTP/1.1 " + answer + b"\r\n\r\n")
        if not answer.startswith(b"200"):
            writer.close()
            return
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", port)
        writers.append(onward)
        await asyncio.gather(relay(reader, onward), relay(onward_reader, writer))

    listening = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for writer in writers:
            writer.close()
