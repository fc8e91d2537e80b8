"""FederationService: each RPC decodes, hands over to the run's driver, encodes. No rule of the protocol lives here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from fedrep.errors import CryptoError, DecodeError, FedrepError, InvalidInputError, LimitError, OutOfPhaseError, UnknownSiloError
from fedrep.protocol.manifests import RosterEntry, SiloName
from fedrep.protocol.server_rules import check_session_key
from fedrep.secagg.shamir import MAX_HOLDERS
from fedrep.wire import answers, codec
from fedrep.wire.chunks import Assembler, cut_into_chunks
from fedrep.wire.methods import METHODS, Method
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1 import federation_pb2_grpc
from fedrep_identity.certificates import PeerCertificate, Role
from fedrep_server.calls.expected import proposal_to_come, reveal_to_come, submission_to_come
from fedrep_server.calls.interceptor import Carried, Coding, Gate, caller, concerns_run, only_one_of_its_kind
from fedrep_server.calls.model_shelf import ModelShelf
from fedrep_server.calls.permissions import FEDERATION
from fedrep_server.calls.play import Stream
from fedrep_server.calls.versions import require_same_version
from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.run_driver import RunDriver

Context = Any
INLINE_BYTES = 1 << 18  # are put together and hashed in less time than a thread takes


def may_know(driver: RunDriver) -> bool:
    """A silo hears of no run that does not list it."""
    peer = caller()
    return peer.identity.role is not Role.SILO or SiloName(peer.identity.name) in driver.manifest.silos


class FederationServicer(federation_pb2_grpc.FederationServiceServicer):
    def __init__(self, coordinator: Coordinator, gate: Gate) -> None:
        self._coordinator = coordinator
        self._gate = gate
        self._receive_seconds = coordinator.settings.receive_seconds
        self._shelf = ModelShelf(coordinator)
        self._carried = {name: self._alike(method) for name, method in METHODS.items()}

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        peer = caller()
        driver = self._welcomed(self._coordinator.run_named(request.run_name, may_know))
        require_same_version(request.protocol_version)
        if peer.identity.role is Role.SILO:
            entry = await asyncio.to_thread(_roster_entry, driver, peer, request) if request.session_key else None
            await self._coordinator.seen(driver, peer, request.software_version)
            if entry is not None:
                self._coordinator.remember_certificate(peer)
                await driver.join(entry, peer.verify_key, request.kept_session_key)
        state = driver.model.state
        response = pb.JoinResponse(
            run=codec.signed_run_to_wire(driver.signed),
            model_version=state.version,
            model_hash=state.hash,
            chain=state.chain,
            state=driver.state.value,
            server_certificate=self._coordinator.server_certificate,
            last_round=driver.last_round,
            evaluation_interval=driver.records.options.evaluation_interval,
            best=driver.records.options.best,
            protocol_version=codec.PROTOCOL_VERSION,
            predecessors=[codec.signed_run_to_wire(signed) for signed in driver.chain[:-1]],
        )
        if driver.rollback is not None:
            response.rollback.CopyFrom(codec.rollback_to_wire(driver.rollback))
        if driver.open is not None:
            response.round.CopyFrom(codec.signed_round_to_wire(driver.open.signed))
        return response

    async def FindRuns(self, request: pb.FindRunsRequest, context: Context) -> pb.FindRunsResponse:
        drivers = [driver for driver in self._coordinator.drivers if request.name in ("", driver.manifest.name)]
        return pb.FindRunsResponse(
            runs=[await self._offered(driver, bool(request.name)) for driver in drivers if self._is_welcome(driver)]
        )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> AsyncIterator[pb.GetModelResponse]:
        driver = self._run(request.run)
        only_one_of_its_kind()
        shelved = await self._shelf.model(driver, request.version)
        data = shelved.data
        if request.offset > len(data):
            raise InvalidInputError(f"the model has {len(data)} bytes; none is left from {request.offset} on")
        wanted = data[request.offset :][: request.length or None]
        header = pb.ModelHeader(
            version=shelved.version,
            parameters=shelved.parameters,
            model_hash=shelved.hash,
            chain=shelved.chain,
            sha256=shelved.sha256,
        )
        yield pb.GetModelResponse(header=header)
        for chunk in cut_into_chunks(wanted):
            yield pb.GetModelResponse(chunk=chunk)
        if request.offset + len(wanted) == len(data):
            self._shelf.fetched(driver, request.version)

    async def GetCertificates(self, request: pb.GetCertificatesRequest, context: Context) -> pb.GetCertificatesResponse:
        self._run(request.run)
        if len(request.fingerprints) > MAX_HOLDERS:
            raise DecodeError(f"a roster has at most {MAX_HOLDERS} certificates; ask for fewer at once", reason="TOO_LARGE")
        if len(set(request.fingerprints)) < len(request.fingerprints):
            raise DecodeError("a fingerprint is named twice; ask for each certificate once")
        return pb.GetCertificatesResponse(
            certificates=[self._coordinator.certificate(fingerprint) for fingerprint in request.fingerprints]
        )

    async def ProposeCoordinates(self, request_iterator: AsyncIterator[Any], context: Context) -> pb.ProposeCoordinatesResponse:
        async with self._in_time():
            header = await header_of(request_iterator)
            driver = self._run(header.run, header.round)
            assembler = proposal_to_come(driver, _silo(), header)
            only_one_of_its_kind()
            coordinates = await collect(request_iterator, assembler)
        await driver.deliver(codec.proposal_from_wire(_silo(), header, coordinates))
        return pb.ProposeCoordinatesResponse()

    async def Abstain(self, request: pb.AbstainRequest, context: Context) -> pb.AbstainResponse:
        driver = self._run(request.run, request.round)
        await driver.deliver(codec.abstention_from_wire(_silo(), request))
        return pb.AbstainResponse()

    async def GetConsensus(self, request: pb.GetConsensusRequest, context: Context) -> AsyncIterator[bytes]:
        driver = self._run(request.run, request.round)
        consensus = await driver.consensus(_silo(), request.round)
        for part in answers.consensus_parts(consensus):
            yield part

    async def SubmitMaskedShare(self, request_iterator: AsyncIterator[Any], context: Context) -> pb.SubmitMaskedShareResponse:
        async with self._in_time():
            header = await header_of(request_iterator)
            driver = self._run(header.run, header.round)
            assembler = submission_to_come(driver, _silo(), header)
            only_one_of_its_kind()
            masked = memoryview(await collect_in_place(request_iterator, assembler)).toreadonly()
        submission = codec.submission_from_wire(_silo(), header, masked)
        await driver.deliver(replace(submission, sha256=header.masked_sha256))  # `collect` has compared the two
        return pb.SubmitMaskedShareResponse()

    async def GetSurvivors(self, request: pb.GetSurvivorsRequest, context: Context) -> bytes:
        driver = self._run(request.run, request.round)
        survivors = await driver.survivors(_silo(), request.round)
        return answers.survivors_answer(survivors)

    async def ConfirmSurvivors(self, request: pb.ConfirmSurvivorsRequest, context: Context) -> bytes:
        driver = self._run(request.run, request.round)
        return answers.confirmations_answer(*await driver.confirm(codec.confirmation_from_wire(_silo(), request)))

    async def RevealShares(self, request: pb.RevealSharesRequest, context: Context) -> pb.RevealSharesResponse:
        driver = self._run(request.run, request.round)
        if reveal_to_come(driver, _silo(), request):
            await driver.deliver(codec.reveal_from_wire(_silo(), request))
        return pb.RevealSharesResponse()

    async def GetUpdate(self, request: pb.GetUpdateRequest, context: Context) -> AsyncIterator[bytes]:
        driver = self._welcomed(self._coordinator.run_hashed(request.run), request.round, about=request.round)
        if request.HasField("statement"):
            await self._take_statement(driver, request)
        if not request.omit_agreement:  # who holds the agreement is revealing, and asks behind it
            await self._note_withdrawal(driver, request.round)
        update = await driver.update(request.round)
        if update is None:
            raise OutOfPhaseError(f"round {request.round} is still open; ask again", reason="NOT_YET")
        statements, following = await driver.statements(update.round), await driver.next_round()
        omits, knows = request.omit_agreement, request.known_roster
        parts = answers.update_parts(update, statements, following, driver.state.value, omit_agreement=omits, known_roster=knows)
        for part in parts:
            yield part

    async def ReportMetrics(self, request: pb.ReportMetricsRequest, context: Context) -> pb.ReportMetricsResponse:
        await self._coordinator.report(self._run(request.run, request.round), caller(), request)
        return pb.ReportMetricsResponse()

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        await self._run(request.run).leave(_silo())
        return pb.LeaveResponse()

    async def Attend(self, request: pb.AttendRequest, context: Context) -> pb.AttendResponse:
        driver = self._run(request.run)
        only_one_of_its_kind()
        await driver.attend(_silo())
        return pb.AttendResponse()

    def Play(self, request_iterator: AsyncIterator[pb.PlayRequest], context: Context) -> AsyncIterator[pb.PlayResponse]:
        return Stream(self._carry, context).play(request_iterator)

    def _carry(self, method: Method, request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        return self._gate.carried(self._carried[method.name], request, context)

    def _alike(self, method: Method) -> Carried:
        coding = Coding(method.request.FromString, method.response.SerializeToString)
        return Carried(FEDERATION + method.name, getattr(self, method.name), coding, method.gives_parts)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """A stream that stalls is cut, and what came of it is forgotten."""
        try:
            async with asyncio.timeout(self._receive_seconds):
                yield
        except TimeoutError:
            raise LimitError(
                f"the message was not there whole after {self._receive_seconds:g} seconds; send it again, or ask the server's "
                "operator for a longer receive_seconds",
                reason="TOO_SLOW",
            ) from None

    def _run(self, run: bytes, round_number: int = 0) -> RunDriver:
        return self._welcomed(self._coordinator.run_hashed(run), round_number)

    def _welcomed(self, driver: RunDriver, round_number: int = 0, *, about: int = 0) -> RunDriver:
        """A silo sees only runs that list it, or how a round ended `about` which it asks, if it was listed in that one.

        Evaluators follow every run.
        """
        concerns_run(driver.manifest.name, round_number)
        if caller().identity.role is Role.SILO:
            driver.machine.check_allowed(caller().identity.name, about)
        return driver

    def _is_welcome(self, driver: RunDriver) -> bool:
        try:
            self._welcomed(driver)
        except FedrepError:
            return False
        return True

    async def _offered(self, driver: RunDriver, with_layout: bool) -> pb.OfferedRun:
        stored = await asyncio.to_thread(self._coordinator.store.run, driver.manifest.name)
        return pb.OfferedRun(
            name=driver.manifest.name,
            run=driver.run,
            state=driver.state.value,
            layout_hash=driver.manifest.layout_hash,
            parameters=driver.manifest.parameters,
            created_at=stored.created_at,
            layout=driver.records.options.layout if with_layout else "",
        )

    async def _note_withdrawal(self, driver: RunDriver, number: int) -> None:
        if caller().identity.role is Role.SILO:
            await driver.withdraw(_silo(), number)

    async def _take_statement(self, driver: RunDriver, request: pb.GetUpdateRequest) -> None:
        """Only the caller's own word."""
        peer = caller()
        statement = codec.statement_from_wire(request.statement, request.run, request.round)
        if statement.silo != peer.identity.name:
            raise UnknownSiloError("a silo gives only its own statement", reason="NOT_YOUR_STATEMENT")
        if peer.identity.role is not Role.SILO:
            raise UnknownSiloError("only silos hold shares, so only they can state something about them", reason="NOT_A_HOLDER")
        await driver.take_statement(statement, peer.verify_key)


def _silo() -> SiloName:
    return SiloName(caller().identity.name)


def _roster_entry(driver: RunDriver, peer: PeerCertificate, request: pb.JoinRequest) -> RosterEntry | None:
    """None for a key that was signed just before the list of silos changed: the silo learns of the new one, and comes again."""
    promise = codec.promise_from_wire(request)
    entry = RosterEntry(SiloName(peer.identity.name), peer.fingerprint, request.session_key, request.session_signature, promise)
    try:
        check_session_key(entry, driver.run, peer.verify_key)
    except CryptoError:
        for signed in driver.chain[:-1]:
            with suppress(CryptoError):
                check_session_key(entry, signed.manifest.digest(), peer.verify_key)
                return None
        raise
    return entry


async def header_of(requests: AsyncIterator[Any]) -> Any:
    first = await anext(requests, None)
    if first is None or first.WhichOneof("part") != "header":
        raise DecodeError("a stream starts with its header", reason="NO_HEADER")
    return first.header


async def collect(requests: AsyncIterator[Any], assembler: Assembler) -> bytes:
    await _add_all(requests, assembler)
    return assembler.finish() if assembler.size <= INLINE_BYTES else await asyncio.to_thread(assembler.finish)


async def collect_in_place(requests: AsyncIterator[Any], assembler: Assembler) -> bytearray:
    """Without a copy, for what is as large as a model or its values."""
    await _add_all(requests, assembler)
    return assembler.take() if assembler.size <= INLINE_BYTES else await asyncio.to_thread(assembler.take)


async def _add_all(requests: AsyncIterator[Any], assembler: Assembler) -> None:
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise DecodeError("after its header a stream holds chunks only", reason="MALFORMED")
        assembler.add(request.chunk)
