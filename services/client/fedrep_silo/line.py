"""One stream to the server that carries all calls: `Line` answers to the names of the contract's methods, as a stub of gRPC does.

A call of gRPC for each message costs more than the message. A refusal arrives as the same `AioRpcError` as from the method
itself, and so does an answer that cannot be read; when the stream ends, so do all calls in it, with its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2  # type: ignore[import-untyped]

from fedrep.wire.methods import METHODS, Method
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_runtime.status import DETAILS_KEY

TOGETHER = 2**17  # bytes that leave in one message, if each part is smaller

_CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


@dataclass(eq=False)
class _Call:
    """`number` is 0 until its first message leaves."""

    method: Method
    request: Any
    answers: asyncio.Queue[pb.PlayResponse | BaseException] = field(default_factory=asyncio.Queue)
    number: int = 0
    is_over: bool = False


class Line:
    def __init__(self, stub: Any) -> None:
        self._stream: Any = stub.Play()
        self._open: dict[int, asyncio.Queue[pb.PlayResponse | BaseException]] = {}
        self._waiting: set[_Call] = set()
        self._last = 0
        self._writing = asyncio.Lock()
        self._outbox: list[tuple[_Call, pb.PlayRequest]] = []
        self._ended: grpc.aio.AioRpcError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read())

    @property
    def is_over(self) -> bool:
        return self._ended is not None

    async def close(self) -> None:
        self._end(_error(grpc.StatusCode.CANCELLED, "the connection was closed"))  # a reader that never ran could not say so
        self._reader.cancel()
        self._stream.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader

    async def finish(self) -> None:
        """Begin nothing more; returns when what is under way has been answered."""
        async with self._writing:
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await self._stream.done_writing()
        await asyncio.wait((self._reader,))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = METHODS.get(name)
        if method is None:
            raise AttributeError(name)
        ask = self._ask_for_parts if method.gives_parts else self._ask
        return lambda request, timeout=None: ask(method, request, timeout)

    async def _ask(self, method: Method, request: Any, timeout: float | None) -> Any:
        async with aclosing(self._ask_for_parts(method, request, timeout)) as answers:
            async for answer in answers:
                return answer
        raise _error(grpc.StatusCode.INTERNAL, f"the server ended {method.name} without an answer")

    async def _ask_for_parts(self, method: Method, request: Any, timeout: float | None) -> AsyncGenerator[Any, None]:
        if self._ended is not None:
            raise self._ended
        call = _Call(method, request)
        self._waiting.add(call)
        sending = self._begun(self._send(call))
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        over = False
        try:
            while not over:
                async with asyncio.timeout_at(deadline):  # not around the yield: whoever waits there must not be cancelled
                    answer = await call.answers.get()
                if isinstance(answer, BaseException):
                    over = True
                    raise answer
                over = answer.last
                if answer.status:
                    raise _refusal(answer.status)
                if answer.HasField("message"):
                    yield _decoded(method, answer.message)
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, f"{method.name} was not answered in {timeout:g} s") from None
        finally:
            call.is_over = True
            self._waiting.discard(call)
            known = self._open.pop(call.number, None) is not None
            if not over and known:
                self._later(sending, pb.PlayRequest(call=call.number, cancelled=True))

    async def _send(self, call: _Call) -> None:
        """Stops when the answer is there before all parts have left. Never cancelled: gRPC would cancel the whole stream."""
        method = call.method
        try:
            if not method.takes_parts:
                message = call.request.SerializeToString()
                return await self._write(call, pb.PlayRequest(method=method.name, message=message, last=True))
            ready: list[pb.PlayRequest] = []
            size = 0
            async for part in call.request:  # one behind, so that the last part can say that it is the last
                if size >= TOGETHER:
                    await self._write(call, *ready)
                    ready, size = [], 0
                ready.append(pb.PlayRequest(method="" if ready or call.number else method.name, message=part.SerializeToString()))
                size += ready[-1].ByteSize()
            ready = ready or [pb.PlayRequest(method=method.name)]
            ready[-1].last = True
            await self._write(call, *ready)
        except Exception as error:  # without its request a call would wait for ever
            call.answers.put_nowait(error)

    async def _write(self, call: _Call, *messages: pb.PlayRequest) -> None:
        """Returns when they have left. What gathers while another message is on its way leaves in one."""
        self._outbox += ((call, message) for message in messages)
        async with self._writing:
            await asyncio.sleep(0)  # what is said in the same moment is here then
            while self._outbox:
                if self._ended is not None:
                    raise self._ended
                ready = self._taken_out()
                if ready is not None:
                    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # the reader says why the stream ended
                        await self._stream.write(ready)

    def _taken_out(self) -> pb.PlayRequest | None:
        """From the outbox as much as goes together; None if nobody waits for any of it."""
        first: pb.PlayRequest | None = None
        size = taken = 0
        for call, message in self._outbox:
            size += message.ByteSize()
            if first is not None and size > TOGETHER:
                break
            taken += 1
            if call.is_over:
                continue
            numbered = self._numbered(call, message)
            if first is None:
                first = numbered
            else:
                first.more.append(numbered)
        del self._outbox[:taken]
        return first

    def _numbered(self, call: _Call, message: pb.PlayRequest) -> pb.PlayRequest:
        """Calls get their numbers in the order in which they reach the server, which takes a lower one for one that is over."""
        if not call.number:
            self._last += 1
            call.number = self._last
            self._open[call.number] = call.answers
        message.call = call.number
        return message

    def _later(self, sending: asyncio.Task[None], message: pb.PlayRequest) -> None:
        """After what is being sent; nobody waits for it."""

        async def tell() -> None:
            await asyncio.wait((sending,))
            async with self._writing:
                with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await self._stream.write(message)

        self._begun(tell())

    def _begun(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self) -> None:
        try:
            async for answer in self._stream:
                if answer is None:  # gRPC could not read it
                    return self._end(_error(grpc.StatusCode.INTERNAL, "the server sent a message that cannot be read"))
                for each in (answer, *answer.more):
                    answers = self._open.get(each.call)
                    if answers is not None:
                        answers.put_nowait(each)
        except grpc.aio.AioRpcError as error:
            self._end(error)
        finally:
            self._end(_error(grpc.StatusCode.UNAVAILABLE, "the stream to the server has ended"))

    def _end(self, why: grpc.aio.AioRpcError) -> None:
        """The first reason counts. Those are told too whose first message still waits behind one that no longer gets through."""
        if self._ended is None:
            self._ended = why
            for call in self._waiting:
                call.answers.put_nowait(why)


def _decoded(method: Method, message: bytes) -> Any:
    try:
        return method.response.FromString(message)
    except DecodeError as error:
        raise _error(grpc.StatusCode.INTERNAL, f"the server's answer to {method.name} cannot be read: {error}") from None


def _refusal(status: bytes) -> grpc.aio.AioRpcError:
    try:
        said = status_pb2.Status.FromString(status)
    except DecodeError as error:
        return _error(grpc.StatusCode.INTERNAL, f"the server's refusal cannot be read: {error}")
    code = _CODES.get(said.code)
    if code is None:
        return _error(grpc.StatusCode.INTERNAL, f"the server refused with a status that there is not, {said.code}")
    trailers = grpc.aio.Metadata((DETAILS_KEY, status))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, said.message, None)


def _error(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text, None)
