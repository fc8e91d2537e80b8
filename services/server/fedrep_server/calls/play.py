"""Play: the calls of one silo over one stream, each under the same gate as if it had come alone.

A call of gRPC costs more than most of the messages in it. Nothing else changes: what a method takes, refuses, counts and waits
for is decided where it is for the method itself. The stream is read no faster than the calls in it take their parts, and never so
long at a time that others have to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from types import EllipsisType
from typing import Any, NoReturn

import grpc

from fedrep.errors import DecodeError, FedrepError, LimitError
from fedrep.wire.methods import METHODS, Method
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_runtime.status import DETAILS_KEY

ANSWERS_AHEAD = 4
CALLS_AT_ONCE = 64  # beyond them the stream is not read on; how many a caller may have served at once is the turnstile's to say
TOGETHER = 2**17  # bytes of answers that leave in one message, if each is smaller
AHEAD = 2**16  # bytes of parts that may wait for their handler; one part of any size always may
PER_PART = 64  # bytes that a part takes beside its own
AT_A_TIME = 256  # messages that came as one, before everybody else has a turn
LATE_PARTS = 64  # of calls that have ended: those that were on their way when the answer left


class CallRefusedError(Exception):
    """What `abort` raises in a call that has no status line of its own."""

    def __init__(self, status: bytes) -> None:
        super().__init__()
        self.status = status


class InnerContext:
    """What a handler asks of gRPC's context, for one call within the stream."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties

    def auth_context(self) -> Mapping[str, Any]:
        return self._properties

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        for key, value in trailing_metadata or ():
            if key == DETAILS_KEY:
                raise CallRefusedError(value)
        raise AssertionError(f"a refusal without a reason: {code} {details}")


# What serves one call: (method, request or its parts, context), answered with encoded messages.
Serve = Callable[[Method, Any, InnerContext], AsyncGenerator[bytes, None]]


class InnerCall:
    """One call in progress. Whoever sends faster than the handler reads has to wait."""

    def __init__(self, number: int, method: Method) -> None:
        self.number = number
        self.method = method
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        self._parts: deque[bytes | None] = deque()
        self._unread = 0
        self._came: asyncio.Future[None] | None = None  # the handler waits for it
        self._read: asyncio.Future[None] | None = None  # the stream does
        self._has_all = False
        self._ended = False

    async def next(self) -> bytes | None:
        while not self._parts:
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        part = self._parts.popleft()
        self._unread -= _size(part)
        _settle(self._read)
        return part

    async def received(self) -> AsyncIterator[bytes]:
        while (part := await self.next()) is not None:
            yield part

    async def take(self, request: pb.PlayRequest) -> None:
        """What the method takes alone: one message, or parts up to the last."""
        name = self.method.name
        if request.HasField("message"):
            if self._has_all:
                raise DecodeError(f"a call of {name} went on after its last message; update the program that sent it")
            self._has_all = not self.method.takes_parts
            await self._hand_over(request.message)
        if request.last and not self._has_all:
            if not self.method.takes_parts:
                raise DecodeError(f"a call of {name} ended without its message; update the program that sent it")
            self._has_all = True
            await self._hand_over(None)

    def end(self) -> None:
        """Nobody reads what came, or what still comes, though the answer may wait long to be taken."""
        self._ended = True
        self._parts.clear()
        self._unread = 0
        _settle(self._read)

    async def _hand_over(self, part: bytes | None) -> None:
        """Waits while too much is unread, but not for a handler that has ended."""
        assert self.task is not None
        size = _size(part)
        while self._unread and self._unread + size > AHEAD and not self.task.done():
            self._read = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._read, self.task), return_when=asyncio.FIRST_COMPLETED)
        if self._ended:
            return
        self._unread += size
        self._parts.append(part)
        _settle(self._came)


def _settle(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _size(part: bytes | None) -> int:
    return 0 if part is None else len(part) + PER_PART


class Stream:
    """One Play."""

    def __init__(self, serve: Serve, context: Any) -> None:
        self._serve = serve
        self._context = InnerContext(context.auth_context())
        self._answers: asyncio.Queue[pb.PlayResponse | None] = asyncio.Queue(ANSWERS_AHEAD)
        self._calls: dict[int, InnerCall] = {}
        self._room = asyncio.Semaphore(CALLS_AT_ONCE)
        self._highest = 0
        self._late = 0
        self._problem: BaseException | None = None

    async def play(self, requests: AsyncIterator[pb.PlayRequest]) -> AsyncIterator[pb.PlayResponse]:
        reader = asyncio.create_task(self._read(requests))
        try:
            answer = await self._answers.get()
            while answer is not None:
                following = self._add_others(answer)
                yield answer
                answer = await self._answers.get() if following is ... else following
            if self._problem is not None:
                raise self._problem
        finally:
            tasks = [reader, *(call.task for call in self._calls.values() if call.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _add_others(self, answer: pb.PlayResponse) -> pb.PlayResponse | EllipsisType | None:
        """What else is ready leaves in the same message. The one that comes after it: none, or not known yet (...)."""
        size = answer.ByteSize()
        while size < TOGETHER and not self._answers.empty():
            other = self._answers.get_nowait()
            if other is None:
                return None
            size += other.ByteSize()
            if size > TOGETHER:
                return other
            answer.more.append(other)
        return ...

    async def _read(self, requests: AsyncIterator[pb.PlayRequest]) -> None:
        """Until the caller says nothing more; what is still under way is answered first."""
        try:
            async for request in requests:
                await self._take(request)
                for number, other in enumerate(request.more, 1):
                    await self._take(other)
                    if number % AT_A_TIME == 0:
                        await asyncio.sleep(0)
            under_way = [call.task for call in self._calls.values() if call.task is not None]
            await asyncio.gather(*under_way, return_exceptions=True)
        except FedrepError as error:
            self._problem = error
        await self._answers.put(None)

    async def _take(self, request: pb.PlayRequest) -> None:
        call = self._calls.get(request.call)
        if request.call > self._highest:
            call = await self._begin(request)
        elif call is None:
            self._count_late()
        if call is None:
            return
        if request.cancelled:
            assert call.task is not None
            call.task.cancel()
            if not call.has_begun:  # it never will, and releases nothing itself
                self._release(call)
            return
        await call.take(request)

    async def _begin(self, request: pb.PlayRequest) -> InnerCall:
        self._highest = request.call
        method = METHODS.get(request.method)
        if method is None:
            raise DecodeError(f"there is no method {request.method[:100]!r} to play; update the program that sent it")
        await self._room.acquire()
        call = self._calls[request.call] = InnerCall(request.call, method)
        call.task = asyncio.create_task(self._answer(call))
        return call

    def _release(self, call: InnerCall) -> None:
        if self._calls.pop(call.number, None) is not None:
            self._room.release()

    def _count_late(self) -> None:
        self._late += 1
        if self._late > LATE_PARTS:
            raise LimitError("this caller goes on sending to calls that have ended; open a new stream", reason="TOO_LATE")

    async def _answer(self, call: InnerCall) -> None:
        """The call keeps its room until its answer is taken: who reads none is soon not read from either."""
        call.has_begun = True
        try:
            try:
                await self._give_answer(call)
            except CallRefusedError as refused:
                call.end()
                await self._answers.put(pb.PlayResponse(call=call.number, last=True, status=refused.status))
            self._late = 0
        finally:
            self._release(call)

    async def _give_answer(self, call: InnerCall) -> None:
        """What is the whole answer leaves while the call is still counted as its caller's."""
        last: bytes | None = None
        request = call.received() if call.method.takes_parts else await call.next()
        async with aclosing(self._serve(call.method, request, self._context)) as messages:
            async for message in messages:
                if last is not None:  # one behind, so that the last part can say that it is the last
                    await self._answers.put(pb.PlayResponse(call=call.number, message=last))
                last = message
                if not call.method.gives_parts:
                    await self._answers.put(pb.PlayResponse(call=call.number, message=message, last=True))
        if call.method.gives_parts:
            await self._answers.put(pb.PlayResponse(call=call.number, message=last, last=True))
