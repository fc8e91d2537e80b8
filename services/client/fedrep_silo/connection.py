"""The federation as a silo sees it: one coroutine per RPC, streams put together, retries while the server is away.

A refusal by the server arrives as a `SaidByPeer` of the kind its status stands for; a server out of reach is tried again with
growing, jittered pauses, for as long as the operator allows, and is mentioned once a minute. Whatever leaves the silo is in the
audit first.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep import __version__
from fedrep.errors import CryptoError, DecodeError, FedrepError, RefusedError, SettingsError
from fedrep.protocol.manifests import RosterEntry, roster_digest
from fedrep.protocol.messages import (
    Abstention,
    Confirmation,
    Consensus,
    ModelName,
    Statement,
    SurvivorSet,
)
from fedrep.protocol.silo_effects import (
    Accepted,
    Answer,
    Certificates,
    Concluded,
    Confirmations,
    FetchedModel,
    GetCertificates,
    GetConsensus,
    GetModel,
    GetSurvivors,
    GetUpdate,
    Join,
    Joined,
    Question,
    Send,
)
from fedrep.wire import codec
from fedrep.wire.chunks import Assembler
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from fedrep_identity.certificates import Credentials
from fedrep_runtime.status import error_of
from fedrep_runtime.tls import channel_options, client_channel_credentials
from fedrep_silo.audit import Audit, AuditLine
from fedrep_silo.config import SiloSettings
from fedrep_silo.letters import Letter, letter_of
from fedrep_silo.line import Line
from fedrep_silo.state import Written

log = structlog.get_logger(__name__)

T = TypeVar("T")
LARGEST_PAYLOAD = 8 * 2**30
MODEL_PIECE = 8 * 2**20
REMINDER_SECONDS = 60.0
CALL_SECONDS = 180.0
STREAM_SECONDS = 3600.0  # a large model over a slow line; a dead line is noticed by keepalive pings long before
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0

# Everything else that carries no reason of this project's is a fault that trying again cannot mend.
PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@dataclass(frozen=True, slots=True)
class OfferedRun:
    """A run that lists this silo, by the server's word."""

    name: str
    run: bytes
    state: str
    layout_hash: bytes
    parameters: int
    created_at: float
    layout: str = ""


class ServerAwayError(FedrepError):
    """The server stayed out of reach for longer than the operator allows."""

    status = "UNAVAILABLE"
    default_reason = "SERVER_AWAY"


class Connection:
    """`lost` is set whenever the server was away, for the daemon to join again; `sent` counts the bytes that left.

    `heard_of_server` is told why the server is out of reach, at each call that fails, and "" when it answers again.
    """

    def __init__(
        self, address: str, load: Callable[[], Credentials], audit: Audit, *, server_name: str | None, patience: float
    ) -> None:
        self._address = address
        self._load = load
        self._audit = audit
        self._server_name = server_name
        self._patience = patience
        self._channel: grpc.aio.Channel | None = None
        self._line: Line | None = None
        self._stub: Any = None
        self._plays = True
        self._renewed = False
        self._retired: set[asyncio.Task[None]] = set()
        self._reminded: float | None = None
        self._entered: dict[int, Letter] = {}
        self._is_away = False
        self.heard_of_server: Callable[[str], None] = lambda _: None
        self.lost = False
        self.sent = 0

    async def close(self) -> None:
        channel, line = self._channel, self._line
        self._channel = self._line = None
        if line is not None:
            await line.close()
        if channel is not None:
            await channel.close(None)

    async def renew(self) -> None:
        """After the certificate was renewed: the next call connects with the new one, and the silo joins with it.

        The call under way keeps the old channel; cutting it would look like being asked to stop.
        """
        self._renewed = self.lost = True

    def prepare(self, sends: Iterable[Send]) -> list[AuditLine]:
        """What the audit has to say of these before they leave, which the caller sees to."""
        letters = [letter for send in sends if (letter := letter_of(send)) is not None]
        if letters:
            self._entered = {id(letter.message): letter for letter in letters}
        return [letter.entry for letter in letters]

    async def send(self, send: Send, written: Written) -> Answer:
        """A message that binds the silo, with the receipt that the state it was made from is durable."""
        if written.save is not send.needs:
            raise AssertionError("this receipt is for another state than the message was made from")
        match send.message:
            case Join() | GetUpdate():
                return await self.ask(send.message)
            case Abstention() as abstention:
                await self.abstain(abstention)
            case GetConsensus(run, number):
                return await self.consensus(run, number)
            case GetSurvivors(run, number):
                return await self.survivors(run, number)
            case Confirmation() as confirmation:
                return await self.confirm(confirmation)
            case _:
                await self._deliver(send)
        return Accepted()

    async def _deliver(self, send: Send) -> None:
        """It may stand in the audit already. What was entered holds its message, whose id is its own for so long."""
        entered = self._entered.pop(id(send.message), None)
        letter = entered if entered is not None else letter_of(send)
        assert letter is not None
        entry, patience = letter.entry, CALL_SECONDS if letter.part is None else STREAM_SECONDS
        await self._call(
            entry.what,
            lambda stub: getattr(stub, entry.what)(letter.request(), timeout=patience),
            entry.size,
            entry.round,
            entered=entered is not None,
            **entry.details,
        )

    async def ask(self, question: Question) -> Answer:
        match question:
            case Join():
                return await self.join(question)
            case GetModel(run, version):
                return FetchedModel(*await self.model(run, version))
            case GetCertificates(run, fingerprints):
                found = await self.certificates(run, fingerprints)
                return Certificates(dict(zip(fingerprints, found, strict=False)))
            case GetUpdate(run, number):
                known = question.roster
                return await self.update(run, number, question.statement, omit=question.omit_agreement, roster=known)

    async def join(self, join: Join) -> Joined:
        request = pb.JoinRequest(
            run_name=join.run_name,
            session_key=join.session_key,
            session_signature=join.signature,
            model_version=join.model_version,
            software_version=__version__,
            protocol_version=codec.PROTOCOL_VERSION,
            promise=codec.promise_to_wire(join.promise),
            kept_session_key=join.kept,
        )
        size = request.ByteSize() if join.session_key else 0  # without a key it only asks for news
        response = await self._call("Join", lambda stub: stub.Join(request, timeout=CALL_SECONDS), size)
        if response.protocol_version != codec.PROTOCOL_VERSION:
            raise SettingsError(
                f"this fedrep speaks version {codec.PROTOCOL_VERSION} of the protocol, the server version "
                f"{max(response.protocol_version, 1)}; install the same release on both sides",
                reason="OTHER_VERSION",
            )
        return Joined(
            codec.signed_run_from_wire(response.run),
            codec.signed_round_from_wire(response.round) if response.HasField("round") else None,
            ModelName(response.model_version, response.model_hash, response.chain),
            response.state,
            response.server_certificate,
            response.last_round,
            max(response.evaluation_interval, 1),
            codec.rollback_from_wire(response.rollback) if response.HasField("rollback") else None,
            tuple(codec.signed_run_from_wire(signed) for signed in response.predecessors),
            response.best,
        )

    async def find_runs(self, name: str = "") -> list[OfferedRun]:
        """The runs that this silo may take part in, as the server says; one of them by its name comes with its layout."""
        request = pb.FindRunsRequest(name=name)
        response = await self._call("FindRuns", lambda stub: stub.FindRuns(request, timeout=CALL_SECONDS))
        return [
            OfferedRun(run.name, run.run, run.state, run.layout_hash, run.parameters, run.created_at, run.layout)
            for run in response.runs
        ]

    async def model(self, run: bytes, version: int) -> tuple[int, NDArray[np.float32]]:
        """Piece by piece: a server that sent all at once would hold, for every silo, what that has not read yet."""
        known: tuple[pb.ModelHeader, Assembler] | None = None

        async def fetch(stub: Any) -> tuple[pb.ModelHeader, Assembler]:
            offset = known[1].count if known is not None else 0
            request = pb.GetModelRequest(run=run, version=version, offset=offset, length=MODEL_PIECE)
            stream = stub.GetModel(request, timeout=STREAM_SECONDS)
            header = await _header_of(stream)
            if known is not None and (header.sha256, header.parameters) == (known[0].sha256, known[0].parameters):
                assembler = known[1]
            elif offset:
                raise DecodeError("another model came in the middle of one; it is fetched again", reason="WRONG_HASH")
            else:
                assembler = Assembler(4 * header.parameters, header.sha256, LARGEST_PAYLOAD, "the model")
            async for message in stream:
                assembler.add(message.chunk)
            if assembler.count == offset and assembler.count < assembler.size:
                raise DecodeError("the server sends nothing more of the model", reason="TRUNCATED")
            return header, assembler

        while known is None or known[1].count < known[1].size:
            known = await self._call("GetModel", fetch)
        header, assembler = known
        return header.version, np.frombuffer(await asyncio.to_thread(assembler.take), "<f4").astype(np.float32, copy=False)

    async def certificates(self, run: bytes, fingerprints: Sequence[bytes]) -> list[bytes]:
        request = pb.GetCertificatesRequest(run=run, fingerprints=fingerprints)
        response = await self._call("GetCertificates", lambda stub: stub.GetCertificates(request, timeout=CALL_SECONDS))
        return list(response.certificates)

    async def abstain(self, abstention: Abstention) -> None:
        request = codec.abstention_to_wire(abstention)
        await self._call(
            "Abstain", lambda stub: stub.Abstain(request, timeout=CALL_SECONDS), request.ByteSize(), abstention.round
        )

    async def consensus(self, run: bytes, round_number: int) -> Consensus:
        async def fetch(stub: Any) -> Consensus:
            stream = stub.GetConsensus(pb.GetConsensusRequest(run=run, round=round_number), timeout=CALL_SECONDS)
            header = await _header_of(stream)
            assembler = Assembler(header.coordinates_size, header.coordinates_sha256, LARGEST_PAYLOAD, "the consensus")
            return codec.consensus_from_wire(header, await _collect(stream, assembler))

        return await self._waiting("GetConsensus", fetch)

    async def survivors(self, run: bytes, round_number: int) -> SurvivorSet:
        request = pb.GetSurvivorsRequest(run=run, round=round_number)
        response = await self._waiting("GetSurvivors", lambda stub: stub.GetSurvivors(request, timeout=CALL_SECONDS))
        return codec.told_survivors_from_wire(response)

    async def confirm(self, confirmation: Confirmation) -> Confirmations:
        request = codec.confirmation_to_wire(confirmation)
        response = await self._waiting(
            "ConfirmSurvivors",
            lambda stub: stub.ConfirmSurvivors(request, timeout=CALL_SECONDS),
            request.ByteSize(),
            confirmation.round,
        )
        return Confirmations(codec.signatures_from_wire(response.signatures), codec.macs_from_wire(response.macs))

    async def update(
        self,
        run: bytes,
        round_number: int,
        statement: Statement | None = None,
        *,
        omit: bool = False,
        roster: tuple[RosterEntry, ...] = (),
    ) -> Concluded:
        """With `omit` the agreement of the round is known here, and so is `roster`: neither is sent again."""
        known = roster_digest(roster) if roster else b""
        request = pb.GetUpdateRequest(run=run, round=round_number, omit_agreement=omit, known_roster=known)
        if statement is not None:
            request.statement.CopyFrom(codec.statement_to_wire(statement))

        async def fetch(stub: Any) -> Concluded:
            stream = stub.GetUpdate(request, timeout=CALL_SECONDS)
            header = await _header_of(stream)
            size = header.coordinates_size + header.levels_size
            payload = await _collect(stream, Assembler(size, header.payload_sha256, LARGEST_PAYLOAD, "the update"))
            left_out = roster if header.same_roster else ()
            following = codec.signed_round_from_wire(header.next_round, left_out) if header.HasField("next_round") else None
            return Concluded(codec.update_from_wire(header, payload), following, header.state)

        sent = request.ByteSize() if statement is not None else 0
        return await self._waiting("GetUpdate", fetch, sent, round_number)

    async def report(self, request: pb.ReportMetricsRequest) -> None:
        await self._call(
            "ReportMetrics", lambda stub: stub.ReportMetrics(request, timeout=CALL_SECONDS), request.ByteSize(), request.round
        )

    async def leave(self, run: bytes) -> None:
        request = pb.LeaveRequest(run=run)
        await self._call("Leave", lambda stub: stub.Leave(request, timeout=10.0), request.ByteSize())

    async def attend(self, run: bytes) -> bool:
        """Held by the server for a while: as long as it stands, the server knows that this silo is there.

        False if the server knows no such call.
        """
        request = pb.AttendRequest(run=run)
        try:
            await self._call("Attend", lambda stub: stub.Attend(request, timeout=CALL_SECONDS))
        except FedrepError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
                return False
            raise
        return True

    async def _waiting(self, method: str, call: Callable[[Any], Awaitable[T]], size: int = 0, round_number: int = 0) -> T:
        """A call the server may hold: it answers NOT_YET after a while, and is asked again."""
        while True:
            try:
                return await self._call(method, call, size, round_number)
            except RefusedError as error:
                if error.reason != "NOT_YET":
                    raise
                await asyncio.sleep(0.05)

    async def _call(
        self,
        method: str,
        call: Callable[[Any], Awaitable[T]],
        size: int = 0,
        round_number: int = 0,
        *,
        entered: bool = False,
        **details: Any,
    ) -> T:
        """`size` bytes leave the silo, once or, when the answer was lost, several times; the audit has them all.

        `entered` says that it has the first time already.
        """
        away_since: float | None = None
        pause = FIRST_PAUSE
        while True:
            self.sent += size
            if size and not entered:
                await asyncio.to_thread(self._audit.sent, method, size, round_number, **details)
            entered = False
            stub = self._connected()
            channel = self._channel
            try:
                result = await call(stub)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._channel is channel or (task is not None and task.cancelling()):
                    raise
                continue  # nobody cancelled this call: another one that failed has closed the channel under it
            except grpc.aio.AioRpcError as error:
                refusal = error_of(error)
                if refusal is not None:
                    self._note_back()
                    raise refusal from error
                if error.code() is grpc.StatusCode.UNIMPLEMENTED and self._plays:
                    self._plays = False  # a server from before Play: its methods are called one by one
                    continue
                if error.code() not in PASSING:
                    raise FedrepError(f"{method} failed: {error.code().name}: {error.details()}") from error
                away_since = away_since if away_since is not None else time.monotonic()
                self._note_away(time.monotonic() - away_since, error)
                if self._channel is channel:  # else another call, which failed with it, has closed it and may use the next
                    await self.close()
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if away_since is not None:
                log.info("server_back", server=self._address, away=round(time.monotonic() - away_since))
            self._note_back()
            return result

    def _note_back(self) -> None:
        if self._is_away:
            self._is_away = False
            self.heard_of_server("")

    def _note_away(self, seconds: float, error: grpc.aio.AioRpcError) -> None:
        """Once a minute, however many calls fail; an error once the operator's patience is over."""
        self.lost = self._is_away = True
        why = self._why(error)
        self.heard_of_server(why)
        if seconds > self._patience:
            raise ServerAwayError(
                f"the server at {self._address} was out of reach for {self._patience:.0f} seconds ({why}); "
                "check the address with: fedrep doctor"
            ) from error
        now = time.monotonic()
        if self._reminded is None or now - self._reminded >= REMINDER_SECONDS:
            self._reminded = now
            log.warning("server_away", server=self._address, seconds=round(seconds), why=why)

    def _why(self, error: grpc.aio.AioRpcError) -> str:
        """TLS ends a connection without a word to the side whose certificate it refuses, so this side looks at its own."""
        details = str(error.details())
        try:
            self._load().check()
        except CryptoError as own:
            return str(own)
        except FedrepError:  # no credentials to judge; what gRPC says is all there is
            return details
        if "CERTIFICATE_VERIFY_FAILED" in details:
            return (
                "the server could not prove that it belongs to this federation: its certificate is of another authority, for "
                "another host name, or out of date; check the address and this machine's clock, then ask the server's operator"
            )
        return details

    def _connected(self) -> Any:
        if self._renewed and self._channel is not None:
            task = asyncio.ensure_future(_retire(self._channel, self._line))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
            self._channel = self._line = None
        self._renewed = False
        if self._channel is None:
            credentials = self._load()
            self._channel = grpc.aio.secure_channel(
                self._address,
                client_channel_credentials(credentials.root, credentials.key_pair),
                options=channel_options(server_name=self._server_name),
            )
            self._stub = FederationServiceStub(self._channel)  # type: ignore[no-untyped-call]
        if not self._plays:
            return self._stub
        if self._line is None or self._line.is_over:
            self._line = Line(self._stub)
        return self._line


async def _retire(channel: grpc.aio.Channel, line: Line | None) -> None:
    """What is under way is answered; nothing new begins."""
    if line is not None:
        await line.finish()
    await channel.close(STREAM_SECONDS)


def connect(settings: SiloSettings) -> Connection:
    return Connection(
        settings.server,
        lambda: Credentials.load(settings.credentials),
        Audit(settings.state / "audit.jsonl"),
        server_name=settings.server_name,
        patience=settings.give_up_after,
    )


async def _header_of(stream: Any) -> Any:
    async for message in stream:
        if message.WhichOneof("part") != "header":
            break
        return message.header
    raise DecodeError("the server's stream does not start with a header", reason="NO_HEADER")


async def _collect(stream: Any, assembler: Assembler) -> bytes:
    async for message in stream:
        assembler.add(message.chunk)
    return assembler.finish()
