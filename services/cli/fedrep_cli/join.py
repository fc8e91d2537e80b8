"""`fedrep join`: from an invitation to a silo that takes part, in one command that may be repeated."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep.errors import ConflictError, SettingsError
from fedrep_cli.client import in_use, run_daemon, silo_toml
from fedrep_cli.enroll import read_token
from fedrep_cli.output import JSON_HELP, ask, complain, emit
from fedrep_cli.settings_file import BUILT_IN, commented_toml
from fedrep_cli.steps import DONE, KEPT, Step, lines, next_lines, plain, settings_step
from fedrep_identity import enrolment_client
from fedrep_identity.certificates import Credentials
from fedrep_identity.folder import finish_installation, learned_server
from fedrep_identity.invitations import Invitation
from fedrep_identity.names import Role
from fedrep_runtime.logging import configure_logging
from fedrep_runtime.proxy import take_capitals
from fedrep_silo.config import load_silo_settings

app = typer.Typer(add_completion=False)

EVERY_RUN = "*"


@app.command()
def join(
    token: Annotated[
        str | None,
        typer.Argument(help="The invitation you were sent, or a file that holds it; - reads it from stdin. Needed once."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where key, settings and state live.", file_okay=False)] = Path(),
    trainer: Annotated[
        str | None, typer.Option(help=f"module:function that makes your trainer, beside the settings; {BUILT_IN} to try it out.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="To try it out: your part of the built-in or a template's data, as in 2/4. Real silos have their own."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help=f"Name of the run to take part in; without it {EVERY_RUN}, every run that lists this silo."),
    ] = None,
    start: Annotated[bool, typer.Option(help="Take part at once, until Ctrl-C.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> int:
    """Enrol, write the settings, check everything, and take part. The key is made on this machine and never leaves it.

    Repeat it after an interruption, or when a check was red: what is there is kept as it is.
    """
    configure_logging("join", level="WARNING")
    take_capitals()
    invitation = Invitation.from_token(text) if (text := read_token(token)) is not None else None
    shard = _parsed(part) if part is not None else None
    held = _held(folder / "credentials", invitation)
    role = held.identity.role if held is not None else _required(invitation, folder).role
    if role in (Role.SILO, Role.EVALUATOR):  # before the invitation is used
        if (folder / "client.toml").exists():
            _check_options(folder / "client.toml", trainer, shard, run)
        else:
            trainer = _asked(trainer)
            if trainer == BUILT_IN and shard is None and role is Role.SILO:
                shard = _asked_part()
    steps = [_enrolled(folder / "credentials", held, text)]
    if role is Role.SERVER:
        steps.append(_server_settings(folder))
        return _report(
            steps, [f"fedrep server --check{_at(folder, 'server.toml')}", f"fedrep server{_at(folder, 'server.toml')}"], as_json
        )
    if role in (Role.ADMIN, Role.VIEWER):
        steps.append(_dashboard_settings(folder))
        identity = "" if folder == Path() else f" --identity {folder / 'credentials'}"
        return _report(steps, [f"fedrep run list{identity}", f"fedrep dashboard{_at(folder, 'dashboard.toml')}"], as_json)
    steps.append(_silo_settings(folder, role, run or EVERY_RUN, trainer or BUILT_IN, shard))
    if role is Role.SILO:
        steps.append(_data(steps[-1].state, trainer or BUILT_IN, shard))
    return _check_and_start(folder, steps, start, as_json)


def _check_and_start(folder: Path, steps: list[Step], start: bool, as_json: bool) -> int:
    settings = load_silo_settings(folder / "client.toml")
    config = _at(folder, "client.toml")
    if in_use(settings.state):
        steps.append(Step("silo", KEPT, "runs already"))
        return _report(steps, [f"fedrep client status{config}    # what it does now"], as_json)
    from fedrep_cli.client_check import check_silo

    if not as_json:
        complain("fedrep join", "checking settings, server and trainer, which trains once; a large model takes its time")
    findings = asyncio.run(check_silo(settings))
    red = [found for found in findings if found["outcome"] == "failed"]
    for found in red:
        steps.append(Step(found["check"], "failed", f"{found['text'].removesuffix('.')}. {found['advice']}".strip()))
    if red:
        again = "fedrep join" if folder == Path() else f"fedrep join --folder {folder}"
        _report(
            steps, [f"{again}    # once the cause is mended; fedrep client check{config} shows all that was looked at"], as_json
        )
        return 1
    yellow = [f"{found['check']}: {found['text']}" for found in findings if found["outcome"] == "warning"]
    steps.append(Step("check", DONE, "; ".join(["all is well", *yellow])))
    if not start:
        return _report(steps, [f"fedrep client{config}    # takes part"], as_json)
    code = _report(steps, [f"fedrep client status{config}    # in another terminal; Ctrl-C here leaves politely"], as_json)
    sys.stdout.flush()  # what follows goes on for long
    run_daemon(settings)
    return code


def _held(folder: Path, invitation: Invitation | None) -> Credentials | None:
    finish_installation(folder)
    try:
        credentials = Credentials.load(folder)
    except SettingsError as error:
        if error.reason != "NOT_ENROLLED":
            raise
        return None
    who = credentials.identity
    if invitation is not None and (who.name, who.role, who.federation) != (
        invitation.name,
        invitation.role,
        invitation.federation,
    ):
        raise ConflictError(
            f"{folder} already holds the certificate of {who.uri}, and the invitation is for {invitation.role} {invitation.name} "
            f"of {invitation.federation}. Give it a folder of its own with --folder."
        )
    return credentials


def _required(invitation: Invitation | None, folder: Path) -> Invitation:
    if invitation is None:
        raise SettingsError(f"{folder.resolve()} has not joined yet: give the invitation you were sent, fedrep join TOKEN")
    return invitation


def _check_options(path: Path, trainer: str | None, part: tuple[int, int] | None, run: str | None) -> None:
    """The file belongs to the person. Options that say something else are refused rather than left out without a word."""
    settings = load_silo_settings(path)
    own, other = settings.trainer, []
    if trainer is not None and trainer != (has := own.user_code or own.dataset):
        name = "user_code" if own.user_code is not None else "dataset"
        other.append(f"--trainer {trainer} where it has {name} = {has!r} under [trainer]")
    if part is not None and (part[0] - 1, part[1]) != (own.shard_index, own.shard_count):
        has = f"shard_index = {own.shard_index} and shard_count = {own.shard_count}"
        other.append(f"--part {part[0]}/{part[1]} where it has {has} under [trainer], which count from 0")
    if run is not None and run != settings.run:
        other.append(f"--run {run} where it has run = {settings.run!r}")
    if other:
        raise SettingsError(
            f"{path} is there already and is left as it is, but these options say something else: {'; '.join(other)}. Change the "
            "file, or leave the options out; nothing was done"
        )


def _asked(trainer: str | None) -> str:
    if trainer is not None:
        return trainer
    if not sys.stdin or not sys.stdin.isatty():
        raise SettingsError(
            f"Give --trainer module:function, which makes your trainer from your data, or --trainer {BUILT_IN} to try it with "
            "built-in data; there is no terminal to ask on"
        )
    return str(
        ask(f"Your trainer (module:function, beside this folder's client.toml; {BUILT_IN} to try it out)", default=BUILT_IN)
    )


def _asked_part() -> tuple[int, int] | None:
    if not sys.stdin or not sys.stdin.isatty():
        return None
    while True:
        said = ask("Your part of the built-in data, as in 2/4; 1/1 is all of it, like every silo that says so", default="1/1")
        try:
            return _parsed(said)
        except SettingsError as error:
            complain("fedrep join", str(error))


def _parsed(part: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", part)
    if found is None or int(found[1]) > int(found[2]):
        raise SettingsError(f"{part!r} is no part: 2/4, for example, is the second of four")
    return int(found[1]), int(found[2])


def _data(written: str, trainer: str, part: tuple[int, int] | None) -> Step:
    """What it trains on, which is easily overlooked: silos that try a template's data without parts all train on the same."""
    where = "shard_index and shard_count under [trainer] in client.toml"
    if written == KEPT:
        return Step("data", KEPT, "as client.toml says")
    if part is not None:
        return Step("data", DONE, f"part {part[0]} of {part[1]} of what {trainer} has")
    what = "all of the built-in digits" if trainer == BUILT_IN else f"whatever {trainer} loads on this machine"
    told = "Silos that try out the same data" if trainer == BUILT_IN else "Silos that try out a template's data"
    return Step("data", DONE, f"{what}. {told} all train on the same, unless each has its part: --part 1/4, 2/4, ..., or {where}")


def _enrolled(folder: Path, held: Credentials | None, token: str | None) -> Step:
    state = KEPT if held is not None else DONE
    if held is None:
        held = asyncio.run(enrolment_client.enrol(token or "", folder))
    ends = held.certificate.not_valid_after_utc
    return Step("credentials/", state, f"{held.identity} of {held.identity.federation}, certificate valid until {ends:%Y-%m-%d}")


def _silo_settings(folder: Path, role: Role, run: str, trainer: str, part: tuple[int, int] | None) -> Step:
    server = learned_server(folder / "credentials")
    text = f"{'every run that lists this silo' if run == EVERY_RUN else f'run {run}'} at {server}; look through its [policy]"
    return settings_step(
        folder / "client.toml", lambda: silo_toml(server, run, role.value, Path("credentials"), trainer, part), text
    )


def _server_settings(folder: Path) -> Step:
    from fedrep_server.config import ServerSettings

    home = folder.resolve()
    port = int(learned_server(folder / "credentials").rpartition(":")[2])
    values = {"port": port, "data": str(home / "server"), "credentials": str(home / "credentials")}
    title = "Settings of the FedREP server. A line that starts with # shows a default."
    return settings_step(
        folder / "server.toml", lambda: commented_toml(ServerSettings, title, values), "settings of fedrep server"
    )


def _dashboard_settings(folder: Path) -> Step:
    from fedrep_dashboard.settings import DashboardSettings

    values = {"server": learned_server(folder / "credentials"), "credentials": str((folder / "credentials").resolve())}
    title = "Settings of the FedREP dashboard. A line that starts with # shows a default."
    text = "settings of fedrep dashboard"
    return settings_step(folder / "dashboard.toml", lambda: commented_toml(DashboardSettings, title, values), text, 0o600)


def _at(folder: Path, file: str) -> str:
    return "" if folder == Path() else f" --config {folder / file}"


def _report(steps: list[Step], following: list[str], as_json: bool) -> int:
    emit({"steps": plain(steps), "next": following}, as_json, _render)
    return 0


def _render(result: Mapping[str, Any]) -> str:
    return "\n".join([*lines(result["steps"]), "Next:", *next_lines(result["next"])])
