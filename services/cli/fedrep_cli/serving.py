"""Run the certificate authority until it is told to stop."""

from __future__ import annotations

import asyncio
import signal

from fedrep.errors import SettingsError
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.authority_server import AuthorityServer
from fedrep_identity.enrolment import EnrolmentDesk
from fedrep_identity.settings import AuthoritySettings, PublicAddresses
from fedrep_runtime.files import lock_folder
from fedrep_runtime.logging import configure_logging


async def serve_authority(authority: CertificateAuthority, settings: AuthoritySettings) -> None:
    configure_logging("ca", settings.log_json)
    try:
        public: PublicAddresses | None = PublicAddresses.load(settings.folder)
    except SettingsError:  # an authority made by hand; silos then get the address it listens on
        public = None
    with lock_folder(settings.folder):
        server = AuthorityServer(EnrolmentDesk(authority, settings.days), settings.listening(public), settings.limits())
        await server.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()
        await server.stop()
