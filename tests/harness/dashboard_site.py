"""The real dashboard on a real port beside the scripted server, for API and browser tests and for working on the pages."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import uvicorn
from pydantic import SecretStr

from fedrep_dashboard.app import create_app
from fedrep_dashboard.connection import Connection
from fedrep_dashboard.settings import DashboardSettings
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.names import Identity, Role
from tests.harness.dashboard_server import ScriptedServer, scripted_run

ADMIN = "an-admin-token-of-the-tests"
VIEWER = "a-viewer-token-of-the-tests"


@cache
def shared_loop() -> asyncio.AbstractEventLoop:
    """One loop for all dashboards of a test process: grpc.aio loses events when one of several loops is closed."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def insecure(address: str, may_act: bool = True) -> Connection:
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300)]
    return Connection(lambda: grpc.aio.insecure_channel(address, options), may_act)


def as_admin(address: str, folder: Path) -> Connection:
    """The same, with a real admin certificate that signs the manifests of new runs."""
    authority = CertificateAuthority.create(folder / "ca", "tests", "a passphrase for tests")
    credentials = issue_credentials(authority, folder / "admin", Identity("dashboard", Role.ADMIN, "tests"))
    return replace(insecure(address), credentials=credentials)


def settings_for(address: str, **changes: object) -> DashboardSettings:
    values: dict[str, object] = {
        "server": address,
        "admin_token": SecretStr(ADMIN),
        "viewer_token": SecretStr(VIEWER),
        "poll_seconds": 0.2,
    }
    return DashboardSettings.model_validate(values | changes)


@contextmanager
def serving(settings: DashboardSettings, connection: Connection, port: int = 0) -> Iterator[str]:
    """The dashboard's address while the block runs."""
    config = uvicorn.Config(create_app(settings, connection), "127.0.0.1", port, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.run_coroutine_threadsafe(server.serve(), shared_loop())
    while not server.started:
        if serving.done():
            raise RuntimeError("the dashboard did not start") from serving.exception()
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        serving.result(120)


def main() -> None:
    """Serve sample runs; a round is played every two seconds."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--long", action="store_true", help="Also a run of 10,000 rounds.")
    arguments = parser.parse_args()
    server = ScriptedServer().start()
    if arguments.long:
        server.add(scripted_run("digits-long", rounds=10_000, state="finished"), 10_000)
    server.add(scripted_run("digits-mean", aggregator="mean", alpha=0.0, budget=None, state="finished"), 40)
    server.add(scripted_run("empty", state="waiting"))
    live = server.add(scripted_run("digits", private=6), 60)
    with (
        TemporaryDirectory() as folder,
        serving(settings_for(server.address), as_admin(server.address, Path(folder)), arguments.port) as url,
    ):
        print(f"{url}/#token={ADMIN}", flush=True)  # noqa: T201
        while True:
            time.sleep(arguments.seconds)
            server.play_round(live)


if __name__ == "__main__":
    main()
