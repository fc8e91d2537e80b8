"""`fedrep init`: the consortium's side of a federation, in one command that may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep.errors import InvalidInputError
from fedrep_cli.ca import AsJson, PassphraseFile, read_passphrase
from fedrep_cli.founding import AUTHORITY, LOOPBACK, Founding, Plan, Ports
from fedrep_cli.output import emit
from fedrep_cli.ports import require_free
from fedrep_cli.steps import lines, next_lines, plain
from fedrep_identity.host_names import check_host_name, is_address
from fedrep_identity.invitations import DEFAULT_HOURS
from fedrep_runtime.files import taking_turns

app = typer.Typer(add_completion=False)

Silos = Annotated[list[str], typer.Option("--silo", help="Name of a silo to invite, such as hospital-a; repeatable.")]


def _port(what: str) -> Any:
    return typer.Option(help=what, min=1, max=65535)


@app.command()
def init(
    federation: Annotated[str | None, typer.Argument(help="The federation's name, such as lungs-2026; needed once.")] = None,
    silo: Silos = [],  # noqa: B006 - typer copies it
    evaluator: Annotated[str | None, typer.Option(help="Name of an evaluator to invite.")] = None,
    folder: Annotated[Path, typer.Option(help="Where everything is written.", file_okay=False)] = Path(),
    host: Annotated[str, typer.Option(help="Host name or address under which silos reach this machine.")] = "localhost",
    server_host: Annotated[
        str | None,
        typer.Option(help="The server runs on another machine, of this name: it gets an invitation instead of a key made here."),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="That other machine is a Kubernetes cluster: the server's key is made here, for a Secret."
        ),
    ] = False,
    port: Annotated[int, _port("The server's port.")] = Ports.server,
    enrolment_port: Annotated[int, _port("Where silos enrol.")] = Ports.enrolment,
    certificate_port: Annotated[int, _port("Where they renew.")] = Ports.certificates,
    health_port: Annotated[int, _port("The server's health, for probes.")] = Ports.health,
    metrics_port: Annotated[int, _port("The server's metrics.")] = Ports.metrics,
    dashboard_port: Annotated[int, _port("The dashboard.")] = Ports.dashboard,
    hours: Annotated[float, typer.Option(help="How long invitations are open.", min=0.01, max=720)] = DEFAULT_HOURS,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Set up a federation: authority, identities of admin, server and dashboard, settings, invitations, a first run file.

    Repeat it after an interruption, or to invite more silos: what is there is kept as it is. `fedrep up` starts it.
    """
    for given in (host, server_host):
        if given is not None and given.count(":") == 1:
            raise InvalidInputError(f"{given}: give the host alone; the ports have options of their own.")
        if given is not None and not is_address(given):
            check_host_name(given)
    if cluster and server_host in (None, host):
        raise InvalidInputError(
            "--cluster: the authority stays on this machine and the server goes to a cluster, under another name. Give the one "
            "that silos dial with --server-host, and this machine's with --host."
        )
    ports = Ports(port, enrolment_port, certificate_port, health_port, metrics_port, dashboard_port)
    plan = Plan(folder, federation, tuple(dict.fromkeys(silo)), evaluator, host, server_host, ports, hours, cluster)
    founding = Founding(plan, lambda new: read_passphrase(passphrase_file, confirm=new))
    if not (folder / AUTHORITY).exists():
        _check_ports(plan)
    folder.mkdir(parents=True, exist_ok=True)
    with taking_turns(folder / ".init.lock"):
        steps = list(founding.steps())
    result = {
        "federation": founding.federation,
        "folder": str(folder.resolve()),
        "root_fingerprint": founding.root_fingerprint,
        "steps": plain(steps),
        "next": _next(plan, founding),
    }
    emit(result, as_json, _render)


def _check_ports(plan: Plan) -> None:
    """Before anything is written: silos will be told these."""
    host, ports = "127.0.0.1" if plan.host in LOOPBACK else "0.0.0.0", plan.ports
    require_free(host, ports.enrolment, "Choose another with --enrolment-port")
    require_free(host, ports.certificates, "Choose another with --certificate-port")
    require_free("127.0.0.1", ports.dashboard, "Choose another with --dashboard-port")
    if plan.server_host in (None, plan.host):
        require_free(host, ports.server, "Choose another with --port")
        require_free("127.0.0.1", ports.health, "Choose another with --health-port")
        require_free("127.0.0.1", ports.metrics, "Choose another with --metrics-port")


def _next(plan: Plan, founding: Founding) -> list[str]:
    there = "" if plan.folder == Path() else f" --folder {plan.folder}"
    waiting = [
        name for name in (*plan.silos, *([plan.evaluator] if plan.evaluator else [])) if founding.token_file(name).exists()
    ]
    shown = founding.token_file(waiting[0]) if waiting else None
    start = f"fedrep up{there}    # here: authority, server and dashboard, until Ctrl-C; asks for the passphrase"
    if plan.cluster:
        start = f"fedrep ca serve --folder {plan.folder / AUTHORITY}    # here, once the chart is installed with these identities"
    return [
        start,
        *([f"fedrep join TOKEN    # at each silo; its TOKEN is in {shown} and so on"] if shown else []),
        "fedrep run model    # here: the parameters to start from; --trainer as at the silos",
        "fedrep run create    # here: the run in run.toml",
    ]


def _render(result: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            f"Federation {result['federation']} in {result['folder']}",
            *lines(result["steps"]),
            "",
            f"Root fingerprint (SHA-256):\n  {result['root_fingerprint']}",
            "Keep ca/ and the passphrase apart, and a backup of both offline. Send each",
            "invitation by a way that others cannot read.",
            "Next:",
            *next_lines(result["next"]),
        ]
    )
