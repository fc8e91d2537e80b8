"""One gate for every RPC: who calls, may they, how many bytes pass, and every error as a status with a reason.

An open stream is cut within a second of its caller's certificate being revoked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import structlog

from fedrep.errors import CryptoError, DecodeError, FedrepError
from services.identity.certificates import PeerCertificate, Role, TrustStore
from services.identity.peer import peer_certificate, until_unwelcome
from services.runtime.status import LONGEST_TEXT, abort_with
from services.server.permissions import PERMISSIONS, PUBLIC_SERVICES

log = structlog.get_logger(__name__)


@dataclass
class CallNotes:
    """What a handler learns about its own call: who made it, and which run it turned out to be about."""

    peer: PeerCertificate
    run: str = ""


_notes: ContextVar[CallNotes] = ContextVar("notes")

Handler = Any  # grpc's own class takes type arguments in its stubs only
Context = Any


class Meter(Protocol):
    """Told about every finished call."""

    def called(self, method: str, caller: str, run: str, code: str, seconds: float, up: int, down: int) -> None: ...


def caller() -> PeerCertificate:
    """The certificate behind the RPC being served, already checked against the permissions."""
    return _notes.get().peer


def concerns_run(name: str) -> None:
    """Called by whoever finds the run of a request, so that its bytes are counted there."""
    notes = _notes.get(None)
    if notes is not None:
        notes.run = name


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self, trust: TrustStore, meter: Meter) -> None:
        self._trust = trust
        self._meter = meter

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(details)
        method: str = details.method
        if handler is None or method.startswith(PUBLIC_SERVICES):
            return handler
        roles = tuple(PERMISSIONS.get(method, frozenset()))
        return self._wrapped(handler, method, roles)

    def _wrapped(self, handler: Any, method: str, roles: tuple[Role, ...]) -> Handler:
        """The same kind of handler, with the gate in front. It takes and gives bytes: nothing is decoded for a stranger."""
        coding = Coding(handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

            async def stream(request: Any, context: Context) -> AsyncIterator[bytes]:
                call = _Call(self, method, roles, coding, context)
                async for response in call.stream(inner, request):
                    yield response

            make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
            return make(stream)
        single = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def unary(request: Any, context: Context) -> bytes | None:
            return await _Call(self, method, roles, coding, context).unary(single, request)

        make_unary = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        return make_unary(unary)


@dataclass(frozen=True, slots=True)
class Coding:
    """Messages of one RPC <-> bytes."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]

    def request(self, data: bytes) -> Any:
        try:
            return self.read(data)
        except Exception as error:  # protobuf's own class; whatever it is, the bytes are at fault
            raise DecodeError("these bytes are not a message of this call; update the program that sent them") from error


class _Call:
    """One RPC in progress."""

    def __init__(self, gate: Gate, method: str, roles: tuple[Role, ...], coding: Coding, context: Context) -> None:
        self._trust = gate._trust
        self._meter = gate._meter
        self._method = method
        self._roles = roles
        self._coding = coding
        self._context = context
        self._up = 0
        self._down = 0
        self._started = time.monotonic()
        self._notes: CallNotes | None = None

    async def unary(self, behaviour: Callable[..., Awaitable[Any]], request: Any) -> bytes | None:
        response = None
        try:
            self._admit()
            response = self._sent(await self._guarded(behaviour(self._received(request), self._context)))
        except FedrepError as error:
            self._finish(error.status, error)
            await abort_with(self._context, error)
        except asyncio.CancelledError:
            self._finish("CANCELLED")
            raise
        except Exception as error:
            await self._fail(error)
        self._finish("OK")
        return response

    async def stream(self, behaviour: Callable[..., AsyncGenerator[Any, None]], request: Any) -> AsyncIterator[bytes]:
        try:
            self._admit()
            async with aclosing(behaviour(self._received(request), self._context)) as responses:
                while True:
                    try:
                        response = await self._guarded(anext(responses))
                    except StopAsyncIteration:
                        break
                    yield self._sent(response)
        except FedrepError as error:
            self._finish(error.status, error)
            await abort_with(self._context, error)
        except (asyncio.CancelledError, GeneratorExit):
            self._finish("CANCELLED")
            raise
        except Exception as error:
            await self._fail(error)
        self._finish("OK")

    def _admit(self) -> None:
        self._notes = CallNotes(peer_certificate(self._context, self._trust, self._roles))
        _notes.set(self._notes)

    async def _guarded(self, work: Awaitable[Any]) -> Any:
        """Quick calls are not watched; one that waits is watched for revocation."""
        assert self._notes is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=1.0)
            if not task.done():
                await self._watched(task, self._notes.peer)
            return task.result()
        finally:
            await _put_down(task)

    async def _watched(self, task: asyncio.Future[Any], peer: PeerCertificate) -> None:
        watch = asyncio.ensure_future(until_unwelcome(self._trust, peer))
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise watch.result()
        finally:
            await _put_down(watch)

    def _received(self, request: Any) -> Any:
        return self._one_received(request) if isinstance(request, bytes) else self._stream_received(request)

    def _one_received(self, data: bytes) -> Any:
        self._up += len(data)
        return self._coding.request(data)

    async def _stream_received(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self._one_received(data)

    def _sent(self, response: Any) -> bytes:
        data = self._coding.write(response)
        self._down += len(data)
        return data

    async def _fail(self, error: Exception) -> None:
        log.exception("rpc_failed", method=self._method)
        hidden = FedrepError("the server met an unexpected error; its log has the details")
        self._finish("INTERNAL")
        await abort_with(self._context, hidden)
        raise AssertionError from error

    def _finish(self, code: str, error: FedrepError | None = None) -> None:
        name = self._notes.peer.identity.name if self._notes is not None else ""
        run = self._notes.run if self._notes is not None else ""
        seconds = time.monotonic() - self._started
        self._meter.called(self._method, name, run, code, seconds, self._up, self._down)
        if error is not None:
            level = "warning" if isinstance(error, CryptoError) else "info"
            getattr(log, level)(
                "refused", method=self._method.rsplit("/")[-1], caller=name, reason=error.reason, why=str(error)[:LONGEST_TEXT]
            )


async def _put_down(task: asyncio.Future[Any]) -> None:
    """Cancelled if it still runs, and really over when this returns: a generator cannot be closed while it runs."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
