"""One gate for every RPC: who calls, may they, how many bytes pass, and every error as a status with a reason.

An open stream is cut within a second of its caller's certificate being revoked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import structlog

from fedrep.errors import CryptoError, FedrepError
from services.identity.certificates import PeerCertificate, Role, TrustStore
from services.identity.peer import peer_certificate, until_unwelcome
from services.runtime.status import abort_with
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
        """The same kind of handler, with the gate in front."""
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

            async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
                call = _Call(self, method, roles, context)
                async for response in call.stream(inner, request):
                    yield response

            make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
            return make(stream, handler.request_deserializer, handler.response_serializer)
        single = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def unary(request: Any, context: Context) -> Any:
            return await _Call(self, method, roles, context).unary(single, request)

        make_unary = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        return make_unary(unary, handler.request_deserializer, handler.response_serializer)


class _Call:
    """One RPC in progress."""

    def __init__(self, gate: Gate, method: str, roles: tuple[Role, ...], context: Context) -> None:
        self._trust = gate._trust
        self._meter = gate._meter
        self._method = method
        self._roles = roles
        self._context = context
        self._up = 0
        self._down = 0
        self._started = time.monotonic()
        self._notes: CallNotes | None = None

    async def unary(self, behaviour: Callable[..., Awaitable[Any]], request: Any) -> Any:
        try:
            self._admit()
            response = await self._guarded(behaviour(self._counted(request), self._context))
            self._down += response.ByteSize()
        except FedrepError as error:
            self._finish(error.status, error)
            await abort_with(self._context, error)
        except asyncio.CancelledError:
            self._finish("CANCELLED")
            raise
        except grpc.aio.AbortError:
            self._finish("ABORTED")
            raise
        except Exception as error:
            await self._fail(error)
        self._finish("OK")
        return response

    async def stream(self, behaviour: Callable[..., AsyncIterator[Any]], request: Any) -> AsyncIterator[Any]:
        try:
            self._admit()
            responses = behaviour(self._counted(request), self._context)
            while True:
                try:
                    response = await self._guarded(anext(responses))
                except StopAsyncIteration:
                    break
                self._down += response.ByteSize()
                yield response
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
        done, _ = await _wait_for_any({task}, timeout=1.0)
        if not done:
            watch = asyncio.ensure_future(until_unwelcome(self._trust, self._notes.peer))
            try:
                await _wait_for_any({task, watch}, timeout=None)
                if not task.done():
                    task.cancel()
                    raise watch.result()
            finally:
                watch.cancel()
        return task.result()

    def _counted(self, request: Any) -> Any:
        if hasattr(request, "ByteSize"):
            self._up += request.ByteSize()
            return request
        return self._counted_stream(request)

    async def _counted_stream(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self._up += request.ByteSize()
            yield request

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
            getattr(log, level)("refused", method=self._method.rsplit("/")[-1], caller=name, reason=error.reason, why=str(error))


async def _wait_for_any(tasks: set[asyncio.Future[Any]], timeout: float | None) -> tuple[set[Any], set[Any]]:
    """`asyncio.wait`, but the work is cancelled with its waiter."""
    try:
        return await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
