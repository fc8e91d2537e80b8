"""Silos that train nothing and play the product's rounds over real gRPC and mTLS, and a server in a process of its own.

Each is the silo's own daemon with its own certificate, connection, state folder and audit, and all of its rules; only its
training is a subtraction. All of them share one process and its event loop, which a silo in production has for itself.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from benchmarks.measuring import peak_mb
from benchmarks.server_process import WORK, run_server
from fedrep.protocol.manifests import SignedRunManifest
from fedrep.protocol.model_state import model_hash
from fedrep.protocol.silo_effects import Doing, Effect, FailedTraining, News, Problem, Report, RoundOver, RunRefused
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role
from fedrep_runtime.collector import settle_collector
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.run_config import AggregatorConfig, DeadlineConfig, RunConfig, sign_run
from fedrep_silo.audit import Audit
from fedrep_silo.config import SiloSettings
from fedrep_silo.connection import Connection
from fedrep_silo.daemon import SiloDaemon
from fedrep_trainers import Evaluation, ModelLayout, Trainer, TrainResult

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
    ring_bits: int = 16
    downlink_bits: int = 16


@dataclass
class Figures:
    """`seconds` of each round, as the silos saw it; CPU seconds of both processes; the server's own account of its time; the
    bytes of all silos' messages, in total and by method."""

    seconds: list[float] = field(default_factory=list)
    silo_cpu: float = 0.0
    training_cpu: float = 0.0
    silo_peak_mb: float = 0.0
    server: dict[str, Any] = field(default_factory=dict)
    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)

    @property
    def sent(self) -> int:
        return self.up.total()

    @property
    def received(self) -> int:
        return self.down.total()


# The port that a silo dials, from its name and the server's port: a link that stands between, or the server's own.
Route = Callable[[str, int], int]
# What a silo trains with, from its number.
Trainers = Callable[[int], Trainer]


class SubtractingTrainer:
    """Its update is the same normal vector in every round, turned by a step of its own: silos choose different coordinates."""

    def __init__(self, layout: ModelLayout, update: NDArray[np.float32], step: int) -> None:
        self.layout = layout
        self._update = update
        self._step = step
        self.cpu = 0.0

    def initial(self) -> NDArray[np.float32]:
        return np.zeros(self.layout.size, np.float32)

    def train(self, model: NDArray[np.float32], round_number: int) -> TrainResult:  # noqa: ARG002
        begun, place = time.thread_time(), self.layout.size - self._step
        trained = np.empty_like(model)
        np.subtract(model[self._step :], self._update[:place], out=trained[self._step :])
        np.subtract(model[: self._step], self._update[place:], out=trained[: self._step])
        self.cpu += time.thread_time() - begun
        return TrainResult(trained, loss=0.0, samples=1)

    def evaluate(self, model: NDArray[np.float32]) -> Evaluation:  # noqa: ARG002
        return Evaluation(loss=0.0, accuracy=None, samples=1)

    def state(self) -> Mapping[str, NDArray[Any]]:
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Transfer:
    """A call as its silo saw it, on the clock of this machine: when its first message left, when its last answer was there."""

    method: str
    began: float
    up: int
    ended: float
    down: int


class MeteredConnection(Connection):
    """Counts the bytes of every message, in both directions, by method; `transfers` are the calls, if anybody wants them."""

    def __init__(self, address: str, load: Callable[[], Credentials], audit: Audit) -> None:
        super().__init__(address, load, audit, server_name=None, patience=SECONDS)
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        self.transfers: list[Transfer] | None = None

    def _connected(self) -> Any:
        return MeteredStub(super()._connected(), self)


class MeteredStub:
    def __init__(self, stub: Any, meter: MeteredConnection) -> None:
        self._stub = stub
        self._meter = meter

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def begin(request: Any, timeout: float | None) -> Any:
            call = _MeteredCall(self._meter, method)
            answer = getattr(self._stub, method)(call.counted(request), timeout=timeout)
            return call.messages(answer) if method in ("GetModel", "GetConsensus", "GetUpdate") else call.message(answer)

        return begin


class _MeteredCall:
    def __init__(self, meter: MeteredConnection, method: str) -> None:
        self._meter = meter
        self._method = method
        self._began = 0.0
        self._up = self._down = 0

    def counted(self, request: Any) -> Any:
        self._began = time.monotonic()
        if isinstance(request, AsyncIterator):
            return self._parts(request)
        self._up = request.ByteSize()
        return request

    async def _parts(self, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for part in parts:
            self._up += part.ByteSize()
            yield part

    async def message(self, answer: Awaitable[Any]) -> Any:
        try:
            message = await answer
            self._down = message.ByteSize()
        finally:
            self._over()
        return message

    async def messages(self, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for message in stream:
                self._down += message.ByteSize()
                yield message
        finally:
            self._over()

    def _over(self) -> None:
        meter = self._meter
        meter.up[self._method] += self._up
        meter.down[self._method] += self._down
        if meter.transfers is not None:
            meter.transfers.append(Transfer(self._method, self._began, self._up, time.monotonic(), self._down))


class IdleSilo(SiloDaemon):
    """The daemon, overheard: `heard` is told everything that it reports."""

    def __init__(self, address: str, folder: Path, trainer: Trainer, heard: Callable[[News], None]) -> None:
        settings = SiloSettings(server=address, run=RUN, credentials=folder, state=folder / "state", ledger=folder / "ledger")
        credentials = Credentials.load(folder)
        settings.state.mkdir()
        self.meter = MeteredConnection(address, lambda: credentials, Audit(settings.state / "audit.jsonl"))
        super().__init__(settings, credentials, credentials.trust_store(), trainer, connection=self.meter)
        self._heard = heard
        self._idle = trainer

    @property
    def training_cpu(self) -> float:
        """Seconds, of trainers that count them."""
        return float(getattr(self._idle, "cpu", 0.0))

    async def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Report):
            self._heard(effect.news)
        await super()._carry_out(effect)


class Stopwatch:
    """Seconds from the moment when all silos had the outcome of one round to the same moment of the next."""

    def __init__(self, silos: int, ended: Callable[[int], None]) -> None:
        self.seconds: list[float] = []
        self._silos = silos
        self._ended = ended
        self._over: Counter[int] = Counter()
        self._since: float | None = None

    def hear(self, news: News) -> None:
        match news:
            case Doing(_, number) if number is not None and self._since is None:
                self._since = time.perf_counter()
            case RoundOver(_, update) if not news.applied:
                raise RuntimeError(f"round {update.round} was skipped: {update.reason}")
            case RoundOver(_, update):
                self._over[update.round] += 1
                if self._over[update.round] == self._silos:
                    self._lap(update.round)
            case Problem(_, error) | RunRefused(_, _, error):
                raise error
            case FailedTraining(_, text):
                raise RuntimeError(text)

    def _lap(self, number: int) -> None:
        assert self._since is not None
        self.seconds.append(time.perf_counter() - self._since)
        self._ended(number)
        self._since = time.perf_counter()


@asynccontextmanager
async def federation(
    shape: Shape, route: Route = lambda _, port: port, trainers: Trainers | None = None
) -> AsyncIterator[tuple[Callable[[Callable[[News], None]], list[IdleSilo]], Any]]:
    """Certificates, a server process, a created run; yields what makes its silos, and the pipe to the server."""
    make = trainers if trainers is not None else subtracting(shape)
    settle_collector()  # as `fedrep client` does
    async with served_run(shape, make) as (folder, port, names, pipe):

        def silos(heard: Callable[[News], None]) -> list[IdleSilo]:
            return [
                IdleSilo(f"localhost:{route(name, port)}", folder / name, make(number), heard)
                for number, name in enumerate(names)
            ]

        yield silos, pipe


@asynccontextmanager
async def served_run(shape: Shape, make: Trainers) -> AsyncIterator[tuple[Path, int, tuple[str, ...], Any]]:
    """The folder with everybody's credentials, the server's port, the silos' names, and the pipe to the server."""
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
            port = pipe.recv()
            vector = make(0).initial()
            signed = await asyncio.to_thread(create_run, shape, f"localhost:{port}", admin, make(0).layout, vector)
            names = signed.manifest.silos
            for name in names:
                issue(name, Role.SILO)
            yield folder, port, tuple(names), pipe
        finally:
            pipe.send("stop")
            process.join(30)
            process.kill()


def subtracting(shape: Shape) -> Trainers:
    layout = ModelLayout.of([("weights", (shape.parameters,))])
    update = np.random.default_rng(2).normal(scale=0.01, size=shape.parameters).astype(np.float32)
    return lambda number: SubtractingTrainer(layout, update, number * shape.parameters // shape.silos)


def create_run(
    shape: Shape, address: str, admin: Credentials, layout: ModelLayout, vector: NDArray[np.float32]
) -> SignedRunManifest:
    config = RunConfig(
        name=RUN,
        silos=tuple(f"silo-{number:03d}" for number in range(shape.silos)),
        rounds=shape.rounds,
        fraction=shape.fraction,
        buffer_size=shape.buffer_size,
        byzantine_count=shape.byzantine,
        initial_range=0.1,
        ring_bits=shape.ring_bits,
        downlink_bits=shape.downlink_bits,
        aggregator=AggregatorConfig(name=shape.aggregator),
        deadlines=DeadlineConfig(propose=3600, submit=3600, confirm=3600, reveal=3600),
        keep_models=1,
    )
    manifest = config.manifest(shape.parameters, bytes.fromhex(layout.digest), model_hash(vector))
    signed = sign_run(manifest, "admin", admin.chain, admin.signing_key)
    client = ObserverClient(address, admin.root, admin.key_pair)
    try:
        response = client.create_run(signed, config.options(""), vector)
    finally:
        client.close()
    if response.problems:
        raise RuntimeError("; ".join(response.problems))
    return signed


async def play(
    shape: Shape,
    warm_up: int = 2,
    *,
    route: Route = lambda _, port: port,
    trainers: Trainers | None = None,
    ended: Callable[[int, list[IdleSilo]], None] = lambda *_: None,
) -> Figures:
    """All rounds of the run; the first ones are played but not counted. `ended` hears each round's number, counted from those."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures = Figures()
    async with federation(replace(shape, rounds=shape.rounds + warm_up), route, trainers) as (make_silos, pipe):

        def reset() -> None:
            pipe.send("reset")
            pipe.recv()
            figures.silo_cpu = -cpu_seconds()
            WORK.clear()
            figures.training_cpu = -sum(silo.training_cpu for silo in silos)
            for silo in silos:
                silo.meter.up.clear()
                silo.meter.down.clear()

        def round_ended(number: int) -> None:
            if number == warm_up:
                reset()
            if number == shape.rounds + warm_up:
                figures.silo_cpu += cpu_seconds()
                figures.training_cpu += sum(silo.training_cpu for silo in silos)
                figures.silo_peak_mb = peak_mb()
                for silo in silos:
                    figures.up.update(silo.meter.up)
                    figures.down.update(silo.meter.down)
                pipe.send("figures")
                figures.server = pipe.recv()
            ended(number - warm_up, silos)

        watch = Stopwatch(shape.silos, round_ended)
        silos = make_silos(watch.hear)
        if not warm_up:
            reset()
            ended(0, silos)
        async with asyncio.TaskGroup() as group:
            for silo in silos:
                group.create_task(silo.run())
        await asyncio.gather(*(silo.connection.close() for silo in silos))
        figures.seconds = watch.seconds[warm_up:]
    return figures


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def shares(server: dict[str, Any]) -> Counter[str]:
    """The server's CPU time by kind of work; what no timer saw is gRPC, TLS and the event loop."""
    parts: Counter[str] = Counter(server["work"])
    parts["gRPC, TLS and event loop"] = max(server["cpu"] - sum(server["work"].values()), 0.0)
    return parts
