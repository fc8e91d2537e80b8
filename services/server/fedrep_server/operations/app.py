"""The server process: ports, health, signals. `serve` runs until it is told to stop, then drains and returns.

On the health port the service `live` says that the process runs; the empty name that silos may call, here or through a standby
to the leader; the names of the gRPC services, that this server leads.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep.wire.v1 import federation_pb2, federation_pb2_grpc, observer_pb2, observer_pb2_grpc
from fedrep_identity.certificates import Credentials, Role, TrustStore
from fedrep_identity.folder import key_pair_loader
from fedrep_identity.upkeep import tend_credentials
from fedrep_runtime.files import lock_folder
from fedrep_runtime.listening import address, serving_metrics
from fedrep_runtime.tls import server_credentials, server_options
from fedrep_server.calls.interceptor import Gate
from fedrep_server.calls.limits import LARGEST_RECEIVED, Turnstile
from fedrep_server.calls.meter import CallMeter
from fedrep_server.calls.observer import ObserverServicer
from fedrep_server.calls.servicer import FederationServicer
from fedrep_server.config import ServerSettings
from fedrep_server.operations.alerts import watch_for_trouble
from fedrep_server.operations.high_availability import OnLost, end_process, take_the_lead
from fedrep_server.operations.metrics import ServerMetrics
from fedrep_server.operations.ports import bind
from fedrep_server.operations.revocations import ServerRevocations
from fedrep_server.operations.run_metrics import RunCollector
from fedrep_server.operations.standby import Waiting
from fedrep_server.operations.telemetry import Telemetry
from fedrep_server.operations.tidying import tidy_up
from fedrep_server.rounds.coordinator import Coordinator
from fedrep_server.rounds.interpreter import RoundListener
from fedrep_server.rounds.model_store import open_model_store
from fedrep_server.store import Database, Retention, SqlStore
from fedrep_server.store.schema import current_revision, known_revisions, newer_schema

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 2.0
STREAMS_AT_ONCE = 256  # a dashboard watches its runs on one connection
LIVE = "live"
# Everybody calls at once when a phase ends or the server is back; beyond a thousand at once gRPC would cancel some at random.
CROWD = [("grpc.server.max_pending_requests", 20_000), ("grpc.server.max_pending_requests_hard_limit", 40_000)]
# Else the window of a fast sender grows to megabytes for each of its streams, and what fits into it is held here, read or not.
# It is what 20 Mbit/s have under way in a round trip of 100 ms, so that a silo there need not wait for leave to go on. A longer
# message still comes whole, opened for once its length is known.
WINDOW_BYTES = 1 << 18
WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES)]
SERVICES = (
    federation_pb2.DESCRIPTOR.services_by_name["FederationService"].full_name,
    observer_pb2.DESCRIPTOR.services_by_name["ObserverService"].full_name,
)


@dataclass
class RunningServer:
    """A started server; the ports are the real ones where 0 was asked for."""

    port: int
    health_port: int | None
    metrics_port: int | None
    coordinator: Coordinator
    metrics: ServerMetrics
    gate: Gate
    stop: Callable[[], Awaitable[None]]


async def start(settings: ServerSettings, on_lost: OnLost = end_process) -> RunningServer:
    """Returns when this server leads and serves. Each failure is one sentence, and leaves nothing running."""
    async with AsyncExitStack() as stack:
        _make_folder(settings.data)
        mode = settings.data.stat().st_mode & 0o777
        if mode & 0o007:  # made by somebody else, who may have had a reason: a volume, for example
            log.info("data_folder_open_to_others", folder=str(settings.data), mode=f"{mode:04o}", what_to_do="chmod 0700")
        credentials, trust, revocations = await _identity(settings)
        stack.push_async_callback(revocations.close)
        for following in revocations.follow():
            stack.callback(asyncio.create_task(following).cancel)
        health = await _not_yet_serving()
        health_port = await _serve_probes(settings, health, stack)
        metrics = ServerMetrics()
        metrics.watch_disk(settings.data)
        metrics.registry.register(revocations)
        metrics_port = _serve_metrics(settings, metrics, stack)
        listeners: list[ServerMetrics | Telemetry] = [metrics, *_telemetry(settings, stack)]
        waiting = Waiting(settings, health, metrics.standing)
        coordinator = await _coordinator(settings, credentials, listeners, stack, waiting, on_lost)
        metrics.registry.register(RunCollector(coordinator))
        turnstile = Turnstile(settings.calls_at_once, settings.calls_per_second)
        gate = Gate(trust, CallMeter(coordinator, listeners), turnstile)
        # Of one connection, which is one caller's: refusals that are held must not be without number.
        streams = [("grpc.max_concurrent_streams", max(STREAMS_AT_ONCE, settings.calls_at_once))]
        server = grpc.aio.server(interceptors=[gate], options=[*server_options(LARGEST_RECEIVED), *CROWD, *WINDOW, *streams])
        _add_services(server, coordinator, gate, health)
        secure = server_credentials(key_pair_loader(settings.credentials), credentials.root)
        port = bind(lambda: server.add_secure_port(address(settings.host, settings.port), secure), settings.host, settings.port)
        stack.push_async_callback(server.stop, DRAIN_SECONDS)
        await server.start()
        stack.push_async_callback(coordinator.shut_down)
        for work in (tend_credentials(settings.credentials), watch_for_trouble(coordinator), tidy_up(coordinator)):
            stack.callback(asyncio.create_task(work).cancel)
        for name in ("", *SERVICES):
            await health.set(name, health_pb2.HealthCheckResponse.SERVING)
        stack.push_async_callback(health.enter_graceful_shutdown)
        log.info("serving", port=port, health_port=health_port, metrics_port=metrics_port, runs=len(coordinator.drivers))
        started = stack.pop_all()

    async def stop() -> None:
        """In the opposite order: health says so first, rounds end, calls drain, the database closes last."""
        await started.aclose()
        log.info("stopped")

    return RunningServer(port, health_port, metrics_port, coordinator, metrics, gate, stop)


async def _identity(settings: ServerSettings) -> tuple[Credentials, TrustStore, ServerRevocations]:
    credentials = _server_credentials(settings)
    # As strict about dates as the handshake, where this clock decides too: no stream may outlive what let it in.
    trust = credentials.trust_store(skew=dt.timedelta(0), needs_lists=settings.require_revocations)
    revocations = ServerRevocations(settings, trust)
    await revocations.load()
    return credentials, trust, revocations


def _server_credentials(settings: ServerSettings) -> Credentials:
    try:
        credentials = Credentials.load(settings.credentials)
    except SettingsError as error:
        if error.reason != "NOT_ENROLLED":
            raise
        raise SettingsError(
            f"There is no server certificate in {settings.credentials}. Where the federation's certificate authority lives, say "
            "`fedrep silo invite NAME --role server --dns HOST`, and here `fedrep enroll TOKEN --folder "
            f"{settings.credentials}`; or point `credentials` to the folder that holds one.",
            reason="NOT_ENROLLED",
        ) from error
    credentials.trust_store().verify(credentials.chain, roles=(Role.SERVER,))
    return credentials


def _telemetry(settings: ServerSettings, stack: AsyncExitStack) -> list[Telemetry]:
    if not settings.telemetry:
        return []
    telemetry = Telemetry.to_endpoint(settings.telemetry)
    stack.push_async_callback(asyncio.to_thread, telemetry.close)
    return [telemetry]


async def _coordinator(
    settings: ServerSettings,
    credentials: Credentials,
    listeners: Sequence[RoundListener],
    stack: AsyncExitStack,
    waiting: Waiting,
    on_lost: OnLost,
) -> Coordinator:
    _make_folder(settings.data)
    kept = Retention(update_payloads=settings.retention.updates, events=settings.retention.events)
    database = Database(settings.database_url)
    store = SqlStore(database, kept)
    stack.push_async_callback(asyncio.to_thread, store.close)
    stack.push_async_callback(waiting.close)
    await take_the_lead(database, settings.advertise, stack, waiting, on_lost)
    models = open_model_store(settings.model_store, settings.data / "models", store.database)
    coordinator = Coordinator(settings, store, models, credentials, listeners)
    coordinator.watchers.attach()
    await coordinator.resume_runs()
    return coordinator


async def _not_yet_serving() -> HealthServicer:
    health = HealthServicer()
    for name in ("", *SERVICES):
        await health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    await health.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
    return health


def _add_services(server: grpc.aio.Server, coordinator: Coordinator, gate: Gate, health: HealthServicer) -> None:
    federation_pb2_grpc.add_FederationServiceServicer_to_server(FederationServicer(coordinator, gate), server)  # type: ignore[no-untyped-call]
    observer_pb2_grpc.add_ObserverServiceServicer_to_server(ObserverServicer(coordinator), server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME), server)


def check_settings(settings: ServerSettings) -> dict[str, str]:
    """What a start would find, without opening a port."""
    credentials = _server_credentials(settings)
    _make_folder(settings.data)
    database = Database(settings.database_url)
    try:
        schema, runs = _schema(database)
    finally:
        database.close()
    return {
        "identity": str(credentials.identity),
        "certificate valid until": credentials.certificate.not_valid_after_utc.isoformat(),
        "database": f"reachable, {schema}",
        "runs": str(runs),
    }


def _schema(database: Database) -> tuple[str, int]:
    """Looks and changes nothing: a schema is migrated by who leads, and a server of another release may be leading."""
    found, known = current_revision(database), known_revisions()
    if found is None:
        return "empty", 0
    if found not in known:
        raise newer_schema(database, [found])
    if found != known[-1]:
        return f"schema {found}, which the first server of this release brings to {known[-1]}", 0
    return "schema up to date", len(SqlStore(database, Retention()).runs())


async def serve(settings: ServerSettings, started: Callable[[RunningServer], None] | None = None) -> None:
    """Runs until SIGTERM or SIGINT, also while it stands by; ends the process when another server took the lead."""
    _make_folder(settings.data)
    with lock_folder(settings.data):
        asked = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, asked.set)
        starting = asyncio.create_task(start(settings))
        told_to_stop = asyncio.create_task(asked.wait())
        try:
            await asyncio.wait((starting, told_to_stop), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait((starting,))
                return
            running = await starting
            if started is not None:
                started(running)
            try:
                await told_to_stop
            finally:
                await running.stop()
        finally:
            told_to_stop.cancel()


async def _serve_probes(settings: ServerSettings, health: HealthServicer, stack: AsyncExitStack) -> int | None:
    """Kubernetes probes cannot speak mTLS: health, and nothing else, also on a plaintext port."""
    if settings.health_port is None:
        return None
    probes = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health, probes)
    host, wanted = settings.health_host, settings.health_port
    port = bind(lambda: probes.add_insecure_port(address(host, wanted)), host, wanted)
    await probes.start()
    stack.push_async_callback(probes.stop, 0)
    return port


def _serve_metrics(settings: ServerSettings, metrics: ServerMetrics, stack: AsyncExitStack) -> int | None:
    """A standby has figures too; those of runs come with the lead."""
    wanted = settings.metrics_port
    if wanted is None:
        return None

    serving = serving_metrics(settings.metrics_host, wanted, metrics.registry)
    return bind(lambda: stack.enter_context(serving), settings.metrics_host, wanted)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreUnavailableError(f"The data folder {folder} cannot be created: {error.strerror}.") from error
