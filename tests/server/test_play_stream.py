"""One stream of Play on the server: whoever sends without measure holds up nobody but itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from fedrep.errors import DecodeError
from fedrep.wire.methods import Method
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_server.calls.play import AHEAD, AT_A_TIME, CALLS_AT_ONCE, PER_PART, Stream

SECONDS = 60.0
CONTEXT = SimpleNamespace(auth_context=dict)


async def answered(stream: Stream, requests: AsyncIterator[pb.PlayRequest]) -> list[int]:
    """The numbers of the calls that were answered, until the stream is over."""
    async with asyncio.timeout(SECONDS):
        return [each.call async for answer in stream.play(requests) for each in (answer, *answer.more)]


async def one_by_one(*requests: pb.PlayRequest) -> AsyncIterator[pb.PlayRequest]:
    for request in requests:
        yield request


async def hold(method: Method, request: Any, context: Any) -> AsyncIterator[bytes]:
    """Reads nothing of its request, and never answers."""
    await asyncio.Event().wait()
    yield b""


def test_parts_without_bytes_are_read_no_faster_than_their_handler_takes_them() -> None:
    many = 4 * AHEAD // PER_PART
    go_on, all_read = asyncio.Event(), asyncio.Event()

    async def serve(method: Method, request: Any, context: Any) -> AsyncIterator[bytes]:
        await go_on.wait()
        taken = [part async for part in request]
        assert len(taken) == many
        yield b""

    async def requests() -> AsyncIterator[pb.PlayRequest]:
        yield pb.PlayRequest(call=1, method="ProposeCoordinates", more=[pb.PlayRequest(call=1, message=b"")] * many)
        all_read.set()
        yield pb.PlayRequest(call=1, last=True)

    async def scenario() -> None:
        playing = asyncio.create_task(answered(Stream(serve, CONTEXT), requests()))
        for _ in range(many):
            await asyncio.sleep(0)
        assert not all_read.is_set(), "what nobody reads piles up"
        go_on.set()
        assert await playing == [1]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "requests",
    [
        [pb.PlayRequest(call=1, method="Attend", message=b""), pb.PlayRequest(call=1, message=b"")],
        [pb.PlayRequest(call=1, method="Attend", message=b"", last=True, more=[pb.PlayRequest(call=1, message=b"")])],
        [pb.PlayRequest(call=1, method="Attend", last=True)],
        [pb.PlayRequest(call=1, method="ProposeCoordinates", last=True), pb.PlayRequest(call=1, message=b"x")],
    ],
    ids=["a second message", "a second message in one", "no message", "a part after the last"],
)
def test_a_call_that_its_method_would_not_take_alone_ends_the_stream(requests: list[pb.PlayRequest]) -> None:
    async def and_wait() -> AsyncIterator[pb.PlayRequest]:
        for request in requests:
            yield request
        await asyncio.Event().wait()

    with pytest.raises(DecodeError, match="update the program that sent it"):
        asyncio.run(answered(Stream(hold, CONTEXT), and_wait()))


def test_everybody_has_a_turn_while_a_message_of_many_is_read() -> None:
    turns = had = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def requests() -> AsyncIterator[pb.PlayRequest]:
        nonlocal had
        yield pb.PlayRequest(call=1, method="ProposeCoordinates")
        before = turns
        yield pb.PlayRequest(call=1, more=[pb.PlayRequest(call=1)] * (20 * AT_A_TIME))
        had = turns - before
        yield pb.PlayRequest(call=1, cancelled=True)

    async def scenario() -> None:
        others = asyncio.create_task(count())
        assert await answered(Stream(hold, CONTEXT), requests()) == []
        others.cancel()

    asyncio.run(scenario())
    assert had >= 20


@pytest.mark.parametrize("together", [True, False], ids=["in one message", "in the next of the same"])
def test_calls_that_are_cancelled_before_they_began_leave_their_room_to_others(together: bool) -> None:
    async def serve(method: Method, request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b""

    begun = [pb.PlayRequest(call=1 + number, method="Attend", cancelled=together) for number in range(CALLS_AT_ONCE)]
    cancelled = [] if together else [pb.PlayRequest(call=each.call, cancelled=True) for each in begun]
    last = pb.PlayRequest(call=CALLS_AT_ONCE + 1, method="Attend", message=b"", last=True)
    first = pb.PlayRequest(call=begun[0].call, method="Attend", cancelled=together, more=[*begun[1:], *cancelled])
    assert asyncio.run(answered(Stream(serve, CONTEXT), one_by_one(first, last))) == [CALLS_AT_ONCE + 1]
