"""`fedrep client`: a silo's or the evaluator's daemon, and its operator's tools."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from services.client.config import ClientSettings
from services.identity.certificates import Credentials
from services.runtime.files import lock_folder
from services.runtime.logging import configure_logging
from services.runtime.settings import load_settings

app = typer.Typer(add_completion=False)

Config = Annotated[Path | None, typer.Option("--config", help="Settings, TOML; FEDREP_CLIENT__... wins over it.")]


@app.callback(invoke_without_command=True)
def client(context: typer.Context, config: Config = None) -> None:
    """Take part in a run until it ends, SIGTERM or Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings(ClientSettings, config, "FEDREP_CLIENT")
    configure_logging("client", settings.log_json)
    settings.state.mkdir(parents=True, exist_ok=True)
    with lock_folder(settings.state):
        asyncio.run(take_part(settings))


async def take_part(settings: ClientSettings) -> None:
    """The daemon of the role in the settings, until it is done or asked to leave."""
    from services.client.daemon import SiloDaemon
    from services.client.evaluator import Evaluator
    from services.client.trainers.build import build_trainer
    from services.identity.peer import follow_revocations, revocations_from_file

    credentials = Credentials.load(settings.credentials)
    trust = credentials.trust_store()
    trainer = build_trainer(settings.trainer)
    daemon: SiloDaemon | Evaluator
    if settings.role == "evaluator":
        daemon = Evaluator(settings, trust, trainer)
    else:
        daemon = SiloDaemon(settings, credentials, trust, trainer)
    work = asyncio.create_task(daemon.run())
    following = asyncio.create_task(follow_revocations(trust, revocations_from_file(settings.credentials / "crl.pem")))
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        await asyncio.wait_for(daemon.leave(), 10)
    finally:
        following.cancel()
        await daemon.connection.close()
