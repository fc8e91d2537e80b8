"""One listed silo that asks for more than its share: refused from sizes and headers alone, and at nobody else's cost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedrep.errors import DecodeError, LimitError
from fedrep.protocol.manifests import SiloName
from fedrep.secagg.pairs import MAC_BYTES
from fedrep.secagg.shamir import MAX_HOLDERS
from fedrep.wire import chunks
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import observer_pb2
from fedrep.wire.v1.observer_pb2_grpc import ObserverServiceStub
from fedrep_server.calls import expected, export, interceptor, limits, model_shelf, observer, servicer
from fedrep_server.operations.app import WINDOW_BYTES
from fedrep_server.rounds import presence_notes
from tests.contract.refusals import changed
from tests.harness import live_server
from tests.harness.live_server import SILOS, LiveServer, Stage, connect, refusal, stage, wait_until
from tests.harness.mini_silo import SECONDS, streamed
from tests.harness.people import People

PREFIX = "/fedrep.wire.v1.FederationService/"
SINGLE = ("Join", "GetCertificates", "Abstain", "GetSurvivors", "ConfirmSurvivors", "RevealShares", "ReportMetrics", "Leave")
SELDOM = 1e-6  # calls a second
NOISE = b"\xff"  # bytes that no decoder takes: who says MALFORMED has decoded them


class Held:
    """A stream that is open and says no more until it is let go."""

    def __init__(self, *messages: Any) -> None:
        self._messages = messages
        self._go_on = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield from self._messages
        self._go_on.wait(SECONDS)

    def let_go(self) -> None:
        self._go_on.set()


def raw(server: LiveServer, method: str) -> Any:
    """The method without its stub: it takes any bytes."""
    channel: Any = server.channel("silo-a")
    return channel.unary_unary(PREFIX + method)


@pytest.fixture
def at(server: LiveServer, run_name: str) -> Stage:
    return stage(server, run_name, "propose")


def header_alone(at: Stage, **fields: Any) -> tuple[str, str | None]:
    """What a proposal's header gets that nothing follows: neither chunks nor the end of the stream."""
    held = Held(pb.ProposeCoordinatesRequest(header=changed(at.sent[f"proposal/{at.last.name}"][0], **fields)))
    try:
        return refusal(lambda: at.last.stub.ProposeCoordinates(iter(held), timeout=SECONDS))
    finally:
        held.let_go()


@pytest.mark.parametrize("method", SINGLE)
def test_a_message_too_long_for_its_method_is_refused_before_it_is_decoded(server: LiveServer, method: str) -> None:
    call = raw(server, method)
    assert refusal(lambda: call(NOISE * 200_000, timeout=SECONDS)) == ("INVALID_ARGUMENT", "TOO_LARGE")
    assert refusal(lambda: call(NOISE * 100, timeout=SECONDS)) == ("INVALID_ARGUMENT", "MALFORMED")


def test_what_no_message_can_need_does_not_get_past_grpc(server: LiveServer) -> None:
    call = raw(server, "RevealShares")
    assert refusal(lambda: call(NOISE * (limits.LARGEST_RECEIVED + 1), timeout=SECONDS)) == ("RESOURCE_EXHAUSTED", None)


async def relay_to(port: int, passed: list[int]) -> asyncio.Server:
    """A port that leads to the server's and notes how many bytes go there."""

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, counted: list[int]) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                counted.append(len(data))
                target.write(data)
                await target.drain()
        target.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, onward, passed), pass_on(onward_reader, writer, []))

    return await asyncio.start_server(connected, "127.0.0.1", 0)


def test_of_a_message_that_is_far_too_long_the_server_takes_a_window_and_not_the_whole(server: LiveServer) -> None:
    """gRPC lets a sender's window grow with the speed of the line unless it is told not to; whatever fits in is held."""
    passed: list[int] = []
    relay = server.ask(relay_to(server.running.port, passed))
    address = f"localhost:{relay.sockets[0].getsockname()[1]}"
    channel: Any = connect(server.people, address, server.people.credentials["silo-a"])
    call = channel.unary_unary(PREFIX + "RevealShares")
    flood = bytes(15 << 20)
    for _ in range(4):
        waiting = [call.future(flood, timeout=SECONDS) for _ in range(8)]
        assert {refusal(each.result) for each in waiting} == {("RESOURCE_EXHAUSTED", None)}
    channel.close()
    server.loop.call_soon_threadsafe(relay.close)
    assert sum(passed) < 32 * 2 * WINDOW_BYTES, "of 32 messages of 15 MiB"


def test_a_reveal_out_of_its_phase_is_refused_before_its_shares_are_looked_at(at: Stage) -> None:
    """A share of no kind is malformed, for whoever looks."""
    request = pb.RevealSharesRequest(run=at.last.run, round=at.manifest.round, shares=[pb.RevealedShare(dealer="silo-a")])
    assert refusal(lambda: at.last.stub.RevealShares(request, timeout=SECONDS)) == ("FAILED_PRECONDITION", "OUT_OF_PHASE")


def test_a_proposal_is_refused_by_its_header_alone(at: Stage) -> None:
    assert header_alone(at, round=7) == ("FAILED_PRECONDITION", "WRONG_ROUND")
    assert header_alone(at, run=bytes(32)) == ("NOT_FOUND", "UNKNOWN_RUN")
    longest = expected.longest_code(at.manifest.per_silo, at.manifest.parameters)
    assert header_alone(at, coordinates_size=longest + 1) == ("INVALID_ARGUMENT", "TOO_LARGE")
    too_many = [bytes(82)] * (len(SILOS) * 10)
    assert header_alone(at, sealed_shares=too_many) == ("INVALID_ARGUMENT", "TOO_LARGE")


def test_a_submission_before_its_phase_is_refused_by_its_header_alone(at: Stage) -> None:
    header = pb.SubmissionHeader(run=at.last.run, round=at.manifest.round, masked_size=8)
    held = Held(pb.SubmitMaskedShareRequest(header=header))
    assert refusal(lambda: at.last.stub.SubmitMaskedShare(iter(held), timeout=SECONDS)) == ("FAILED_PRECONDITION", "OUT_OF_PHASE")
    held.let_go()


def test_a_submission_of_another_size_than_the_consensus_is_refused_by_its_header_alone(
    server: LiveServer, run_name: str
) -> None:
    at = stage(server, run_name, "submit")
    header, masked = at.sent[f"submission/{at.last.name}"]
    for size, reason in ((len(masked) + 2, "TOO_LARGE"), (len(masked) - 2, "MALFORMED")):
        held = Held(pb.SubmitMaskedShareRequest(header=changed(header, masked_size=size)))
        assert refusal(lambda held=held: at.last.stub.SubmitMaskedShare(iter(held), timeout=SECONDS)) == (
            "INVALID_ARGUMENT",
            reason,
        )
        held.let_go()
    at.last.submit(header, masked)


def test_of_two_streams_of_a_silo_the_newest_is_served(at: Stage) -> None:
    header, code = at.sent[f"proposal/{at.last.name}"]
    held = Held(pb.ProposeCoordinatesRequest(header=header))
    older = at.last.stub.ProposeCoordinates.future(iter(held), timeout=SECONDS)
    gate = at.server
    wait_until(lambda: gate.waiting_streams() == 1)
    at.last.propose(header, code)
    assert refusal(older.result) == ("RESOURCE_EXHAUSTED", "REPLACED")
    assert gate.waiting_streams() == 0
    held.let_go()


def test_streams_of_two_runs_do_not_replace_each_other(server: LiveServer, run_name: str) -> None:
    stages = [stage(server, f"{run_name}-{n}", "propose") for n in range(2)]
    sent = [at.sent[f"proposal/{at.last.name}"] for at in stages]
    held = Held(pb.ProposeCoordinatesRequest(header=sent[0][0]), pb.ProposeCoordinatesRequest(chunk=sent[0][1]))
    older = stages[0].last.stub.ProposeCoordinates.future(iter(held), timeout=SECONDS)
    wait_until(lambda: server.waiting_streams() == 1)
    stages[1].last.propose(*sent[1])
    held.let_go()
    assert older.result(SECONDS) == pb.ProposeCoordinatesResponse()


def test_a_stream_that_stalls_is_cut_and_what_it_held_is_forgotten(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting: weakref.WeakSet[chunks.Assembler] = weakref.WeakSet()

    class Watched(chunks.Assembler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            collecting.add(self)

    monkeypatch.setattr(expected, "Assembler", Watched)
    with LiveServer(people, tmp_path, receive_seconds=0.5) as server:
        at = stage(server, "stalled", "propose")
        collecting.clear()
        header, code = at.sent[f"proposal/{at.last.name}"]
        held = Held(pb.ProposeCoordinatesRequest(header=header), pb.ProposeCoordinatesRequest(chunk=code[:-1]))
        call = at.last.stub.ProposeCoordinates.future(iter(held), timeout=SECONDS)
        assert refusal(call.result) == ("RESOURCE_EXHAUSTED", "TOO_SLOW")
        nothing = Held()
        assert refusal(lambda: at.last.stub.ProposeCoordinates(iter(nothing), timeout=SECONDS)) == (
            "RESOURCE_EXHAUSTED",
            "TOO_SLOW",
        )
        wait_until(lambda: gc.collect() >= 0 and not collecting)
        held.let_go()
        nothing.let_go()


def test_what_came_in_chunks_is_put_together_off_the_event_loop(at: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[str] = []
    finish = chunks.Assembler.finish

    def noted(self: chunks.Assembler) -> bytes:
        where.append(threading.current_thread().name)
        return finish(self)

    monkeypatch.setattr(chunks.Assembler, "finish", noted)
    monkeypatch.setattr(servicer, "INLINE_BYTES", 10)  # a round of this size has no large messages
    at.last.propose(*at.sent[f"proposal/{at.last.name}"])
    assert where
    assert at.server.thread_name not in where


def test_a_silo_has_so_many_calls_open_and_no_more_and_others_are_not_disturbed(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, calls_at_once=4, wait_seconds=SECONDS) as server:
        at = stage(server, "crowd", "propose")
        ask = pb.GetSurvivorsRequest(run=at.first.run, round=at.manifest.round)
        waiting = [at.first.stub.GetSurvivors.future(ask, timeout=SECONDS) for _ in range(4)]
        wait_until(lambda: server.waiting("crowd") == 4)
        assert refusal(lambda: at.first.stub.GetSurvivors(ask, timeout=SECONDS)) == ("RESOURCE_EXHAUSTED", "TOO_MANY_CALLS")
        at.last.propose(*at.sent[f"proposal/{at.last.name}"])
        for call in waiting:
            call.cancel()
        wait_until(lambda: server.waiting("crowd") == 0)
        assert at.first.stub.GetCertificates(pb.GetCertificatesRequest(run=at.first.run), timeout=SECONDS) is not None


def test_a_silo_that_calls_too_often_is_refused_until_time_has_passed() -> None:
    turnstile = limits.Turnstile(at_once=100, per_second=2.0)

    def accepted(caller: str, now: float) -> int:
        count = 0
        try:
            while True:
                turnstile.enter(caller, now)
                turnstile.leave(caller)
                count += 1
        except LimitError:
            return count

    assert accepted("silo-a", 0.0) == 20  # ten seconds' worth
    assert accepted("silo-a", 0.0) == 0
    assert accepted("silo-b", 0.0) == 20
    assert accepted("silo-a", 3.0) == 6
    assert accepted("silo-a", 1000.0) == 20


@pytest.fixture
def refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each caller has one call, however long a test takes. That a refusal is held back is a test of its own."""
    monkeypatch.setattr(limits.Turnstile, "BURST_SECONDS", 1.5 / SELDOM)
    monkeypatch.setattr(interceptor, "HELD_SECONDS", 0.0)


@pytest.mark.usefixtures("refused_at_once")
def test_the_server_counts_calls(people: People, tmp_path: Path) -> None:
    with LiveServer(people, tmp_path, calls_per_second=SELDOM) as server:
        call = raw(server, "Leave")
        codes = {refusal(lambda: call(pb.LeaveRequest().SerializeToString(), timeout=SECONDS)) for _ in range(4)}
        assert codes == {("NOT_FOUND", "UNKNOWN_RUN"), ("RESOURCE_EXHAUSTED", "TOO_MANY_CALLS")}


def test_a_silo_has_one_download_at_a_time_and_all_downloads_share_one_copy(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads on: whatever is held for a download stays held. The copies on the shelf are gone at once.

    A client's window would grow with the speed of the line, until on some machines a whole model fits in: not here.
    """
    made: list[int] = []
    model_file = export.model_file

    def counted(*given: Any) -> bytes:
        data = model_file(*given)
        made.append(len(data))
        return data

    monkeypatch.setattr(observer, "model_file", counted)
    monkeypatch.setattr(model_shelf, "HELD_SECONDS", 0.0)
    monkeypatch.setattr(live_server, "PARAMETERS", 4_000_000)
    with LiveServer(people, tmp_path) as server:
        for name in ("one", "other"):
            server.create_run(name)

        def opened(caller: str, run: str) -> Any:
            stub: Any = ObserverServiceStub(server.channel(caller, [("grpc.http2.bdp_probe", 0)]))  # type: ignore[no-untyped-call]
            stream = stub.DownloadModel(observer_pb2.DownloadModelRequest(name=run), timeout=SECONDS)
            next(stream)
            return stream

        held = [opened("silo-a", "one") for _ in range(5)]
        wait_until(lambda: len(server.running.gate._open) == 1)
        held += [opened(caller, "one") for caller in ("silo-b", "evaluator", "viewer", "viewer")]
        wait_until(lambda: len(server.running.gate._open) == 5)
        assert len(made) == 1
        held.append(opened("silo-a", "other"))
        wait_until(lambda: len(server.running.gate._open) == 5)
        for stream in held:
            stream.cancel()


@pytest.mark.usefixtures("refused_at_once")
def test_the_server_counts_the_downloads_of_silos_and_evaluators(people: People, tmp_path: Path) -> None:
    """The certificate of a viewer may be that of a dashboard, with many people behind it."""
    with LiveServer(people, tmp_path, calls_per_second=SELDOM) as server:
        codes = {}
        for name in ("silo-a", "evaluator", "viewer"):
            stub: Any = ObserverServiceStub(server.channel(name))  # type: ignore[no-untyped-call]
            request = observer_pb2.DownloadModelRequest(name="unknown")
            codes[name] = {refusal(lambda: list(stub.DownloadModel(request, timeout=SECONDS)))[1] for _ in range(4)}  # noqa: B023
        counted = {"UNKNOWN_RUN", "TOO_MANY_CALLS"}
        assert codes == {"silo-a": counted, "evaluator": counted, "viewer": {"UNKNOWN_RUN"}}


@pytest.mark.usefixtures("refused_at_once")
def test_a_silo_that_calls_too_often_hears_so_a_little_later(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()

    async def hold() -> None:
        held.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    with LiveServer(people, tmp_path, calls_per_second=SELDOM) as server:
        monkeypatch.setattr(server.running.gate, "hold", hold)
        call = raw(server, "Leave")
        assert refusal(lambda: call(b"", timeout=SECONDS)) == ("NOT_FOUND", "UNKNOWN_RUN")
        assert not held.is_set()
        flood = call.future(b"", timeout=SECONDS)
        assert held.wait(SECONDS)
        assert not flood.done()
        go_on.set()
        assert refusal(flood.result) == ("RESOURCE_EXHAUSTED", "TOO_MANY_CALLS")


def test_a_round_stays_within_every_limit(at: Stage) -> None:
    """The largest roster there can be makes no longer messages than the limits let through."""
    share = pb.RevealedShare(dealer="n" * 63, secret=pb.SECRET_KIND_SEED, share=bytes(33))
    reveal = pb.RevealSharesRequest(run=bytes(32), round=2**40, shares=[share] * MAX_HOLDERS)
    limits.check_message(PREFIX + "RevealShares", reveal.ByteSize(), first=True)
    header = changed(
        at.sent[f"proposal/{at.last.name}"][0],
        sealed_shares=[bytes(82)] * MAX_HOLDERS,
        seed_share_hashes=[bytes(32)] * MAX_HOLDERS,
        key_share_hashes=[bytes(32)] * MAX_HOLDERS,
    )
    first = next(streamed(pb.ProposeCoordinatesRequest, header, b""))
    limits.check_message(PREFIX + "ProposeCoordinates", first.ByteSize(), first=True)
    wanted = pb.GetCertificatesRequest(run=bytes(32), fingerprints=[bytes(32)] * MAX_HOLDERS)
    limits.check_message(PREFIX + "GetCertificates", wanted.ByteSize(), first=True)
    macs, signature = bytes(MAC_BYTES * MAX_HOLDERS), bytes(72)
    submission = pb.SubmissionHeader(run=bytes(32), round=2**40, signature=signature, masked_sha256=bytes(32), macs=macs)
    first_part = pb.SubmitMaskedShareRequest(header=submission)
    limits.check_message(PREFIX + "SubmitMaskedShare", first_part.ByteSize(), first=True)
    confirmation = pb.ConfirmSurvivorsRequest(run=bytes(32), round=2**40, signature=signature, macs=macs)
    limits.check_message(PREFIX + "ConfirmSurvivors", confirmation.ByteSize(), first=True)
    chunk = pb.ProposeCoordinatesRequest(chunk=bytes(chunks.CHUNK_BYTES))
    limits.check_message(PREFIX + "ProposeCoordinates", chunk.ByteSize(), first=False)
    with pytest.raises(DecodeError):
        limits.check_message(PREFIX + "ProposeCoordinates", chunk.ByteSize() + 32, first=False)
    assert grpc.StatusCode[LimitError.status] is grpc.StatusCode.RESOURCE_EXHAUSTED


def lines(server: LiveServer, run: str, kind: str) -> int:
    stored = server.running.coordinator.store.events(run, 0, 10_000)
    return sum(entry.event.kind == kind for entry in stored)


def test_a_silo_that_brings_other_keys_leaves_no_line_and_no_write_behind(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_run(run_name)
    silo = server.silo("silo-a")
    silo.join(run_name)
    store = server.running.coordinator.store
    written: list[str] = []
    database: Any = store.database  # type: ignore[attr-defined]
    write = database.write

    def noted() -> Any:
        written.append("a transaction")
        return write()

    monkeypatch.setattr(database, "write", noted)
    keys = []
    for _ in range(10):
        silo.session = X25519PrivateKey.generate()
        silo.join(run_name)
        keys.append(silo.session.public_key().public_bytes_raw())
    assert lines(server, run_name, "joined") == 1
    assert written == []
    standings = server.driver(run_name).attendance.standings
    assert standings[SiloName("silo-a")].entry.session_key == keys[-1]
    silo.stub.Leave(pb.LeaveRequest(run=silo.run), timeout=SECONDS)
    silo.join(run_name)
    assert lines(server, run_name, "joined") == 2


def test_a_silo_that_joins_and_leaves_in_turn_has_a_few_lines_a_minute(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(time=time.time, monotonic=lambda: 0.0)
    monkeypatch.setattr(presence_notes, "time", clock)
    server.create_run(run_name)
    silo, other = server.silo("silo-a"), server.silo("silo-b")

    def come_and_go() -> None:
        for _ in range(presence_notes.MOST_LINES):
            silo.join(run_name)
            silo.stub.Leave(pb.LeaveRequest(run=silo.run), timeout=SECONDS)

    def about(name: str) -> list[str]:
        stored = server.running.coordinator.store.events(run_name, 0, 10_000)
        return [entry.event.text for entry in stored if entry.event.silo == name and entry.event.kind in ("joined", "left")]

    come_and_go()
    assert len(about("silo-a")) == presence_notes.MOST_LINES
    assert about("silo-a")[-1] == "silo-a left the run; what follows within a minute is left out"
    assert not server.driver(run_name).present, "it has left all the same"
    other.join(run_name)
    assert about("silo-b") == ["silo-b joined"]
    clock.monotonic = lambda: presence_notes.MINUTE
    come_and_go()
    assert len(about("silo-a")) == 2 * presence_notes.MOST_LINES


def test_a_join_is_written_down_when_it_tells_something_new(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    silo = server.silo("silo-a")
    silo.join(run_name)
    request = silo.join_request(run_name, silo.run)
    request.software_version = "9.9"
    silo.stub.Join(request, timeout=SECONDS)
    row = next(row for row in server.running.coordinator.store.silo_rows(run_name) if row.name == "silo-a")
    assert row.software_version == "9.9"


def test_problems_without_end_leave_a_few_lines_and_the_latest(server: LiveServer, run_name: str) -> None:
    server.create_run(run_name)
    silo = server.silo("silo-a")
    silo.join(run_name)
    for number in range(20):
        report = pb.ReportMetricsRequest(run=silo.run, round=0, problem=f"problem {number}")
        silo.stub.ReportMetrics(report, timeout=SECONDS)
    assert lines(server, run_name, "problem") == 5
    row = next(row for row in server.running.coordinator.store.silo_rows(run_name) if row.name == "silo-a")
    assert row.problem == "problem 19"


def test_of_a_message_sent_again_and_again_while_a_commit_waits_the_server_holds_the_latest(
    server: LiveServer, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = stage(server, run_name, "confirm")
    driver = server.driver(run_name)
    turn, received, told = driver._interpreter.lock, driver._interpreter._received, []

    def noted(event: Any) -> Any:
        told.append(type(event).__name__)
        return received(event)

    monkeypatch.setattr(driver._interpreter, "_received", noted)
    server.loop.call_soon_threadsafe(turn.take)
    wait_until(lambda: not turn.is_free)
    header, masked = at.sent[f"submission/{at.first.name}"]
    calls = []
    for _ in range(3):
        parts = streamed(pb.SubmitMaskedShareRequest, header, masked)
        calls.append(at.first.stub.SubmitMaskedShare.future(parts, timeout=SECONDS))
        wait_until(lambda: turn._waiters and all(call.done() for call in calls[:-1]))
    assert [refusal(call.result) for call in calls[:-1]] == [("RESOURCE_EXHAUSTED", "REPLACED")] * 2
    server.loop.call_soon_threadsafe(turn.give)
    calls[-1].result()
    assert told == ["Submission"]


def test_lines_that_break_again_and_again_while_a_commit_waits_are_one_loss(at: Stage) -> None:
    driver = at.server.driver(at.run)
    turn, silo = driver._interpreter.lock, SiloName("nobody")

    async def break_lines() -> int:
        await turn.come()
        for _ in range(3):
            line = asyncio.create_task(driver.attend(silo))
            await asyncio.sleep(0)
            line.cancel()
            await asyncio.gather(line, return_exceptions=True)
            await asyncio.sleep(0)
        held, losses = len(turn._waiters), list(driver._hanging_up.values())
        turn.give()
        await asyncio.gather(*losses)
        return held

    assert at.server.ask(break_lines()) == 1
    assert not driver._hanging_up
