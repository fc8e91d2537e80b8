"""One gate for every RPC: who calls, may they, how much of it, how many bytes pass, and every error as a status with a reason.

Whoever asks for more than a caller's share is refused before anything is decoded. A call that stays open is looked at once a
second: it is cut when its caller's certificate was revoked or has expired, or when a revocation list that is needed is too old.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog

from fedrep.errors import CryptoError, DecodeError, FedrepError, LimitError
from fedrep_identity.certificates import PeerCertificate, Role, TrustStore
from fedrep_identity.peer import peer_certificate
from fedrep_identity.revocation import Revocations
from fedrep_runtime.status import LONGEST_TEXT, abort_with
from fedrep_server.calls.limits import TOO_MANY_CALLS, Turnstile, check_message
from fedrep_server.calls.meter import CallListener, FinishedCall
from fedrep_server.calls.permissions import FOLLOWERS, PERMISSIONS, PUBLIC_SERVICES
from fedrep_server.calls.versions import refusal

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 1.0
HELD_SECONDS = 1.0
JUDGED_SECONDS = 60.0
MOST_JUDGEMENTS = 4096


@dataclass
class CallNotes:
    """What a handler learns about its own call: who made it, and which run and round it turned out to be about."""

    peer: PeerCertificate
    call: _Call
    run: str = ""
    round: int = 0


_ROLES = {method: tuple(roles) for method, roles in PERMISSIONS.items()}
_notes: ContextVar[CallNotes] = ContextVar("notes")

Handler = Any  # grpc's own class takes type arguments in its stubs only
Context = Any


def caller() -> PeerCertificate:
    """The certificate behind the RPC being served, already checked against the permissions."""
    return _notes.get().peer


def concerns_run(name: str, round_number: int = 0) -> None:
    """Called by whoever finds the run of a request, so that its bytes are counted there and its span is of that round."""
    notes = _notes.get(None)
    if notes is not None:
        notes.run, notes.round = name, round_number


def only_one_of_its_kind(*, whichever_run: bool = False) -> None:
    """Called once the run is known: an older call of the same method, silo and run ends here, with all that it holds.

    The newest wins, because a silo whose line broke calls again before the server has noticed.
    """
    notes = _notes.get()
    notes.call.replace_older("" if whichever_run else notes.run)


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """The revocation lists that certificates were judged by, and between which times none of them becomes too old."""

    revoked: Revocations
    since: float
    until: float

    @classmethod
    def at(cls, now: float, revoked: Revocations) -> _Lists:
        ends = [known.next_update.timestamp() for known in revoked.lists.values()]
        # A list is still good at the very moment that it names.
        since = max((math.nextafter(end, math.inf) for end in ends if end < now), default=-math.inf)
        return cls(revoked, since, min((math.nextafter(end, math.inf) for end in ends if end >= now), default=math.inf))


Judgement = tuple[PeerCertificate, _Lists, float]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self, trust: TrustStore, meter: CallListener, turnstile: Turnstile) -> None:
        self.trust = trust
        self.meter = meter
        self.turnstile = turnstile
        self.now: Callable[[], float] = time.time
        self.alone: dict[tuple[str, str, str], _Call] = {}
        self._known: dict[object, Judgement] = {}
        self._handlers: dict[str, Handler] = {}
        self._open: set[_Call] = set()
        self._lists = _Lists.at(self.now(), trust.revoked)
        self._swept: _Lists | None = None
        self._sweeping = False

    def admit(self, presented: Presented, roles: tuple[Role, ...]) -> PeerCertificate:
        """The caller's certificate. A judgement stands for a minute, unless a list comes or grows too old, or it expires."""
        now = self.now()
        lists = self._lists_at(now)
        known = presented.judged.get(roles)
        if known is None:
            known = self._known.get((presented.shown, roles))
        if known is None or known[1] is not lists or now >= known[2]:
            known = self._judged(presented, roles, lists, now)
        presented.judged[roles] = known
        return known[0]

    def _judged(self, presented: Presented, roles: tuple[Role, ...], lists: _Lists, now: float) -> Judgement:
        peer = peer_certificate(presented, self.trust, roles, _moment(now))
        if len(self._known) >= MOST_JUDGEMENTS:
            self._known.clear()
        known = peer, lists, min(now + JUDGED_SECONDS, peer.not_after.timestamp())
        self._known[presented.shown, roles] = known
        return known

    def _lists_at(self, now: float) -> _Lists:
        """Another object when a list has come or one more is too old: then every judgement is made anew."""
        if self._lists.revoked is not self.trust.revoked or not self._lists.since <= now < self._lists.until:
            self._lists = _Lists.at(now, self.trust.revoked)
        return self._lists

    async def hold(self) -> None:
        """Whoever calls too often hears so a little later: an answer at once would only be followed by the next call."""
        await asyncio.sleep(HELD_SECONDS)

    def opened(self, call: _Call) -> None:
        self._open.add(call)
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep_again)

    def closed(self, call: _Call) -> None:
        self._open.discard(call)

    def _sweep_again(self) -> None:
        self.sweep()
        self._sweeping = bool(self._open)
        if self._sweeping:
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep_again)

    def sweep(self) -> None:
        """Cuts the calls of everyone who is no longer welcome. While the lists stand only those that expire are looked at."""
        now = self.now()
        lists = self._lists_at(now)
        judged: dict[bytes, FedrepError | None] = {}
        for call in list(self._open):
            peer = call.peer
            if lists is self._swept and now < peer.not_after.timestamp():
                continue
            if peer.chain not in judged:
                judged[peer.chain] = self._unwelcome(peer.chain, now)
            unwelcome = judged[peer.chain]
            if unwelcome is not None:
                call.cut(unwelcome)
        self._swept = lists

    def _unwelcome(self, chain: bytes, now: float) -> CryptoError | None:
        try:
            self.trust.verify(chain, _moment(now))
        except CryptoError as error:
            return error
        return None

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(details)
        method: str = details.method
        if handler is None:
            return refusal(method)
        if method.startswith(PUBLIC_SERVICES):
            return handler
        if method not in self._handlers:
            self._handlers[method] = self._wrapped(handler, method, _ROLES.get(method, ()))
        return self._handlers[method]

    def carried(self, served: Carried, request: Any, context: Context) -> AsyncGenerator[bytes, None]:
        """A call within Play: the same gate as for one that comes alone."""
        call = _Call(self, served.method, _ROLES[served.method], served.coding, context, within=_notes.get().call)
        return call.stream(served.behaviour, request) if served.gives_parts else call.single(served.behaviour, request)

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


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


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


@dataclass(frozen=True, slots=True)
class Carried:
    """A method as Play serves it."""

    method: str
    behaviour: Callable[..., Any]
    coding: Coding
    gives_parts: bool


class Presented:
    """What a connection shows, asked for once: gRPC builds it anew at every question. `judged` is what was said about it.

    `shown` is its hash: what is remembered about connections must not grow with what they choose to show.
    """

    def __init__(self, properties: Mapping[str, Iterable[bytes]]) -> None:
        self._properties = properties
        names = ("ssl_tls_version", "x509_pem_cert", "x509_pem_cert_chain")
        digest = hashlib.sha256()
        for value in (value for name in names for value in (name.encode(), *properties.get(name, ()))):
            digest.update(len(value).to_bytes(8))
            digest.update(value)
        self.shown = digest.digest()
        self.judged: dict[tuple[Role, ...], Judgement] = {}

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._properties


class _Call:
    """One RPC in progress."""

    def __init__(
        self,
        gate: Gate,
        method: str,
        roles: tuple[Role, ...],
        coding: Coding,
        context: Context,
        within: _Call | None = None,
    ) -> None:
        self._gate = gate
        self._within = within
        self._method = method
        self._roles = roles
        self._coding = coding
        self._context = context
        self._up = 0
        self._down = 0
        self._started = time.monotonic()
        self.presented: Presented
        self._notes: CallNotes | None = None
        self._task: asyncio.Task[Any] | None = None
        self._unwelcome: FedrepError | None = None
        self._counted = False
        self._alone: tuple[str, str, str] | None = None

    @property
    def peer(self) -> PeerCertificate:
        assert self._notes is not None
        return self._notes.peer

    def replace_older(self, run: str) -> None:
        self._alone = (self.peer.identity.name, self._method, run)
        older = self._gate.alone.get(self._alone)
        self._gate.alone[self._alone] = self
        if older is not None:
            older.cut(LimitError("this caller opened the same stream again, and the newest is served", reason="REPLACED"))

    def count_elsewhere(self, up: int, down: int) -> None:
        self._up -= up
        self._down -= down

    def cut(self, reason: FedrepError) -> None:
        if self._unwelcome is None and self._task is not None:
            self._unwelcome = reason
            self._task.cancel()

    async def unary(self, behaviour: Callable[..., Awaitable[Any]], request: Any) -> bytes | None:
        response = None
        try:
            self._admit()
            response = self._sent(await behaviour(self._received(request), self._context))
        except BaseException as error:
            await self._ended_by(error)
        self._finish("OK")
        return response

    async def single(self, behaviour: Callable[..., Awaitable[Any]], request: Any) -> AsyncGenerator[bytes, None]:
        """The same within Play. It counts as open until its answer is taken, which nothing cuts any more: it is all there."""
        try:
            self._admit()
            response = self._sent(await behaviour(self._received(request), self._context))
            self._task = None
            yield response
        except BaseException as error:
            await self._ended_by(error)
        self._finish("OK")

    async def stream(self, behaviour: Callable[..., AsyncGenerator[Any, None]], request: Any) -> AsyncGenerator[bytes, None]:
        try:
            self._admit()
            async with aclosing(behaviour(self._received(request), self._context)) as responses:
                async for response in responses:
                    yield self._sent(response)
        except BaseException as error:
            await self._ended_by(error)
        self._finish("OK")

    def _admit(self) -> None:
        self.presented = self._within.presented if self._within is not None else Presented(self._context.auth_context())
        self._notes = CallNotes(self._gate.admit(self.presented, self._roles), self)
        _notes.set(self._notes)
        self._task = asyncio.current_task()
        if self.peer.identity.role in FOLLOWERS:  # of whichever service: an admin's and a viewer's calls are many people's
            self._gate.turnstile.enter(self.peer.identity.name, self._started)
            self._counted = True
        self._gate.opened(self)

    async def _ended_by(self, error: BaseException) -> NoReturn:
        """Always raises: the status for the caller, or what must not be caught."""
        if isinstance(error, asyncio.CancelledError) and self._unwelcome is not None and self._task is not None:
            self._task.uncancel()
            error = self._unwelcome
        if isinstance(error, FedrepError):
            self._finish(error.status, error)
            if error.reason == TOO_MANY_CALLS:
                await self._gate.hold()
            await abort_with(self._context, error)
        self._finish("INTERNAL" if isinstance(error, Exception) else "CANCELLED")
        if isinstance(error, Exception):
            log.error("rpc_failed", method=self._method, exc_info=error)
            await abort_with(self._context, FedrepError("the server met an unexpected error; its log has the details"))
        raise error

    def _received(self, request: Any) -> Any:
        return self._one_received(request, first=True) if isinstance(request, bytes) else self._stream_received(request)

    def _one_received(self, data: bytes, *, first: bool) -> Any:
        self._up += len(data)
        check_message(self._method, len(data), first=first)
        return self._coding.request(data)

    async def _stream_received(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        first = True
        async for data in requests:
            yield self._one_received(data, first=first)
            first = False

    def _sent(self, response: Any) -> bytes:
        data = response if isinstance(response, bytes) else self._coding.write(response)
        self._down += len(data)
        return data

    def _finish(self, code: str, error: FedrepError | None = None) -> None:
        name = self._notes.peer.identity.name if self._notes is not None else ""
        run, number = (self._notes.run, self._notes.round) if self._notes is not None else ("", 0)
        seconds = time.monotonic() - self._started
        self._gate.closed(self)
        if self._counted:
            self._gate.turnstile.leave(name)
        if self._alone is not None and self._gate.alone.get(self._alone) is self:
            del self._gate.alone[self._alone]
        if self._within is not None:  # bytes are counted once, by the call they were for
            self._within.count_elsewhere(self._up, self._down)
        up, down = max(self._up, 0), max(self._down, 0)  # a stream that was cut has not sent all that its calls had answered
        self._gate.meter.called(FinishedCall(self._method, name, run, code, seconds, up, down, number))
        if error is not None:
            level = "warning" if isinstance(error, CryptoError) else "info"
            getattr(log, level)(
                "refused", method=self._method.rsplit("/")[-1], caller=name, reason=error.reason, why=str(error)[:LONGEST_TEXT]
            )
