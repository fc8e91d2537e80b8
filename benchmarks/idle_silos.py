"""Silos that train nothing and speak the whole protocol over real gRPC and mTLS, and a server in a process of its own.

Each silo has its own certificate and connection, keeps all of the silo's rules, and plays round after round. One of them
also applies every update and compares the model's hash; the others spare the machine that copy.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.server_process import run_server
from fedrep.protocol.manifests import RoundManifest, RunManifest, SignedRunManifest, SiloName, session_key_message
from fedrep.protocol.messages import Consensus, Outcome, Update
from fedrep.protocol.model_state import ModelState, model_hash
from fedrep.protocol.silo_round import Membership, Ready
from fedrep.protocol.silo_rules import PeerIdentity, Policy
from fedrep.secagg.keys import AgreementKey
from fedrep.wire import codec
from fedrep.wire.chunks import cut_into_chunks
from fedrep.wire.v1 import federation_pb2 as pb
from fedrep.wire.v1.federation_pb2_grpc import FederationServiceStub
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import AggregatorConfig, DeadlineConfig, RunConfig, sign_run
from fedrep_runtime.tls import channel_options, client_channel_credentials

FEDERATION = "benchmark"
RUN = "benchmark"
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Shape:
    silos: int
    parameters: int
    fraction: float
    buffer_size: int
    rounds: int
    aggregator: str = "mean"
    byzantine: int = 0


@dataclass
class Figures:
    """`seconds` of each round, as the silos saw it; CPU seconds of both processes; the server's own account of its time."""

    seconds: list[float] = field(default_factory=list)
    silo_cpu: float = 0.0
    server: dict[str, Any] = field(default_factory=dict)
    sent: int = 0
    received: int = 0


class IdleSilo:
    def __init__(self, name: str, credentials: Credentials, address: str, draw: np.random.Generator) -> None:
        self.name = SiloName(name)
        self.credentials = credentials
        secure = client_channel_credentials(credentials.root, credentials.key_pair)
        self.channel = grpc.aio.secure_channel(address, secure, options=channel_options())
        self.stub: Any = FederationServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.sessions: dict[bytes, AgreementKey] = {}
        self.sent = self.received = 0
        self.model: ModelState | None = None
        self._draw = draw

    async def join(self, run: RunManifest, peers: dict[SiloName, PeerIdentity]) -> None:
        self.member = Membership(self.name, run, Policy(), self.credentials.signing_key)
        self.peers = peers
        key = AgreementKey.generate()
        self.sessions[key.public] = key
        signature = self.credentials.signing_key.sign(session_key_message(run.digest(), key.public))
        await self.stub.Join(pb.JoinRequest(run_name=run.name, session_key=key.public, session_signature=signature))

    async def play(self, manifest: RoundManifest, g: NDArray[np.float32]) -> RoundManifest | None:
        """One round; the manifest of the next one, unless the run is over."""
        run, number = manifest.run, manifest.round
        ready = Ready.enter(
            self.member, manifest, self.peers, self.sessions, last_round=number - 1, model_hash=manifest.model_hash
        )
        following = AgreementKey.generate()
        self.sessions = {ready.session.public: ready.session, following.public: following}
        proposed = ready.propose(self._coordinates(manifest), following, secrets.token_bytes)
        await self._stream(
            self.stub.ProposeCoordinates,
            pb.ProposeCoordinatesRequest,
            codec.proposal_to_wire(proposed.message),
            proposed.message.coordinates,
        )
        submitted = proposed.on_consensus(await self._consensus(run, number), g, self._draw)
        await self._stream(
            self.stub.SubmitMaskedShare,
            pb.SubmitMaskedShareRequest,
            codec.submission_to_wire(submitted.message),
            submitted.message.masked,
        )
        answer = await self._call(self.stub.GetSurvivors, pb.GetSurvivorsRequest(run=run, round=number))
        confirmed = submitted.on_survivors(codec.survivors_from_wire(answer.survivors))
        try:
            signed = await self._call(self.stub.ConfirmSurvivors, codec.confirmation_to_wire(confirmed.message))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise  # the others were enough, and the round is over: that is no error
        else:
            revealed = confirmed.on_signatures(codec.signatures_from_wire(signed.signatures))
            await self._call(self.stub.RevealShares, codec.reveal_to_wire(revealed.message))
        return await self._update(run, number, submitted.agreement.indices)

    def _coordinates(self, manifest: RoundManifest) -> NDArray[np.int64]:
        """k distinct ones, drawn as cheaply as possible: choosing them is training's business."""
        k, d = manifest.per_silo, manifest.parameters
        drawn = np.unique(self._draw.integers(0, d, size=k + k // 8 + 16))
        return np.sort(self._draw.permutation(drawn)[:k])

    async def _consensus(self, run: bytes, number: int) -> Consensus:
        header, data = await self._received(
            self.stub.GetConsensus(pb.GetConsensusRequest(run=run, round=number), timeout=SECONDS)
        )
        return codec.consensus_from_wire(header, data)

    async def _update(self, run: bytes, number: int, indices: NDArray[np.int64]) -> RoundManifest | None:
        request = pb.GetUpdateRequest(run=run, round=number, omit_agreement=True)
        header, data = await self._received(self.stub.GetUpdate(request, timeout=SECONDS))
        update: Update = codec.update_from_wire(header, data)
        if update.outcome is not Outcome.APPLIED:
            raise RuntimeError(f"round {number} was skipped: {update.reason}")
        if self.model is not None:
            self.model = self.model.follow(update, indices)
        return codec.signed_round_from_wire(header.next_round).manifest if header.HasField("next_round") else None

    async def _received(self, stream: Any) -> tuple[Any, bytes]:
        header, parts = None, []
        async for message in stream:
            self.received += message.ByteSize()
            if message.WhichOneof("part") == "header":
                header = message.header
            else:
                parts.append(message.chunk)
        return header, b"".join(parts)

    async def _stream(self, call: Any, request: Any, header: Any, data: bytes) -> None:
        async def parts() -> AsyncIterator[Any]:
            yield request(header=header)
            for chunk in cut_into_chunks(data):
                yield request(chunk=chunk)

        self.sent += header.ByteSize() + len(data)
        await call(parts(), timeout=SECONDS)

    async def _call(self, call: Any, request: Any) -> Any:
        self.sent += request.ByteSize()
        answer = await call(request, timeout=SECONDS)
        self.received += answer.ByteSize()
        return answer


@asynccontextmanager
async def federation(shape: Shape) -> AsyncIterator[tuple[list[IdleSilo], Any]]:
    """Certificates, a server process, a created run, joined silos; yields them and the pipe to the server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = CertificateAuthority.create(folder / "ca", FEDERATION, "a passphrase for benchmarks")

        def issue(who: str, role: Role, **options: Any) -> Credentials:
            return issue_credentials(authority, folder / who, Identity(who, role, FEDERATION), **options)

        issue("server", Role.SERVER, dns_names=("localhost",), ips=("127.0.0.1",))
        admin = issue("admin", Role.ADMIN)
        pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=run_server, args=(folder, theirs), daemon=True)
        process.start()
        try:
            address = f"localhost:{pipe.recv()}"
            vector = np.zeros(shape.parameters, np.float32)
            signed = await asyncio.to_thread(create_run, shape, address, admin, vector)
            draw = np.random.default_rng(1)
            silos = [IdleSilo(name, issue(name, Role.SILO), address, draw) for name in signed.manifest.silos]
            peers = {silo.name: identity(silo) for silo in silos}
            silos[0].model = ModelState.initial(vector)
            for silo in silos:
                await silo.join(signed.manifest, peers)
            yield silos, pipe
            await asyncio.gather(*(silo.channel.close(None) for silo in silos))
        finally:
            pipe.send("stop")
            process.join(30)
            process.kill()


def identity(silo: IdleSilo) -> PeerIdentity:
    own = silo.credentials
    return PeerIdentity(silo.name, "silo", own.fingerprint, own.signing_key.verify_key)


def create_run(shape: Shape, address: str, admin: Credentials, vector: NDArray[np.float32]) -> SignedRunManifest:
    config = RunConfig(
        name=RUN,
        silos=tuple(f"silo-{number:03d}" for number in range(shape.silos)),
        rounds=shape.rounds,
        fraction=shape.fraction,
        buffer_size=shape.buffer_size,
        byzantine_count=shape.byzantine,
        initial_range=0.1,
        aggregator=AggregatorConfig(name=shape.aggregator),
        deadlines=DeadlineConfig(propose=300, submit=300, confirm=300, reveal=300),
        keep_models=1,
    )
    manifest = config.manifest(shape.parameters, bytes(32), model_hash(vector))
    signed = sign_run(manifest, "admin", admin.chain, admin.signing_key)
    client = ObserverClient(address, admin.root, admin.key_pair)
    try:
        response = client.create_run(signed, config.options(""), vector)
    finally:
        client.close()
    if response.problems:
        raise RuntimeError("; ".join(response.problems))
    return signed


async def play(shape: Shape, warm_up: int = 2) -> Figures:
    """All rounds of the run; the first ones are played but not counted."""
    figures = Figures()
    g = np.random.default_rng(2).normal(scale=0.01, size=shape.parameters).astype(np.float32)
    async with federation(replace(shape, rounds=shape.rounds + warm_up)) as (silos, pipe):
        manifest = await first_round(silos[0])
        started_cpu = 0.0
        for number in range(shape.rounds + warm_up):
            if number == warm_up:
                pipe.send("reset")
                pipe.recv()
                started_cpu = cpu_seconds()
                for silo in silos:
                    silo.sent = silo.received = 0
            started = time.perf_counter()
            answers = await asyncio.gather(*(silo.play(manifest, g) for silo in silos))
            if number >= warm_up:
                figures.seconds.append(time.perf_counter() - started)
            following = next((answer for answer in answers if answer is not None), None)
            if following is None:
                break
            manifest = following
        figures.silo_cpu = cpu_seconds() - started_cpu
        pipe.send("figures")
        figures.server = pipe.recv()
        figures.sent = sum(silo.sent for silo in silos)
        figures.received = sum(silo.received for silo in silos)
    return figures


async def first_round(silo: IdleSilo) -> RoundManifest:
    while True:
        answer = await silo.stub.Join(pb.JoinRequest(run_name=RUN))
        if answer.HasField("round"):
            return codec.signed_round_from_wire(answer.round).manifest
        await asyncio.sleep(0.02)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def shares(server: dict[str, Any]) -> Counter[str]:
    """The server's CPU time by kind of work; what no timer saw is gRPC, TLS and the event loop."""
    parts: Counter[str] = Counter(server["work"])
    parts["gRPC, TLS and event loop"] = max(server["cpu"] - sum(server["work"].values()), 0.0)
    return parts
