"""The proxy that stands for the network: what it does to connections is what tests and benchmarks rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.harness.link import Conditions, Link
from tests.harness.link_process import LinkControl, LinkProcess
from tests.harness.processes import run_scenario

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def a_server(behaviour: Behaviour = echo) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behaviour(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def a_link(conditions: Conditions | None = None, behaviour: Behaviour = echo) -> AsyncIterator[Link]:
    async with a_server(behaviour) as port, Link(port, conditions).listening() as link:
        yield link


async def connect(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_what_goes_in_comes_out_and_is_counted_both_ways() -> None:
    async def scenario() -> None:
        async with a_link() as link:
            reader, writer = await connect(link.port)
            writer.write(b"proposal")
            writer.write_eof()
            assert await reader.read() == b"proposal"  # until the end, which is passed on as well
            writer.close()
            await until(lambda: link.snapshot()["open"] == 0)
            assert (link.counts.up, link.counts.down, link.counts.connections) == (8, 8, 1)

    run_scenario(scenario())


def test_a_delay_is_waited_for_each_way_and_once_more_for_the_connection() -> None:
    async def scenario() -> None:
        async with a_link(Conditions(delay=0.05)) as link:
            loop = asyncio.get_running_loop()
            start = loop.time()
            reader, writer = await connect(link.port)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert loop.time() - start >= 0.2
            start = loop.time()
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            assert loop.time() - start >= 0.1
            writer.close()

    run_scenario(scenario())


def test_a_delay_limits_no_rate_for_everything_may_be_under_way_at_once() -> None:
    async def scenario() -> None:
        size = 8 << 20
        async with a_link() as link:
            _, writer = await connect(link.port)
            await until(lambda: link.snapshot()["open"] == 1)
            link.set(delay=3600.0)  # nothing comes out meanwhile, and yet all of it goes in
            writer.write(bytes(size))
            await writer.drain()
            await until(lambda: link.snapshot()["under_way"] == size)
            assert link.counts.up == 0
            writer.close()

    run_scenario(scenario())


def test_a_throttle_holds_back_what_is_too_much_and_is_shared_by_the_connections_of_a_link() -> None:
    async def scenario() -> None:
        async with a_link(Conditions(bytes_per_second=200_000.0)) as link:
            loop = asyncio.get_running_loop()
            start = loop.time()

            async def send() -> None:
                reader, writer = await connect(link.port)
                writer.write(bytes(50_000))
                assert len(await reader.readexactly(50_000)) == 50_000
                writer.close()

            await asyncio.gather(send(), send())
            assert loop.time() - start >= 0.5

    run_scenario(scenario())


def test_round_trips_in_a_row_are_counted_and_messages_side_by_side_are_one() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async def scenario() -> None:
        async with a_link(Conditions(delay=0.02), answer) as link:
            reader, writer = await connect(link.port)
            for number in range(5):
                writer.write(b"%d\n" % number)
                await reader.readline()
            assert link.counts.round_trips == 5
            writer.write(b"".join(b"%d\n" % number for number in range(50)))
            for _ in range(50):
                await reader.readline()
            assert link.counts.round_trips == 6
            writer.close()

    run_scenario(scenario())


def test_a_reset_is_one_for_both_ends() -> None:
    heard: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
            heard.put_nowait(None)
        except ConnectionResetError as error:
            heard.put_nowait(error)

    async def scenario() -> None:
        async with a_link(behaviour=listen) as link:
            reader, writer = await connect(link.port)
            writer.write(b"half a message")
            await until(lambda: link.counts.up > 0)
            assert link.reset() == 1
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert isinstance(await heard.get(), ConnectionResetError)
            writer.close()

    run_scenario(scenario())


def test_a_half_closed_connection_still_carries_the_other_way() -> None:
    ended = asyncio.Event()

    async def talk_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.write(b"after")

    async def scenario() -> None:
        async with a_link(behaviour=talk_after_the_end) as link:
            reader, writer = await connect(link.port)
            writer.write(b"before")
            await until(lambda: link.counts.up == 6)
            assert link.half_close("up") == 1
            await ended.wait()
            writer.write(b"nobody hears this")
            assert await reader.readexactly(5) == b"after"
            writer.close()

    run_scenario(scenario())


def test_a_black_hole_takes_connections_and_carries_nothing_until_it_is_over() -> None:
    async def scenario() -> None:
        async with a_link() as link:
            reader, writer = await connect(link.port)
            link.set(black_hole=True)
            new_reader, new_writer = await connect(link.port)
            writer.write(b"old")
            new_writer.write(b"new")
            await until(lambda: link.counts.connections == 2)
            for _ in range(50):
                await asyncio.sleep(0)
            assert (link.counts.up, link.counts.down) == (0, 0)
            link.set(black_hole=False)
            assert await reader.readexactly(3) == b"old"
            assert await new_reader.readexactly(3) == b"new"
            writer.close()
            new_writer.close()

    run_scenario(scenario())


def test_connections_are_reset_where_the_link_refuses_and_where_nobody_listens() -> None:
    async def scenario() -> None:
        async with a_link(Conditions(refuse=True)) as link:
            reader, writer = await connect(link.port)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            async with a_server() as gone:
                link.target = gone
            link.set(refuse=False)
            reader, writer = await connect(link.port)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    run_scenario(scenario())


def test_links_in_another_process_obey_whoever_knows_their_port() -> None:
    async def scenario() -> None:
        async with a_server() as first, a_server(lambda reader, writer: echo_twice(reader, writer)) as second:
            with LinkProcess.start() as links:
                port = links.open("silo-0", first, delay=0.01)
                reader, writer = await connect(port)
                writer.write(b"one")
                assert await reader.readexactly(3) == b"one"
                other = LinkControl(links.port)
                assert other.counts("silo-0")["round_trips"] == 1
                assert other.counts("silo-0")["conditions"]["delay"] == 0.01
                other.lead_to("silo-0", second)
                assert other.reset("silo-0") == 1
                with pytest.raises(ConnectionResetError):
                    await reader.read()
                writer.close()
                reader, writer = await connect(port)
                writer.write(b"one")
                assert await reader.readexactly(6) == b"oneone"
                writer.close()
                with pytest.raises(ValueError, match="KeyError: 'silo-1'"):
                    other.counts("silo-1")
                other.close()

    async def echo_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data + data)

    run_scenario(scenario())


def test_the_process_with_the_links_ends_with_its_owner() -> None:
    links = LinkProcess.start()
    links.control.open("silo-0", 1)
    links.stop()
    assert links.process.returncode == 0


def test_a_traced_link_tells_when_each_piece_came_and_went() -> None:
    async def scenario() -> None:
        async with a_server() as port, Link(port, Conditions(delay=0.01), traced=True).listening() as link:
            reader, writer = await connect(link.port)
            writer.write(b"proposal")
            await reader.readexactly(8)
            assert link.pieces is not None
            assert [(piece.way, piece.size) for piece in link.pieces] == [("up", 8), ("down", 8)]
            up, down = link.pieces
            assert up.entered + 0.01 <= up.arrived <= down.entered <= down.arrived - 0.01
            writer.close()

    run_scenario(scenario())


def test_pieces_are_told_once_across_the_process() -> None:
    async def scenario(links: LinkControl, port: int) -> None:
        reader, writer = await connect(links.open("silo", target=port, traced=True))
        writer.write(b"proposal")
        await reader.readexactly(8)
        assert [piece.way for piece in await asyncio.to_thread(links.pieces, "silo")] == ["up", "down"]
        assert await asyncio.to_thread(links.pieces, "silo") == []
        writer.close()

    async def with_server(links: LinkControl) -> None:
        async with a_server() as port:
            await scenario(links, port)

    with LinkProcess.start() as links:
        run_scenario(with_server(links))
