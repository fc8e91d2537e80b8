"""`fedrep server`: the federation server and its operator's tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep.privacy import shown
from fedrep_cli.ca import server_cert
from fedrep_cli.output import JSON_HELP, emit
from fedrep_cli.settings_file import commented_toml, existing, write_new
from fedrep_runtime.collector import settle_collector
from fedrep_runtime.listening import address, reached_at
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.settings import load_settings
from fedrep_server.config import ServerSettings

app = typer.Typer(add_completion=False)

Config = Annotated[
    Path | None, typer.Option("--config", help="Settings, TOML; server.toml if there is one. FEDREP_SERVER__... wins over it.")
]
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
HEALTH_SECONDS = 3.0

app.command("cert")(server_cert)  # where a person looks for it first; `fedrep ca server-cert` is the same


@app.callback(invoke_without_command=True)
def server(
    context: typer.Context,
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help="Only check settings, certificate and database.")] = False,
    as_json: Json = False,
) -> None:
    """Serve the federation until SIGTERM or Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    settings = read_settings(config)
    configure_logging("server", settings.log_json, level="WARNING" if check else "INFO")
    from fedrep_server.operations.app import check_settings, serve

    if check:
        emit(check_settings(settings), as_json, lambda found: "\n".join(f"{key}: {value}" for key, value in found.items()))
        return
    asyncio.run(serve(settings, lambda _: settle_collector()))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("server.toml"),
    as_json: Json = False,
) -> None:
    """Write a settings file with every setting, its default and what it means."""
    then = f"enrol the server here (fedrep enroll TOKEN), then fedrep server --config {path} --check"
    write_new(path, commented_toml(ServerSettings, "Settings of the FedREP server. Every line shows the default."), then, as_json)


@app.command()
def backup(
    target: Annotated[str, typer.Argument(help="File to write; FOLDER/ for one named after the time; or s3://... and the like.")],
    config: Config = None,
    keep: Annotated[int | None, typer.Option(help="Of those named after the time keep this many.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Database, models and ledger in one file; the server may go on running."""
    from fedrep_server.operations.backup import backup as make
    from fedrep_server.operations.backup_places import write_backup

    settings = read_settings(config)
    place, size, made = write_backup(
        target, lambda path: make(settings.database_url, settings.data, path, settings.model_store), keep
    )
    emit(
        {"file": place, "size": size, "runs": made.runs, "models": made.models},
        as_json,
        lambda r: f"Wrote {r['file']}: runs: {r['runs']}, models: {r['models']}.",
    )


@app.command()
def restore(
    source: Annotated[str, typer.Argument(help="File written by backup, or its address in an object store.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Into an empty database and data folder."""
    from fedrep_server.operations.backup import restore as put_back
    from fedrep_server.operations.backup_places import local_copy

    settings = read_settings(config)
    with local_copy(source) as file:
        found = put_back(file, settings.database_url, settings.data, settings.model_store)
    emit(
        {"restored": source, "runs": found.runs, "models": found.models},
        as_json,
        lambda r: f"Restored {r['restored']}: runs: {r['runs']}, models: {r['models']}.",
    )


@app.command()
def ledger(config: Config = None, as_json: Json = False) -> None:
    """What each silo has spent in each run, deleted runs too, from the database."""
    from fedrep_server.store import Database, Retention, SqlStore
    from fedrep_server.store.schema import current_revision, known_revisions

    database = Database(read_settings(config).database_url)
    try:
        if current_revision(database) != known_revisions()[-1]:
            raise SettingsError("The database does not have the schema of this version. Ask with the version that uses it.")
        rows = [asdict(row) for row in SqlStore(database, Retention()).spent()]
    finally:
        database.close()
    emit({"spent": rows}, as_json, _render_ledger)


def _render_ledger(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table("run", "silo", "proposals", "epsilon", "record epsilon", "deleted")
    for row in result["spent"]:
        deleted = "yes" if row["deleted_at"] else ""
        table.add_row(row["run"], row["silo"], str(row["proposals"]), shown(row["epsilon"]), _record_cost(row), deleted)
    return table


def _record_cost(row: Mapping[str, Any]) -> str:
    if row["record_epsilon"] is None and not row["record_none"]:
        return "not reported"
    return shown(row["record_epsilon"])


@app.command()
def health(
    config: Config = None,
    live: Annotated[bool, typer.Option("--live", help="Only whether the process runs; a standby is live, not ready.")] = False,
    address: Annotated[str | None, typer.Option("--address", help="host:port of another server's health port.")] = None,
    as_json: Json = False,
) -> None:
    """Ask a running server's health port, as a probe does; fails unless it serves."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    where = address or _health_address(read_settings(config))
    with grpc.insecure_channel(where, [("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = stub.Check(health_pb2.HealthCheckRequest(service="live" if live else ""), timeout=HEALTH_SECONDS).status
    if status != health_pb2.HealthCheckResponse.SERVING:
        raise StoreUnavailableError("The server runs and does not serve: it stands by, starts, or stops.", reason="NOT_SERVING")
    emit({"serving": True}, as_json, lambda _result: "serving")


def read_settings(config: Path | None) -> ServerSettings:
    return load_settings(ServerSettings, config or existing("server.toml"), "FEDREP_SERVER")


def _health_address(settings: ServerSettings) -> str:
    if settings.health_port is None:
        raise SettingsError("The settings switch the health port off, so there is nothing to ask. Set `health_port`.")
    return address(reached_at(settings.health_host), settings.health_port)
