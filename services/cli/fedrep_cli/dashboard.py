"""`fedrep dashboard`: the pages, the REST interface and the live streams, fed by a federation server."""

from __future__ import annotations

import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from fedrep_cli.output import JSON_HELP
from fedrep_cli.ports import metrics_port, require_free
from fedrep_cli.settings_file import commented_toml, existing, write_new
from fedrep_dashboard.settings import DashboardSettings
from fedrep_identity.folder import learned_server
from fedrep_runtime.listening import address, listening, reached_at
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.settings import load_settings

app = typer.Typer(add_completion=False)

NOT_STARTED = 3  # uvicorn's own code; its log says why


@app.callback(invoke_without_command=True)
def dashboard(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings, TOML; dashboard.toml if there is one. FEDREP_DASHBOARD__... wins over it."),
    ] = None,
) -> None:
    """Serve the dashboard until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    import uvicorn

    from fedrep_dashboard.app import create_app

    settings, made = with_tokens(read_settings(config))
    configure_logging("dashboard", level=settings.log_level)
    application = create_app(settings)
    scheme = "https" if settings.web_certificate else "http"
    require_free(settings.host, settings.port, "Stop that program, or choose another `port` in the dashboard's settings")
    print(f"Dashboard: {scheme}://{address(reached_at(settings.host), settings.port)}/", file=sys.stderr)
    for role, token in made.items():
        print(f"{role} token, made for this start only: {token}", file=sys.stderr)
    config_of_pages = uvicorn.Config(
        application,
        host=settings.host,  # for its first line alone: it is handed an open socket
        port=settings.port,
        ssl_certfile=settings.web_certificate,
        ssl_keyfile=settings.web_key,
        proxy_headers=False,  # a forwarded address must not pass for the trusted proxy's own
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=2,  # open live streams never end by themselves
    )
    with (
        listening(settings.host, settings.port) as opened,
        metrics_port(settings.metrics_host, settings.metrics_port, application.state.metrics.registry),
    ):
        pages = uvicorn.Server(config_of_pages)
        with suppress(KeyboardInterrupt):
            pages.run([opened])
    if not pages.started:
        raise typer.Exit(NOT_STARTED)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("dashboard.toml"),
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Write a settings file with every setting, its default and what it means."""
    text = commented_toml(DashboardSettings, "Settings of the FedREP dashboard. Every line shows the default.")
    write_new(path, text, f"enrol with a viewer's or an admin's invitation, then fedrep dashboard --config {path}", as_json)


def read_settings(config: Path | None) -> DashboardSettings:
    """The server is the one learned at enrolment, and the identity that `fedrep enroll` wrote here, unless they are set."""
    settings = load_settings(DashboardSettings, config or existing("dashboard.toml"), "FEDREP_DASHBOARD")
    found: dict[str, Any] = {}
    if settings.credentials is None and Path("credentials").exists():
        found["credentials"] = Path("credentials")
    if "server" not in settings.model_fields_set:
        found["server"] = learned_server(found.get("credentials", settings.credentials) or Path())
    return settings.model_copy(update=found)


def with_tokens(settings: DashboardSettings) -> tuple[DashboardSettings, dict[str, str]]:
    """Where neither a token nor a proxy is set, nobody could sign in: make tokens, to be shown once."""
    if settings.admin_token or settings.viewer_token or settings.proxy:
        return settings, {}
    made = {"admin": secrets.token_urlsafe(24), "viewer": secrets.token_urlsafe(24)}
    update = {f"{role}_token": SecretStr(token) for role, token in made.items()}
    return settings.model_copy(update=update), made
