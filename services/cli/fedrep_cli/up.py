"""`fedrep up`: what `fedrep init` made, running until Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep.errors import FedrepError, SettingsError
from fedrep_cli.ca import PASSPHRASE_VARIABLE, AsJson, PassphraseFile, read_passphrase
from fedrep_cli.dashboard import read_settings as read_dashboard
from fedrep_cli.founding import AUTHORITY, LOOPBACK
from fedrep_cli.output import emit
from fedrep_cli.ports import require_free
from fedrep_cli.processes import Processes, orderly_end
from fedrep_cli.server import read_settings as read_server
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.enrolment_client import split_address
from fedrep_identity.settings import PublicAddresses
from fedrep_runtime.files import lock_folder
from fedrep_runtime.listening import address, reached_at

app = typer.Typer(add_completion=False)

START_SECONDS = 120.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Part:
    """One process; it is up when its first port is open."""

    name: str
    arguments: list[str]
    ports: list[tuple[str, int, str]]  # host, port, and which setting names it
    environment: dict[str, str] = field(default_factory=dict)


@app.command()
def up(
    folder: Annotated[Path, typer.Option(help="Where `fedrep init` wrote.", file_okay=False)] = Path(),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Start authority, server and dashboard as `fedrep init` set them up, until Ctrl-C; with --json one object once all run."""
    if not (folder / AUTHORITY).exists():
        raise SettingsError(f"there is no federation in {folder.resolve()}. Set one up with: fedrep init NAME --silo SILO")
    passphrase = read_passphrase(passphrase_file)
    CertificateAuthority.open(folder / AUTHORITY, passphrase)  # a wrong one is said here, and not in a log
    os.environ.pop(PASSPHRASE_VARIABLE, None)  # the authority's alone: neither server nor dashboard may know it
    with lock_folder(folder / "logs"), orderly_end():
        parts = _parts(folder, passphrase)
        for part in parts:
            for host, port, setting in part.ports:
                require_free(host, port, f"Stop that program, or choose another port for the {part.name}: {setting}")
        with Processes(folder / "logs") as processes:
            for part in parts:
                print(f"... starting {part.name}", file=sys.stderr)
                processes.start(part.name, part.arguments, part.environment)
                _wait(processes, part)
            emit(_result(folder, parts), as_json, _render)
            sys.stdout.flush()
            _stay(processes, parts)


def _parts(folder: Path, passphrase: str) -> list[Part]:
    public = PublicAddresses.load(folder / AUTHORITY)
    where = f"change it in {folder / AUTHORITY / 'addresses.json'}, and invite again who has not enrolled"
    (host, enrolment), (_, certificates) = split_address(public.enrolment), split_address(public.certificates)
    own = "127.0.0.1" if host in LOOPBACK else "0.0.0.0"
    ports = [(own, enrolment, where), (own, certificates, where)]
    secret = {PASSPHRASE_VARIABLE: passphrase, "FEDREP_CA__HOST": own, "FEDREP_CA__FOLDER": str(folder / AUTHORITY)}
    parts = [Part("authority", ["ca", "serve", "--folder", str(folder / AUTHORITY)], ports, secret)]
    config = folder / "server.toml"
    if config.exists():
        server = read_server(config)
        ports = [(server.host, server.port, f"`port` in {config}")]
        ports += [(server.health_host, server.health_port, f"`health_port` in {config}")] if server.health_port else []
        ports += [(server.metrics_host, server.metrics_port, f"`metrics_port` in {config}")] if server.metrics_port else []
        parts.append(Part("server", ["server", "--config", str(config)], ports))
    config = folder / "dashboard.toml"
    if config.exists():
        pages = read_dashboard(config)
        ports = [(pages.host, pages.port, f"`port` in {config}")]
        ports += [(pages.metrics_host, pages.metrics_port, f"`metrics_port` in {config}")] if pages.metrics_port else []
        parts.append(Part("dashboard", ["dashboard", "--config", str(config)], ports))
    return parts


def _wait(processes: Processes, part: Part) -> None:
    host, port, _ = part.ports[0]
    limit = time.monotonic() + START_SECONDS
    while True:
        processes.require(part.name)
        try:
            socket.create_connection((reached_at(host), port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > limit:
                raise FedrepError(
                    f"the {part.name} does not answer on {address(host, port)}: {processes.last_words(part.name)}"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return


def _stay(processes: Processes, parts: list[Part]) -> None:
    try:
        while True:
            for part in parts:
                processes.require(part.name)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        print("\n... stopping", file=sys.stderr)


def _result(folder: Path, parts: list[Part]) -> dict[str, Any]:
    public = PublicAddresses.load(folder / AUTHORITY)
    result: dict[str, Any] = {
        "enrolment": public.enrolment,
        "server": public.server,
        "logs": str((folder / "logs").resolve()),
        "running": [part.name for part in parts],
    }
    if (folder / "dashboard.toml").exists():
        pages = read_dashboard(folder / "dashboard.toml")
        result["dashboard"] = f"{'https' if pages.web_certificate else 'http'}://{pages.host}:{pages.port}/"
        result["sign_in"] = str(folder / "dashboard.toml")
    return result


def _render(result: Mapping[str, Any]) -> str:
    lines = [
        f"Running until Ctrl-C: {', '.join(result['running'])}.",
        f"  silos enrol at   {result['enrolment']}",
        f"  server           {result['server']}",
    ]
    if "dashboard" in result:
        lines.append(f"  dashboard        {result['dashboard']}")
        lines.append(f"  sign in with     a token from {result['sign_in']}")
    return "\n".join([*lines, f"  logs             {result['logs']}"])
