"""The dashboard's only source: the server's ObserverService, and whether it answers.

Every call marks the server reachable or not; `Reachability` is what the banner shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import structlog

from fedrep.errors import FedrepError
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep.wire.v1 import observer_pb2_grpc
from fedrep_runtime.status import reason_of

T = TypeVar("T")

CALL_SECONDS = 10.0
PAGE = 1000
_UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}

log = structlog.get_logger()


class ServerUnreachableError(FedrepError):
    """The federation server does not answer; the dashboard keeps trying."""

    status = "UNAVAILABLE"
    default_reason = "SERVER_UNREACHABLE"


class ServerRefusedError(FedrepError):
    """The federation server answered with an error; its text is shown as it came."""

    def __init__(self, message: str, code: grpc.StatusCode, reason: str | None = None) -> None:
        super().__init__(message, reason=reason or code.name)
        self.code = code


@dataclass(frozen=True)
class Reachability:
    reachable: bool
    since: float
    problem: str = ""


class Observer:
    """`open_channel` is called inside the running loop, once; gRPC reconnects by itself from then on."""

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], address: str) -> None:
        self.address = address
        self.state = Reachability(False, time.time())
        self._open_channel = open_channel
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None  # the generated stub carries no types
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Also later: a new channel presents the certificate that is on disk by then."""
        old, self._channel = self._channel, self._open_channel()
        self._stub = observer_pb2_grpc.ObserverServiceStub(self._channel)  # type: ignore[no-untyped-call]
        if old is not None:
            await old.close(None)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)

    @property
    def state_changed(self) -> asyncio.Event:
        """Set at the next change of `state` after this was read."""
        return self._changed

    async def runs(self) -> list[pb.RunSummary]:
        return list((await self._call(self._stub.ListRuns, pb.ListRunsRequest())).runs)

    async def run(self, name: str) -> pb.GetRunResponse:
        return await self._call(self._stub.GetRun, pb.GetRunRequest(name=name))

    async def rounds(self, name: str, from_round: int) -> tuple[list[pb.Round], int]:
        """One page and the first round of the next, 0 at the end."""
        request = pb.ListRoundsRequest(name=name, from_round=from_round, limit=PAGE)
        answer = await self._call(self._stub.ListRounds, request)
        return list(answer.rounds), answer.next_round

    async def watch(self, name: str, after: int) -> AsyncIterator[pb.WatchRunResponse]:
        """Events after a position, for as long as the server keeps the stream open."""
        stream = self._stub.WatchRun(pb.WatchRunRequest(name=name, after=after))
        try:
            async for message in stream:
                self._mark(True)
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        except asyncio.CancelledError:
            raise self._closed_or_cancelled() from None
        finally:
            stream.cancel()

    async def pause(self, name: str, reason: str) -> pb.RunSummary:
        answer: pb.PauseRunResponse = await self._call(self._stub.PauseRun, pb.PauseRunRequest(name=name, reason=reason))
        return answer.summary

    async def resume(self, name: str) -> pb.RunSummary:
        answer: pb.ResumeRunResponse = await self._call(self._stub.ResumeRun, pb.ResumeRunRequest(name=name))
        return answer.summary

    async def stop(self, name: str, reason: str) -> pb.RunSummary:
        answer: pb.StopRunResponse = await self._call(self._stub.StopRun, pb.StopRunRequest(name=name, reason=reason))
        return answer.summary

    async def tag(self, name: str, tags: list[str]) -> pb.RunSummary:
        answer: pb.TagRunResponse = await self._call(self._stub.TagRun, pb.TagRunRequest(name=name, tags=tags))
        return answer.summary

    async def exclude(self, name: str, silo: str, reason: str) -> pb.SiloStatus:
        answer: pb.ExcludeSiloResponse = await self._call(
            self._stub.ExcludeSilo, pb.ExcludeSiloRequest(name=name, silo=silo, reason=reason)
        )
        return answer.silo

    async def readmit(self, name: str, silo: str) -> pb.SiloStatus:
        answer: pb.ReadmitSiloResponse = await self._call(self._stub.ReadmitSilo, pb.ReadmitSiloRequest(name=name, silo=silo))
        return answer.silo

    async def amend(self, request: pb.AmendRunRequest) -> pb.RunSummary:
        answer: pb.AmendRunResponse = await self._call(self._stub.AmendRun, request)
        return answer.summary

    async def roll_back(self, request: pb.RollBackRunRequest) -> pb.RunSummary:
        answer: pb.RollBackRunResponse = await self._call(self._stub.RollBackRun, request, seconds=60.0)
        return answer.summary

    async def create(self, parts: Iterator[pb.CreateRunRequest]) -> pb.CreateRunResponse:
        return await self._call(self._stub.CreateRun, parts, seconds=60.0)

    async def download(self, name: str, version: int | None) -> AsyncIterator[pb.DownloadModelResponse]:
        request = pb.DownloadModelRequest(name=name, version=version)
        stream = self._stub.DownloadModel(request)
        try:
            async for part in stream:
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        finally:
            stream.cancel()

    async def _call(self, method: Callable[..., Awaitable[T]], request: Any, seconds: float = CALL_SECONDS) -> T:
        try:
            answer = await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        except asyncio.CancelledError:
            raise self._closed_or_cancelled() from None
        self._mark(True)
        return answer

    def _failure(self, error: grpc.aio.AioRpcError) -> FedrepError:
        code, details = error.code(), error.details() or ""
        if code in _UNREACHABLE:
            self._mark(False)
            log.debug("call failed", code=code.name, problem=details)
            return self._unreachable()
        text = details or f"The federation server answered {code.name} without a reason."
        return ServerRefusedError(text, code, reason_of(error))

    def _unreachable(self) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"The federation server at {self.address} does not answer. The dashboard keeps trying; "
            "check that the server runs and that this machine can reach it."
        )

    def _closed_or_cancelled(self) -> BaseException:
        """A closed channel cancels its calls just as somebody who cancels the task would; only the latter may end it."""
        task = asyncio.current_task()
        return asyncio.CancelledError() if task is None or task.cancelling() else self._unreachable()

    def refused(self, problem: str) -> None:
        """The server answers, but not to this dashboard."""
        self._mark(False, problem)

    def _mark(self, reachable: bool, problem: str = "") -> None:
        if reachable == self.state.reachable and problem == self.state.problem:
            return
        self.state = Reachability(reachable, time.time(), problem)
        log.info("server reachable" if reachable else "server unreachable", address=self.address, problem=problem)
        self._changed.set()
        self._changed = asyncio.Event()


@contextlib.asynccontextmanager
async def background(work: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends with the block."""

    async def run() -> None:
        await work()

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
