"""`fedrep client`: a silo's or the evaluator's daemon, and its operator's tools."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from fedrep.errors import FedrepError, SettingsError
from fedrep_cli.client_view import render_status, status_of, waiting_line
from fedrep_cli.findings import render_findings
from fedrep_cli.model_files import Form
from fedrep_cli.output import JSON_HELP, ask, complain, emit
from fedrep_cli.settings_file import BUILT_IN, commented_toml, refuse_existing, write_new
from fedrep_identity.certificates import REVOCATIONS_FILE, Credentials
from fedrep_identity.folder import FederationAddresses
from fedrep_runtime.collector import settle_collector
from fedrep_runtime.files import lock_folder
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.proxy import take_capitals
from fedrep_silo.config import SiloSettings, load_silo_settings
from fedrep_silo.run_folders import run_of_now

if TYPE_CHECKING:
    from fedrep_silo.daemon import SiloDaemon
    from fedrep_silo.evaluator import Evaluator
    from fedrep_silo.following import Follower
    from fedrep_trainers.trainer import Trainer

app = typer.Typer(add_completion=False)

DEFAULT_CONFIG = Path("client.toml")
LEAVE_SECONDS = 10.0
HASTY_SECONDS = 1.0
LOCK_ATTEMPTS, LOCK_PAUSE = 3, 0.2

Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings, TOML; client.toml if there is one. FEDREP_CLIENT__... wins over it."),
]
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


@app.callback(invoke_without_command=True)
def client(context: typer.Context, config: Config = None) -> None:
    """Take part in a run until it ends, SIGTERM or Ctrl-C."""
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    run_daemon(read_settings(config))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = DEFAULT_CONFIG,
    folder: Annotated[Path, typer.Option(help="Where `fedrep enroll` put key and certificate.")] = Path("credentials"),
    server: Annotated[str | None, typer.Option(help="host:port of the federation server.")] = None,
    run: Annotated[str | None, typer.Option(help="Name of the run to take part in.")] = None,
    trainer: Annotated[str | None, typer.Option(help="module:function that makes your trainer; empty for digits.")] = None,
    as_json: Json = False,
) -> None:
    """Ask for the server, the run and your trainer, and write a settings file that explains everything else."""
    refuse_existing(path)  # before anything is asked
    known, role = _enrolled(folder)
    server = server or ask("Federation server (host:port)", default=known or "localhost:8550")
    run = run or ask("Run to take part in")
    if trainer is None:
        trainer = ask("Your trainer (module:function, beside this file; empty for built-in data)", default="")
    credentials = Path(os.path.relpath(folder.resolve(), path.resolve().parent))
    then = f"fedrep client check --config {path}, then fedrep client --config {path}"
    write_new(path, silo_toml(server, run, role, credentials, trainer), then, as_json)


@app.command()
def check(context: typer.Context, config: Config = None, as_json: Json = False) -> int:
    """Settings, data, model, one training step, device, connection, clock and certificate, as a table."""
    configure_logging("check", level="ERROR")
    settings = read_settings(config or context.obj)
    from fedrep_cli.client_check import check_silo

    rows = asyncio.run(check_silo(settings))
    healthy = all(row["outcome"] != "failed" for row in rows)
    emit({"healthy": healthy, "findings": rows}, as_json, render_findings)
    return 0 if healthy else 1


@app.command()
def status(context: typer.Context, config: Config = None, as_json: Json = False) -> None:
    """What the daemon does now, and what the silo has spent."""
    settings = read_settings(config or context.obj)
    from fedrep_silo.ledgers import LedgerFolder
    from fedrep_silo.record_books import RecordBooks
    from fedrep_silo.state import StateFolder

    found = StateFolder(settings.state).status()
    if settings.follows and found.get("now"):
        found |= StateFolder(run_of_now(settings).state).status()
    if settings.role == "evaluator":  # proposes nothing and trains nothing, so it spends nothing
        found = {key: value for key, value in found.items() if key not in ("last_spoken_round", "epsilon_total")}
    else:
        spent = LedgerFolder(settings.ledger, "").elsewhere("")  # by all runs over this data set, purged ones too
        found |= {"epsilon_data_set": "none" if spent is None else spent}
        found |= RecordBooks(settings.ledger, settings.privacy).standing().figures()
    found["running"] = in_use(settings.state)
    if found.get("at") is not None:
        found["seconds_ago"] = round(time.time() - found["at"], 1)
    emit(found, as_json, render_status)


@app.command()
def audit(
    context: typer.Context,
    config: Config = None,
    round_number: Annotated[int | None, typer.Option("--round", help="Only this round.")] = None,
    as_json: Json = False,
) -> None:
    """Everything that left this silo: when, what, how many bytes, with whom, at which cost."""
    settings = run_of_now(read_settings(config or context.obj))
    from fedrep_silo.audit import Audit

    entries = [
        entry
        for entry in Audit(settings.state / "audit.jsonl").entries()
        if round_number is None or entry["round"] == round_number
    ]
    emit({"entries": entries, "bytes": sum(entry["bytes"] for entry in entries)}, as_json, _render_audit)


@app.command()
def export(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(help="File to write; a folder with --format adapter.")],
    config: Config = None,
    form: Annotated[
        Form, typer.Option("--format", metavar="FORM", help="safetensors; for PyTorch models also torch, onnx or adapter.")
    ] = Form.SAFETENSORS,
    as_json: Json = False,
) -> None:
    """Write the model that this silo holds, whole and by its tensors' names; the server is not asked."""
    settings = run_of_now(read_settings(config or context.obj))
    from fedrep_cli.model_files import shown, write_form
    from fedrep_silo.state import StateFolder

    folder = StateFolder(settings.state)
    model = folder.model()
    if model is None:
        best = settings.state / "best.safetensors"
        more = f"; the evaluator's best is {best}" if best.exists() else ": it gets one when it joins its run"
        raise SettingsError(f"there is no model in {settings.state} yet{more}")
    notes = {"fedrep.run": settings.run, "fedrep.version": str(model.version), "fedrep.round": str(folder.journal().last_round)}
    write_form(make_trainer(settings), model.vector, target, form, notes)
    result = {"run": settings.run, "version": model.version, "file": str(target), "format": form.value, "hash": model.hash.hex()}
    emit(result, as_json, lambda r: f"Wrote {r['file']}, version {r['version']} of the model. Use it: {shown(r)}")


@app.command()
def leave(
    context: typer.Context,
    config: Config = None,
    purge: Annotated[bool, typer.Option(help="Also forget this run: residual, model, journal, audit. The ledger stays.")] = False,
    as_json: Json = False,
) -> None:
    """Tell the server that this silo leaves the run. Stop the daemon first (SIGTERM leaves politely by itself)."""
    configure_logging("client", level="ERROR")
    whole = read_settings(config or context.obj)
    settings = run_of_now(whole)
    from fedrep_silo.state import StateFolder

    with lock_folder(whole.state):
        folder = StateFolder(settings.state)
        told, why = False, "this silo never joined a run"
        run = folder.run_to_leave() if purge else folder.journal().run
        if run:
            told, why = asyncio.run(_say_goodbye(settings, bytes.fromhex(run)))
        if purge:
            folder.purge()
    emit({"told_server": told, "purged": purge, "why": why}, as_json, _render_leave)


def silo_toml(server: str, run: str, role: str, credentials: Path, trainer: str, part: tuple[int, int] | None = None) -> str:
    """A settings file; `trainer` is module:function, or nothing or digits for built-in data; `part` is which of how many."""
    given: dict[str, Any] = {
        "server": server,
        "run": run,
        "role": role,
        "credentials": str(credentials),
        "state": "state",
        "trainer": {"user_code": trainer} if trainer not in ("", BUILT_IN) else {"dataset": BUILT_IN},
    }
    if part is not None:
        given["trainer"] |= {"shard_index": part[0] - 1, "shard_count": part[1]}
    title = "Settings of this silo. A line that starts with # shows a default. Relative paths start at this file's folder."
    return commented_toml(SiloSettings, title, given)


def run_daemon(settings: SiloSettings) -> None:
    live = sys.stderr.isatty() and settings.log_json is not True
    configure_logging("client", settings.log_json, level="WARNING" if live else "INFO")
    with hold_folder(settings.state):
        asyncio.run(take_part(settings, live=live))


def read_settings(config: Path | None) -> SiloSettings:
    """All that the daemon needs to be named."""
    take_capitals()
    if config is None and DEFAULT_CONFIG.exists():
        config = DEFAULT_CONFIG
    settings = load_silo_settings(config)
    if not settings.run and not settings.runs:
        if config is None:
            raise SettingsError(
                f"There is no {DEFAULT_CONFIG} in this folder. Go to the silo's folder or name its settings with --config; "
                "fedrep join sets a silo up."
            )
        raise SettingsError(
            "No run is named. Set `run` in the silo's settings (fedrep client init writes a file), or FEDREP_CLIENT__RUN"
        )
    return settings


@contextmanager
def hold_folder(state: Path) -> Iterator[None]:
    """The state folder for this process alone. `status`, which a health check may call, holds it for a moment too."""
    for _ in range(LOCK_ATTEMPTS - 1):
        if not in_use(state):
            break
        time.sleep(LOCK_PAUSE)
    with lock_folder(state):
        yield


def make_trainer(settings: SiloSettings) -> Trainer:
    """A trainer of the silo's own may do without torch, which takes seconds to import."""
    if settings.trainer.user_code is not None:
        from fedrep_trainers.user_code import user_trainer

        return user_trainer(settings.trainer.user_code, settings.trainer)
    from fedrep_trainers.build import build_trainer

    return build_trainer(settings.trainer)


@dataclass
class AskedToStop:
    """By a signal, once or more often."""

    once: asyncio.Event = field(default_factory=asyncio.Event)
    twice: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self) -> None:
        (self.twice if self.once.is_set() else self.once).set()


async def take_part(settings: SiloSettings, *, live: bool = False) -> None:
    """The daemon of the role in the settings, until it is done or asked to leave."""
    asked = AskedToStop()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, asked.hear)
    await _play(settings, live, asked)
    if settings.when_done == "wait" and not asked.once.is_set():
        await _idle(asked)


def check_role(settings: SiloSettings, credentials: Credentials) -> None:
    """Else a silo would evaluate round after round and contribute nothing, with nobody told."""
    if settings.role != (held := credentials.identity.role.value):
        raise SettingsError(
            f'role = "{settings.role}" in the settings, but the certificate in {settings.credentials} is for the role of {held}. '
            f'Set role = "{held}", or ask the federation\'s admin for an invitation of the other role'
        )


async def _play(settings: SiloSettings, live: bool, asked: AskedToStop) -> None:
    """Whatever holds a device is gone when this returns."""
    from fedrep_identity.peer import RevocationsFile, follow_revocations, refresh_revocations
    from fedrep_identity.upkeep import tend_credentials
    from fedrep_silo.daemon import SiloDaemon
    from fedrep_silo.evaluator import Evaluator
    from fedrep_silo.following import Follower

    credentials = Credentials.load(settings.credentials)
    check_role(settings, credentials)
    trust = credentials.trust_store()
    revocations = RevocationsFile(settings.credentials / REVOCATIONS_FILE)
    await refresh_revocations(trust, revocations)

    def in_one_run(settings: SiloSettings, trainer: Trainer) -> SiloDaemon | Evaluator:
        if settings.role == "evaluator":
            return Evaluator(settings, trust, trainer)
        return SiloDaemon(settings, credentials, trust, trainer)

    build = partial(make_trainer, settings)
    daemon = Follower(settings, build, in_one_run) if settings.follows else in_one_run(settings, build())
    settle_collector()
    beside = [
        asyncio.create_task(follow_revocations(trust, revocations)),
        asyncio.create_task(tend_credentials(settings.credentials, lambda _: daemon.connection.renew())),
    ]
    if live:
        from fedrep_cli.client_view import show_rounds

        beside.append(asyncio.create_task(show_rounds(daemon)))
    try:
        await _until_asked_to_stop(daemon, settings.grace_seconds, asked, live=live)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await daemon.connection.close()


async def _idle(asked: AskedToStop) -> None:
    """Where a supervisor would start a silo that has ended again and again, it stays, and holds no device."""
    import structlog

    from fedrep_silo.idling import let_go_of_devices

    let_go_of_devices()
    structlog.get_logger(__name__).info("idle", why="its runs are over", do="end it, or name another run in its settings")
    await asked.once.wait()


async def _until_asked_to_stop(
    daemon: SiloDaemon | Evaluator | Follower, grace: float, asked: AskedToStop, *, live: bool = False
) -> None:
    """A round that others count on is finished first, as far as the grace allows; training is not waited for, and who asks twice
    waits for nothing."""
    work = asyncio.create_task(daemon.run())
    stopping, at_once = asyncio.create_task(asked.once.wait()), asyncio.create_task(asked.twice.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if work.done():
        at_once.cancel()
        work.result()
        if live:
            complain("fedrep client", "the run is over. fedrep client export FILE writes its model.")
        return
    daemon.stop()
    if daemon.speaking:
        said = waiting_line(status_of(daemon), grace)
        if live:
            complain("fedrep client", said)
        else:
            structlog.get_logger(__name__).info("stopping", text=said)
        await asyncio.wait({work, at_once}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    work.cancel()
    with suppress(asyncio.CancelledError, FedrepError):
        await work
    leaving = asyncio.create_task(daemon.leave())
    if at_once.done():  # asked twice before it could say goodbye: a moment is left for it, as long as the server is there
        await asyncio.wait({leaving}, timeout=HASTY_SECONDS)
    else:
        await asyncio.wait({leaving, at_once}, timeout=LEAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
    leaving.cancel()
    told = not (await asyncio.gather(leaving, return_exceptions=True))[0]
    if live and told:
        complain("fedrep client", "this silo has left; the same command brings it back.")
    elif not live:
        structlog.get_logger(__name__).info("left", server_told=told)


async def _say_goodbye(settings: SiloSettings, run: bytes) -> tuple[bool, str]:
    from fedrep_silo.connection import connect

    connection = connect(settings.model_copy(update={"give_up_after": LEAVE_SECONDS / 2}))
    try:
        await asyncio.wait_for(connection.leave(run), LEAVE_SECONDS)
    except (FedrepError, TimeoutError) as error:
        return False, str(error) or "the server did not answer in time"
    finally:
        await connection.close()
    return True, ""


def _enrolled(folder: Path) -> tuple[str, str]:
    """The server's address and the role, as enrolment left them; nothing for a folder that is not enrolled yet."""
    address, role = "", "silo"
    with suppress(FedrepError):
        address = FederationAddresses.load(folder).server
    with suppress(FedrepError):
        role = Credentials.load(folder).identity.role.value
    return address, role if role in ("silo", "evaluator") else "silo"


def in_use(state: Path) -> bool:
    try:
        with lock_folder(state):
            return False
    except SettingsError:
        return True


def _render_audit(result: Mapping[str, Any]) -> Any:
    from rich.table import Column, Table

    kept = [Column(name, no_wrap=True) for name in ("when (UTC)", "round", "what", "bytes")]
    plainly: dict[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "pad_edge": False, "caption_justify": "left"}
    table = Table(*kept, Column("details", overflow="fold"), caption=f"{result['bytes']} bytes in all", **plainly)
    for entry in result["entries"]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["at"]))
        rest = {key: value for key, value in entry.items() if key not in ("at", "round", "what", "bytes")}
        details = ", ".join(f"{key} {_short(key, value)}" for key, value in rest.items())
        table.add_row(when, str(entry["round"] or ""), entry["what"], str(entry["bytes"]), details)
    return table


def _short(key: str, value: Any) -> str:
    if key in ("epsilon_total", "record_epsilon"):
        from fedrep_cli.client_view import shown_epsilon

        return shown_epsilon(value)
    return ", ".join(value) if isinstance(value, list) else str(value)


def _render_leave(result: Mapping[str, Any]) -> str:
    told = "The server knows that this silo left." if result["told_server"] else f"The server was not told: {result['why']}."
    return told + (" Everything about the run was removed here." if result["purged"] else "")
