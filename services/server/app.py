"""The server process: ports, health, signals. `serve` runs until it is told to stop, then drains and returns."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from fedrep.errors import SettingsError
from fedrep.wire.v1 import federation_pb2, federation_pb2_grpc, observer_pb2, observer_pb2_grpc
from services.identity.certificates import REVOCATIONS_FILE, Credentials, Role
from services.identity.peer import follow_revocations, refresh_revocations, revocations_from_file
from services.identity.upkeep import tend_credentials
from services.runtime.files import lock_folder
from services.runtime.tls import server_credentials, server_options
from services.server.alerts import watch_for_trouble
from services.server.config import ServerSettings
from services.server.coordinator import Coordinator
from services.server.interceptor import Gate
from services.server.metrics import ServerMetrics
from services.server.model_store import FolderModelStore, ModelStore
from services.server.observer import ObserverServicer
from services.server.servicer import FederationServicer
from services.server.store import Retention, open_store

log = structlog.get_logger(__name__)

SERVICES = (
    federation_pb2.DESCRIPTOR.services_by_name["FederationService"].full_name,
    observer_pb2.DESCRIPTOR.services_by_name["ObserverService"].full_name,
)


@dataclass
class RunningServer:
    """A started server; `port` is the real one when 0 was asked for."""

    port: int
    health_port: int | None
    coordinator: Coordinator
    stop: Callable[[], Awaitable[None]]


async def start(settings: ServerSettings) -> RunningServer:
    """Everything is checked before the first port opens; each failure is one sentence."""
    credentials = Credentials.load(settings.credentials)
    trust = credentials.trust_store()
    crl = settings.revocations or settings.credentials / REVOCATIONS_FILE
    await refresh_revocations(trust, revocations_from_file(crl))
    settings.data.mkdir(parents=True, exist_ok=True)
    store = await asyncio.to_thread(open_store, settings.database_url, Retention(update_payloads=settings.retention.updates))
    metrics = ServerMetrics()
    coordinator = Coordinator(settings, store, _model_store(settings), credentials, metrics)
    coordinator.watchers.attach()
    await coordinator.resume_runs()

    server = grpc.aio.server(interceptors=[Gate(trust, coordinator)], options=server_options())
    federation_pb2_grpc.add_FederationServiceServicer_to_server(FederationServicer(coordinator), server)  # type: ignore[no-untyped-call]
    observer_pb2_grpc.add_ObserverServiceServicer_to_server(ObserverServicer(coordinator), server)  # type: ignore[no-untyped-call]
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME), server)
    secure = server_credentials(lambda: Credentials.load(settings.credentials).key_pair, credentials.root)
    port = _bind(lambda: server.add_secure_port(f"{settings.host}:{settings.port}", secure), settings.host, settings.port)
    probes, health_port = await _probe_server(settings, health)
    await server.start()
    metrics_port = settings.metrics_port
    if metrics_port is not None:
        _bind(lambda: start_http_server(metrics_port, settings.host, metrics.registry), settings.host, metrics_port)
    for name in ("", *SERVICES):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    following = asyncio.create_task(follow_revocations(trust, revocations_from_file(crl)))
    tending = asyncio.create_task(tend_credentials(settings.credentials))
    watching = asyncio.create_task(watch_for_trouble(coordinator))
    log.info("serving", port=port, health_port=health_port, runs=len(coordinator.drivers))

    async def stop() -> None:
        await health.enter_graceful_shutdown()
        following.cancel()
        tending.cancel()
        watching.cancel()
        await coordinator.shut_down()
        await server.stop(grace=2.0)
        if probes is not None:
            await probes.stop(grace=0)
        await asyncio.to_thread(store.close)
        log.info("stopped")

    return RunningServer(port, health_port, coordinator, stop)


def check_settings(settings: ServerSettings) -> dict[str, str]:
    """What a start would find, without opening a port."""
    credentials = Credentials.load(settings.credentials)
    credentials.trust_store().verify(credentials.chain, roles=(Role.SERVER,))
    settings.data.mkdir(parents=True, exist_ok=True)
    store = open_store(settings.database_url)
    try:
        runs = len(store.runs())
    finally:
        store.close()
    return {
        "identity": str(credentials.identity),
        "certificate valid until": credentials.certificate.not_valid_after_utc.isoformat(),
        "database": "reachable, schema up to date",
        "runs": str(runs),
    }


async def serve(settings: ServerSettings, started: Callable[[RunningServer], None] | None = None) -> None:
    """Runs until SIGTERM or SIGINT."""
    settings.data.mkdir(parents=True, exist_ok=True)
    with lock_folder(settings.data):
        running = await start(settings)
        if started is not None:
            started(running)
        asked = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, asked.set)
        with suppress(asyncio.CancelledError):
            await asked.wait()
        await running.stop()


async def _probe_server(settings: ServerSettings, health: HealthServicer) -> tuple[grpc.aio.Server | None, int | None]:
    """Kubernetes probes cannot speak mTLS: health, and nothing else, also on a plaintext port."""
    if settings.health_port is None:
        return None, None
    probes = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, probes)
    port = _bind(lambda: probes.add_insecure_port(f"{settings.host}:{settings.health_port}"), settings.host, settings.health_port)
    await probes.start()
    return probes, port


def _model_store(settings: ServerSettings) -> ModelStore:
    return FolderModelStore(settings.data / "models")


def _bind(bind: Callable[[], object], host: str, port: int) -> int:
    try:
        bound = bind()
    except (RuntimeError, OSError) as error:
        raise SettingsError(
            f"cannot listen on {host}:{port}; another program uses the port, or the address is not this machine's. "
            "Choose another in the server's settings",
            reason="PORT_IN_USE",
        ) from error
    return bound if isinstance(bound, int) else port
