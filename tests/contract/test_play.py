"""Play carries every other method: the same answers, the same refusals, and the same limits, over one stream."""

from __future__ import annotations

import asyncio
import queue
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2  # type: ignore[import-untyped]

from fedrep.errors import FedrepError
from fedrep.wire.methods import METHODS
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep_runtime.status import reason_of
from fedrep_server.calls import interceptor
from fedrep_server.calls.interceptor import Gate
from fedrep_server.calls.limits import Turnstile
from fedrep_server.calls.play import LATE_PARTS
from fedrep_silo.connection import connect
from fedrep_silo.line import Line
from tests.contract.refusals import TOO_LONG_FOR_GRPC, Call, Refused, refuses
from tests.contract.test_federation_rpcs import CASES
from tests.harness import mini_silo
from tests.harness.live_server import PARAMETERS, SILOS, LiveServer, Stage, joined, refusal, wait_for_round, wait_until
from tests.harness.mini_silo import SECONDS, play_round
from tests.harness.people import People
from tests.harness.played_stub import PlayedRefusal, PlayedStub


@pytest.fixture
def played(stages: Callable[[str], Stage], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlayedStub]]:
    """Every silo made from here on plays, but for those that bring a round to its phase; what a test leaves open is closed."""
    for phase in {case[1] for case in CASES}:
        stages(phase)
    made: list[PlayedStub] = []

    def stub(channel: grpc.Channel) -> PlayedStub:
        made.append(PlayedStub(channel))
        return made[-1]

    monkeypatch.setattr(mini_silo, "FederationServiceStub", stub)
    yield made
    for each in made:
        each.close()


def test_play_carries_every_method_but_itself() -> None:
    assert {*METHODS, "Play"} == {method.name for method in pb.DESCRIPTOR.services_by_name["FederationService"].methods}


def test_rounds_are_played_over_one_stream_for_each_silo(server: LiveServer, run_name: str, played: list[PlayedStub]) -> None:
    server.create_run(run_name)
    silos = joined(server, run_name)
    for silo in silos:
        silo.fetch_model(0)
    draw, last = random.Random(3), 0
    for _ in range(2):
        updates = {silo.name: [draw.uniform(-0.5, 0.5) for _ in range(PARAMETERS)] for silo in silos}
        manifest = wait_for_round(server, run_name, after=last)
        assert play_round(silos, manifest, updates).outcome == pb.OUTCOME_APPLIED
        last = manifest.round
    assert all(silo.model == silos[0].model for silo in silos)
    assert len(played) == len(silos)


@pytest.mark.parametrize(
    ("phase", "call", "expected"),
    [case[1:2] + case[3:] for case in CASES if case[4] != TOO_LONG_FOR_GRPC],
    ids=[f"{case[0]}: {case[2]}" for case in CASES if case[4] != TOO_LONG_FOR_GRPC],
)
def test_a_bad_call_is_refused_as_it_is_alone(
    stages: Callable[[str], Stage], played: list[PlayedStub], phase: str, call: Call, expected: Refused
) -> None:
    at = stages(phase)
    before = [silo.stub for silo in at.silos]
    for silo in at.silos:
        silo.stub = PlayedStub(silo.channel)
        played.append(silo.stub)
    try:
        refuses(at, call, expected)
    finally:
        for silo, stub in zip(at.silos, before, strict=True):
            silo.stub = stub


def test_a_method_that_its_role_may_not_call_is_refused_within_play_too(server: LiveServer, run_name: str) -> None:
    run = server.create_run(run_name)
    stub = PlayedStub(server.channel("evaluator"))
    try:
        request = pb.GetConsensusRequest(run=run, round=1)
        assert refusal(lambda: list(stub.GetConsensus(request))) == ("PERMISSION_DENIED", "WRONG_ROLE")
        assert stub.Join(pb.JoinRequest(run_name=run_name, protocol_version=3)).last_round == 0, "the stream goes on"
    finally:
        stub.close()


@pytest.fixture
def raw(server: LiveServer) -> Iterator[PlayedStub]:
    stub = PlayedStub(server.channel(SILOS[0]))
    yield stub
    stub.close()


def ending(stub: PlayedStub) -> tuple[str, str | None]:
    """How the whole stream ends."""
    answers = stub.begin("FindRuns", iter([pb.FindRunsRequest(name="nobody")]), SECONDS)
    return refusal(lambda: [*answers, *stub.begin("FindRuns", iter([pb.FindRunsRequest(name="nobody")]), SECONDS)])


def test_messages_that_come_together_are_taken_one_after_the_other(raw: PlayedStub) -> None:
    """Two calls in one message of gRPC, the parts of one of them among the other's; the answers come as they like."""
    first, second = raw.last + 1, raw.last + 2
    heard: dict[int, queue.Queue[Any]] = {number: queue.Queue() for number in (first, second)}
    raw._answers |= heard
    raw.last = second
    look = pb.FindRunsRequest(name="nobody").SerializeToString()
    chunk = pb.ProposeCoordinatesRequest(chunk=b"x").SerializeToString()
    raw.sending.put(
        pb.PlayRequest(
            call=first,
            method="ProposeCoordinates",
            message=chunk,
            more=[
                pb.PlayRequest(call=second, method="FindRuns", message=look, last=True),
                pb.PlayRequest(call=first, message=chunk, last=True),
            ],
        )
    )
    found = heard[second].get(timeout=SECONDS)
    assert not pb.FindRunsResponse.FromString(found.message).runs
    assert PlayedRefusal(heard[first].get(timeout=SECONDS).status).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_what_a_silo_says_in_one_moment_leaves_in_one_message() -> None:
    async def scenario() -> list[Any]:
        stream = TakingStream()
        line = Line(SimpleNamespace(Play=lambda: stream))

        async def parts() -> AsyncIterator[Any]:
            for chunk in (b"a", b"b"):
                yield pb.ProposeCoordinatesRequest(chunk=chunk)

        calls = [
            asyncio.ensure_future(line.ProposeCoordinates(parts(), timeout=None)),
            asyncio.ensure_future(line.FindRuns(pb.FindRunsRequest(), timeout=None)),
        ]
        await stream.taken.wait()
        await line.close()
        await asyncio.gather(*calls, return_exceptions=True)
        return stream.messages

    (message,) = asyncio.run(scenario())
    assert [(each.call, each.method, each.last) for each in (message, *message.more)] == [
        (1, "ProposeCoordinates", False),
        (1, "", True),
        (2, "FindRuns", True),
    ]


def test_an_unknown_method_ends_the_stream_with_a_sentence(raw: PlayedStub) -> None:
    raw.sending.put(pb.PlayRequest(call=raw.last + 1, method="Nonsense", message=b"", last=True))
    raw.last += 1
    assert ending(raw) == ("INVALID_ARGUMENT", "MALFORMED")


def test_whoever_goes_on_sending_to_calls_that_have_ended_loses_the_stream(raw: PlayedStub) -> None:
    list(raw.begin("FindRuns", iter([pb.FindRunsRequest(name="nobody")]), SECONDS))
    for _ in range(LATE_PARTS + 1):
        raw.sending.put(pb.PlayRequest(call=raw.last, message=b"x"))
    assert ending(raw) == ("RESOURCE_EXHAUSTED", "TOO_LATE")


def test_a_call_that_is_cancelled_waits_no_longer_and_the_stream_goes_on(
    stages: Callable[[str], Stage], played: list[PlayedStub]
) -> None:
    at = stages("propose")
    stub = PlayedStub(at.first.channel)
    played.append(stub)
    waiting = stub.begin("GetConsensus", iter([pb.GetConsensusRequest(run=at.first.run, round=1)]))
    wait_until(lambda: at.server.waiting(at.run) == 1)
    stub.sending.put(pb.PlayRequest(call=stub.last, cancelled=True))
    wait_until(lambda: at.server.waiting(at.run) == 0)
    assert not list(stub.FindRuns(pb.FindRunsRequest(name="nobody"), timeout=SECONDS).runs)
    del waiting


def test_calls_within_play_count_as_calls(people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turnstile, "BURST_SECONDS", 2.5e6)  # the stream and one call in it, however long this takes
    monkeypatch.setattr(interceptor, "HELD_SECONDS", 0.0)
    with LiveServer(people, tmp_path, calls_per_second=1e-6) as live:
        stub = PlayedStub(live.channel(SILOS[0]))
        try:
            refused = [_reason(lambda: stub.FindRuns(pb.FindRunsRequest(), timeout=SECONDS)) for _ in range(3)]
        finally:
            stub.close()
    assert refused == [None, "TOO_MANY_CALLS", "TOO_MANY_CALLS"]


def _reason(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except grpc.RpcError as error:
        return reason_of(error)
    return None


def test_a_silo_calls_the_methods_one_by_one_where_there_is_no_play(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server from before Play and Attend: gRPC itself says that it knows no such methods."""
    known = Gate.intercept_service

    async def as_before(self: Gate, continuation: Any, details: Any) -> Any:
        return None if details.method.endswith(("/Play", "/Attend")) else await known(self, continuation, details)

    monkeypatch.setattr(Gate, "intercept_service", as_before)
    server.create_run(run_name)
    settings = server.silo_settings(SILOS[0], run_name, tmp_path)

    async def ask() -> tuple[list[str], bool]:
        connection = connect(settings)
        try:
            return [run.name for run in await connection.find_runs(run_name)], await connection.attend(b"")
        finally:
            await connection.close()

    assert asyncio.run(ask()) == ([run_name], False)


def test_calls_that_begin_together_all_reach_the_server(server: LiveServer, run_name: str, tmp_path: Path) -> None:
    """An upload looks ahead before its first part leaves, and must not be overtaken by a call with a higher number."""
    server.create_run(run_name)
    settings = server.silo_settings(SILOS[0], run_name, tmp_path)

    async def slow_parts(stub: Any) -> Any:
        async def parts() -> AsyncIterator[Any]:
            for chunk in (b"a", b"b"):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                yield pb.ProposeCoordinatesRequest(chunk=chunk)

        return await stub.ProposeCoordinates(parts(), timeout=SECONDS)

    async def together() -> list[Any]:
        connection = connect(settings)
        try:
            upload = asyncio.create_task(connection._call("ProposeCoordinates", slow_parts))
            await asyncio.sleep(0)
            questions = [connection.find_runs(run_name) for _ in range(3)]
            return await asyncio.gather(upload, *questions, return_exceptions=True)
        finally:
            await connection.close()

    refused, *found = asyncio.run(together())
    assert isinstance(refused, FedrepError)
    assert refused.reason == "NO_HEADER"
    assert [[run.name for run in runs] for runs in found] == [[run_name]] * 3


class StuckStream:
    """A stream of gRPC whose first message never gets through, until the stream ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.writing = asyncio.Event()

    async def write(self, _: Any) -> None:
        self.writing.set()
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self.ended.set()

    def __aiter__(self) -> StuckStream:
        return self

    async def __anext__(self) -> Any:
        await self.ended.wait()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone", None)


class TakingStream(StuckStream):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []
        self.taken = asyncio.Event()

    async def write(self, message: Any) -> None:
        self.messages.append(message)
        self.taken.set()


@pytest.mark.parametrize("closed", [False, True], ids=["the server is gone", "closed here before the reader ran"])
def test_when_a_stream_ends_those_are_told_too_whose_messages_wait_behind_a_stuck_one(closed: bool) -> None:
    async def scenario() -> list[Any]:
        stream = StuckStream()
        line = Line(SimpleNamespace(Play=lambda: stream))
        calls = [asyncio.ensure_future(line.FindRuns(pb.FindRunsRequest(), timeout=None)) for _ in range(3)]
        if closed:
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(line.close()))
        else:
            await stream.writing.wait()
            stream.ended.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    ended = asyncio.run(scenario())
    assert [error.code().name for error in ended] == ["CANCELLED" if closed else "UNAVAILABLE"] * 3


class AnsweringStream(StuckStream):
    """Answers every call with what it is given."""

    def __init__(self, answer: pb.PlayResponse | None) -> None:
        super().__init__()
        self.answer = answer

    async def write(self, _: Any) -> None:
        self.writing.set()

    async def __anext__(self) -> Any:
        if not self.writing.is_set():
            await self.writing.wait()
            return self.answer
        return await super().__anext__()


@pytest.mark.parametrize(
    "answer",
    [
        pb.PlayResponse(call=1, message=b"\xff\xff\xff", last=True),
        pb.PlayResponse(call=1, status=b"\xff\xff\xff", last=True),
        pb.PlayResponse(call=1, status=status_pb2.Status(code=99, message="x").SerializeToString(), last=True),
        pb.PlayResponse(call=1, status=status_pb2.Status(message="no code").SerializeToString(), last=True),
        None,
    ],
    ids=["a message", "a refusal", "a code that there is not", "a refusal that is none", "the stream's own message"],
)
def test_what_cannot_be_read_is_an_internal_error_as_from_grpc_itself(answer: pb.PlayResponse | None) -> None:
    async def scenario() -> None:
        stream = AnsweringStream(answer)
        line = Line(SimpleNamespace(Play=lambda: stream))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await line.FindRuns(pb.FindRunsRequest(), timeout=SECONDS)
        assert failed.value.code() is grpc.StatusCode.INTERNAL, failed.value.details()
        await line.close()

    asyncio.run(scenario())
