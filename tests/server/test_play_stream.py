"""One stream of Play on the server: whoever sends without measure holds up nobody but itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedrep.errors import DecodeError, LimitError
from fedrep.wire.methods import Method
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_identity.certificates import Role
from fedrep_server.calls.interceptor import Coding, Gate, _Call
from fedrep_server.calls.limits import Turnstile
from fedrep_server.calls.play import AHEAD, ANSWERS_AHEAD, AT_A_TIME, CALLS_AT_ONCE, PER_PART, CallRefusedError, Stream

SECONDS = 60.0
CONTEXT = SimpleNamespace(auth_context=dict)


async def answered(stream: Stream, requests: AsyncIterator[pb.PlayRequest]) -> list[int]:
    """The numbers of the calls that were answered, until the stream is over."""
    async with asyncio.timeout(SECONDS):
        return [each.call async for answer in stream.play(requests) for each in (answer, *answer.more)]


async def one_by_one(*requests: pb.PlayRequest) -> AsyncIterator[pb.PlayRequest]:
    for request in requests:
        yield request


async def hold(method: Method, request: Any, context: Any) -> AsyncGenerator[bytes, None]:
    """Reads nothing of its request, and never answers."""
    await asyncio.Event().wait()
    yield b""


def test_parts_without_bytes_are_read_no_faster_than_their_handler_takes_them() -> None:
    many = 4 * AHEAD // PER_PART
    go_on, all_read = asyncio.Event(), asyncio.Event()

    async def serve(method: Method, request: Any, context: Any) -> AsyncGenerator[bytes, None]:
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
    async def serve(method: Method, request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        yield b""

    begun = [pb.PlayRequest(call=1 + number, method="Attend", cancelled=together) for number in range(CALLS_AT_ONCE)]
    cancelled = [] if together else [pb.PlayRequest(call=each.call, cancelled=True) for each in begun]
    last = pb.PlayRequest(call=CALLS_AT_ONCE + 1, method="Attend", message=b"", last=True)
    first = pb.PlayRequest(call=begun[0].call, method="Attend", cancelled=together, more=[*begun[1:], *cancelled])
    assert asyncio.run(answered(Stream(serve, CONTEXT), one_by_one(first, last))) == [CALLS_AT_ONCE + 1]


@pytest.mark.parametrize("method", ["GetCertificates", "GetUpdate"], ids=["one answer", "an answer in parts"])
def test_who_reads_no_answers_is_not_read_from_and_leaves_nothing_behind(method: str) -> None:
    begun = 0

    async def serve(method: Method, request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        nonlocal begun
        begun += 1
        yield b"answer"

    async def requests() -> AsyncIterator[pb.PlayRequest]:
        for number in range(1, 10 * CALLS_AT_ONCE):
            yield pb.PlayRequest(call=number, method=method, message=b"", last=True)

    async def scenario() -> None:
        playing = Stream(serve, CONTEXT).play(requests())
        await anext(playing)
        for _ in range(40 * CALLS_AT_ONCE):
            await asyncio.sleep(0)
        assert begun <= 2 * ANSWERS_AHEAD + 1 + CALLS_AT_ONCE, "answers that nobody takes pile up"
        await cast(AsyncGenerator[Any, None], playing).aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "what waits to be answered outlives the stream"

    asyncio.run(scenario())


def test_refused_calls_whose_answers_nobody_takes_keep_nothing_of_what_was_sent() -> None:
    came = 0

    async def serve(method: Method, request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            await asyncio.sleep(0)  # the gate holds a refusal for a while, and more comes meanwhile
        raise CallRefusedError(b"status")
        yield b""

    async def requests() -> AsyncIterator[pb.PlayRequest]:
        nonlocal came
        for number in range(1, 10 * CALLS_AT_ONCE):
            came += 1
            yield pb.PlayRequest(call=number, method="SubmitMaskedShare", message=bytes(AHEAD))

    async def scenario() -> None:
        stream = Stream(serve, CONTEXT)
        playing = stream.play(requests())
        await anext(playing)
        for _ in range(40 * CALLS_AT_ONCE):
            await asyncio.sleep(0)
        assert came > CALLS_AT_ONCE, "the stream was filled, and waits for its answers to be taken"
        assert [call._unread for call in stream._calls.values()] == [0] * CALLS_AT_ONCE
        assert not any(part for call in stream._calls.values() for part in call._parts)
        await cast(AsyncGenerator[Any, None], playing).aclose()

    asyncio.run(scenario())


def test_a_call_counts_as_open_until_its_answer_is_taken() -> None:
    turnstile = Turnstile(at_once=1, per_second=100.0)
    peer = SimpleNamespace(identity=SimpleNamespace(name="silo-a", role=Role.SILO))
    gate = SimpleNamespace(
        admit=lambda *_: peer,
        turnstile=turnstile,
        opened=lambda _: None,
        closed=lambda _: None,
        alone={},
        meter=SimpleNamespace(called=lambda _: None),
    )
    stream = cast(_Call, SimpleNamespace(presented=None, count_elsewhere=lambda *_: None))

    async def answer(request: bytes, context: Any) -> bytes:
        return b"answer"

    async def scenario() -> None:
        call = _Call(cast(Gate, gate), "GetCertificates", (), Coding(bytes, bytes), CONTEXT, within=stream)
        answers = call.single(answer, b"")
        assert await anext(answers) == b"answer"
        with pytest.raises(LimitError, match="calls open"):
            turnstile.enter("silo-a", call._started)
        call.cut(LimitError("it would be lost"))
        assert [each async for each in answers] == []
        turnstile.enter("silo-a", call._started)

    asyncio.run(scenario())
