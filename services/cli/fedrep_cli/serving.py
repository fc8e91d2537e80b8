"""Run the certificate authority until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fedrep.errors import SettingsError
from fedrep_cli.ports import metrics_port
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.authority_server import AuthorityServer
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.settings import AuthoritySettings, PublicAddresses
from fedrep_runtime.files import lock_folder
from fedrep_runtime.logging import configure_logging


@contextmanager
def _metrics(authority: CertificateAuthority, settings: AuthoritySettings) -> Iterator[None]:
    if settings.metrics_port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, ProcessCollector

    from fedrep_identity.authority_metrics import AuthorityCollector

    registry = CollectorRegistry()
    registry.register(AuthorityCollector(authority))
    ProcessCollector(registry=registry)
    with metrics_port(settings.metrics_host, settings.metrics_port, registry):
        yield


async def serve_authority(authority: CertificateAuthority, settings: AuthoritySettings) -> None:
    configure_logging("ca", settings.log_json)
    try:
        public: PublicAddresses | None = PublicAddresses.load(settings.folder)
    except SettingsError:  # an authority made by hand; silos then get the address it listens on
        public = None
    with lock_folder(settings.folder), _metrics(authority, settings):
        server = AuthorityServer(EnrolmentDesk(authority, settings.days), settings.listening(public), settings.limits())
        await server.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()
        await server.stop()
