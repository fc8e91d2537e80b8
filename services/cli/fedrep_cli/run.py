"""`fedrep run`: what an admin does with runs. The manifest is made and signed on the admin's own machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from google.protobuf.json_format import MessageToDict
from rich.table import Column, Table

from fedrep.errors import RefusedError, SettingsError
from fedrep.privacy import COVERS, shown
from fedrep.protocol.advice import advise
from fedrep.protocol.model_state import model_hash
from fedrep.record_privacy import COVERS as RECORD_COVERS
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_cli import model_files, plan
from fedrep_cli.model_files import Form
from fedrep_cli.output import JSON_HELP, complain, emit, insist
from fedrep_cli.run_costs import Costs, costs_text
from fedrep_cli.run_view import lines as reckoned_lines
from fedrep_cli.run_view import reckoned
from fedrep_cli.settings_file import BUILT_IN, commented_toml, existing, write_new
from fedrep_identity.certificates import Credentials
from fedrep_identity.folder import learned_server
from fedrep_runtime.model_files import read_model
from fedrep_runtime.observer_client import ObserverClient
from fedrep_runtime.proxy import take_capitals
from fedrep_runtime.run_config import RunConfig, sign_run
from fedrep_runtime.run_orders import ORDER_TRIES, OVERTAKEN, Signer, amend_request, rollback_request
from fedrep_runtime.settings import load_settings
from fedrep_runtime.waiting_text import away_text, waiting_text

app = typer.Typer(add_completion=False, no_args_is_help=True)

Server = Annotated[
    str | None,
    typer.Option("--server", envvar="FEDREP_SERVER", help="host:port, if not the one learned at enrolment."),
]
Identity = Annotated[Path, typer.Option("--identity", envvar="FEDREP_IDENTITY", help="Folder with your certificate.")]
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Name = Annotated[str, typer.Argument(help="Name of the run.")]
Reason = Annotated[str, typer.Option("--reason", help="Shown to everyone.")]

AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
AWAY_SECONDS = 1.0
FOLDER, RUN_FILE, MODEL_FILE = Path("credentials"), Path("run.toml"), Path("init.safetensors")


@contextmanager
def connected(server: str | None, identity: Path) -> Iterator[tuple[ObserverClient, Credentials]]:
    take_capitals()
    credentials = Credentials.load(identity)
    client = ObserverClient(server or learned_server(identity), credentials.root, credentials.key_pair)
    try:
        yield client, credentials
    except grpc.RpcError:
        credentials.check()  # TLS refuses a certificate that has expired without a word to its holder
        raise
    finally:
        client.close()


@app.command()
def init(path: Annotated[Path, typer.Argument(help="File to write.")] = RUN_FILE, as_json: Json = False) -> None:
    """Write a run file with every setting, its default and what it means."""
    values = {"name": "first-run", "silos": ["hospital-a", "hospital-b", "hospital-c", "hospital-d"]}
    text = commented_toml(RunConfig, "A FedREP run. Every commented line shows the default.", values)
    then = f"fedrep run model, then fedrep run create --config {path}"
    write_new(path, text, then, as_json)


@app.command("model")
def initial_model(
    target: Annotated[Path, typer.Argument(help="File to write, safetensors.")] = MODEL_FILE,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings of a silo, whose [trainer] makes the model; client.toml if there is one."),
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--trainer",
            help=f"module:function in this folder that makes the trainer, instead of settings; {BUILT_IN} as in join.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the parameters a run starts from, as the silos' trainer makes them; the same settings give the same ones."""
    from fedrep_cli.client import make_trainer
    from fedrep_silo.config import load_silo_settings
    from fedrep_trainers.layout import write_model

    settings = load_silo_settings(config or (None if trainer else existing("client.toml")))
    if trainer is not None:
        made_by = {"user_code": None, "dataset": BUILT_IN} if trainer == BUILT_IN else {"user_code": trainer}
        own = settings.trainer.model_copy(update=made_by | {"user_code_dir": Path.cwd()})
        settings = settings.model_copy(update={"trainer": own})
    made = make_trainer(settings)
    vector = made.initial()
    write_model(target, made.layout, vector)
    emit(
        {"file": str(target), "parameters": vector.size, "trainer": settings.trainer.source},
        as_json,
        lambda r: (
            f"Wrote {r['file']}, {r['parameters']} parameters, as made by {r['trainer']}. Silos with another trainer refuse it."
        ),
    )


@app.command()
def create(
    config: Annotated[Path, typer.Option("--config", help="The run, TOML (see fedrep run init).")] = RUN_FILE,
    model: Annotated[Path, typer.Option("--model", help="Initial parameters (see fedrep run model).")] = MODEL_FILE,
    server: Server = None,
    identity: Identity = FOLDER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check here and on the server; create nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Check, sign and create a run; prints the preflight and the plan."""
    for path, command in ((config, "fedrep run init"), (model, "fedrep run model --trainer (as at the silos)")):
        if not path.exists():
            raise SettingsError(f"There is no {path}. Write it with {command}, or give another path.")
    settings = load_settings(RunConfig, config, "FEDREP_RUN")
    layout, vector = read_model(model)
    manifest = settings.manifest(vector.size, bytes.fromhex(layout.digest), model_hash(vector))
    planned = plan.assess(manifest)
    if planned["problems"]:
        raise SettingsError(f"the run cannot work: {advise(manifest).sentence}", reason="PREFLIGHT")
    with connected(server, identity) as (client, credentials):
        signed = sign_run(manifest, credentials.identity.name, credentials.chain, credentials.signing_key)
        response = client.create_run(signed, settings.options(layout.described), None if dry_run else vector)
    if response.problems:
        raise SettingsError("the server refuses the run: " + "; ".join(response.problems), reason="PREFLIGHT")
    result = {"run": manifest.name, "hash": response.run.hex(), "created": not dry_run, "plan": planned}
    emit(result, as_json, _created_text)


def _created_text(result: Any) -> str:
    what = "created" if result["created"] else "can be created"
    return f"Run {result['run']!r} {what} ({result['hash'][:16]}).\n{plan.render(result['plan'])}"


@app.command("list")
def list_runs(server: Server = None, identity: Identity = FOLDER, as_json: Json = False) -> None:
    """All runs of a server."""
    with connected(server, identity) as (client, _):
        runs = client.call("ListRuns", pb.ListRunsRequest()).runs
    emit({"runs": [_plain(run) for run in runs]}, as_json, _runs_table)


@app.command()
def show(name: Name, server: Server = None, identity: Identity = FOLDER, as_json: Json = False) -> None:
    """One run: state, silos, kept models, and which silos stand out."""
    with connected(server, identity) as (client, _):
        run = client.call("GetRun", pb.GetRunRequest(name=name))
        rounds = client.rounds(name)
    told = {"waiting_for": waiting_text(run.summary.waiting, time.time())}
    emit(_plain(run) | reckoned(run, rounds) | told, as_json, _run_table)


@app.command()
def watch(
    name: Name,
    server: Server = None,
    identity: Identity = FOLDER,
    after: Annotated[int, typer.Option("--after", help="Start behind this event.")] = 0,
    as_json: Json = False,
) -> None:
    """Events of a run as they happen, until Ctrl-C; with --json one object per line. A server that restarts is waited for.

    Times are UTC. A round that was just applied tells what the run has cost so far: the epsilon of the proposals, and that of one
    training record as the silos state it.
    """
    position, away = after, False
    with connected(server, identity) as (client, _):
        if not as_json:
            _say_now(client, name)
        costs = Costs(client, name)
        while True:
            try:
                for response in client.watch(name, position):
                    position, away = response.event.position, False
                    emit(_plain(response.event) | costs.of(response.event), as_json, _event_text)
                    sys.stdout.flush()  # a program that reads along should not wait for a full buffer
            except grpc.RpcError as error:
                if position == after or error.code() not in AWAY:
                    raise
                if not away:
                    complain("fedrep run", f"the server is away; events after {position} follow when it is back")
                away = True
            time.sleep(AWAY_SECONDS)


def _say_now(client: ObserverClient, name: str) -> None:
    """Events tell what happened; a run that stands still has none to tell."""
    text = waiting_text(client.call("GetRun", pb.GetRunRequest(name=name)).summary.waiting, time.time())
    if text:
        complain("fedrep run", f"{name} is {text}")


def _event_text(event: Any) -> str:
    at = time.strftime("%H:%M:%S", time.gmtime(event["at"]))
    return f"{event['position']:>6}  {at}  round {event['round']:>5}  {event['severity']:<7}  {event['text']}{costs_text(event)}"


@app.command()
def stop(name: Name, server: Server = None, identity: Identity = FOLDER, reason: Reason = "", as_json: Json = False) -> None:
    """End a run for good."""
    _steer("StopRun", pb.StopRunRequest(name=name, reason=reason), server, identity, as_json)


@app.command()
def pause(name: Name, server: Server = None, identity: Identity = FOLDER, reason: Reason = "", as_json: Json = False) -> None:
    """Let the open round end and start no other."""
    _steer("PauseRun", pb.PauseRunRequest(name=name, reason=reason), server, identity, as_json)


@app.command()
def resume(name: Name, server: Server = None, identity: Identity = FOLDER, as_json: Json = False) -> None:
    """Go on with a paused run."""
    _steer("ResumeRun", pb.ResumeRunRequest(name=name), server, identity, as_json)


Silo = Annotated[str, typer.Argument(help="Name of the silo.")]


@app.command()
def exclude(
    name: Name, silo: Silo, server: Server = None, identity: Identity = FOLDER, reason: Reason = "", as_json: Json = False
) -> None:
    """Keep a silo out of the next rounds."""
    _steer("ExcludeSilo", pb.ExcludeSiloRequest(name=name, silo=silo, reason=reason), server, identity, as_json)


@app.command()
def readmit(name: Name, silo: Silo, server: Server = None, identity: Identity = FOLDER, as_json: Json = False) -> None:
    """Let an excluded or sitting-out silo back in."""
    _steer("ReadmitSilo", pb.ReadmitSiloRequest(name=name, silo=silo), server, identity, as_json)


@app.command()
def tag(
    name: Name,
    tags: Annotated[list[str] | None, typer.Argument(help="All tags from now on; none takes them away.")] = None,
    server: Server = None,
    identity: Identity = FOLDER,
    as_json: Json = False,
) -> None:
    """Set the tags by which people find a run; silos do not see them, and its terms stay as they are."""
    with connected(server, identity) as (client, _):
        summary = _plain(client.call("TagRun", pb.TagRunRequest(name=name, tags=tags or [])).summary)
    emit(summary, as_json, lambda run: f"{run['name']}: {', '.join(run['tags']) or 'no tags'}")


@app.command()
def delete(
    name: Name,
    server: Server = None,
    identity: Identity = FOLDER,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a run that is over: rounds, models, metrics, events. What silos have spent stays."""
    if not yes:
        insist(f"Delete {name}, with all its models? That cannot be undone")
    with connected(server, identity) as (client, _):
        kept = client.call("DeleteRun", pb.DeleteRunRequest(name=name)).silos_kept
    emit(
        {"deleted": name, "silos_kept": kept},
        as_json,
        lambda r: f"{r['deleted']} is deleted. Still on the books: what {r['silos_kept']} silos have spent in it.",
    )


@app.command()
def rollback(
    name: Name,
    version: Annotated[int, typer.Option("--to", "--version", help="A kept version (see fedrep run show).")],
    server: Server = None,
    identity: Identity = FOLDER,
    as_json: Json = False,
) -> None:
    """Go on from an older model; signed on your machine, since silos take it from nobody else."""
    _order("RollBackRun", lambda run, signer: rollback_request(run, version, *signer), name, server, identity, as_json)


@app.command()
def amend(
    name: Name,
    add: Annotated[list[str] | None, typer.Option("--add", help="A silo to list; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A silo to take off the list; may be repeated.")] = None,
    quorum: Annotated[
        int | None, typer.Option("--quorum", help="Silos that a round needs; absent: the least that works.")
    ] = None,
    server: Server = None,
    identity: Identity = FOLDER,
    as_json: Json = False,
) -> None:
    """Change the list of silos for good, from the next epoch on; signed on your machine."""
    _order(
        "AmendRun",
        lambda run, signer: amend_request(run, add or (), remove or (), quorum, signer),
        name,
        server,
        identity,
        as_json,
    )


def _order(
    method: str, request: Callable[[Any, Signer], Any], name: str, server: str | None, identity: Path, as_json: bool
) -> None:
    """What an admin signs about the run as it stands; signed again when a round has overtaken it on its way."""
    with connected(server, identity) as (client, credentials):
        signer = (credentials.identity.name, credentials.chain, credentials.signing_key)
        for tries_left in reversed(range(ORDER_TRIES)):
            run = client.call("GetRun", pb.GetRunRequest(name=name))
            try:
                response = client.call(method, request(run, signer))
                break
            except RefusedError as error:
                if error.reason not in OVERTAKEN or not tries_left:
                    raise
    _emit_state(_plain(response), as_json)


@app.command()
def export(
    name: Name,
    target: Annotated[Path, typer.Argument(help="File to write, safetensors.")],
    version: Annotated[int | None, typer.Option("--version", help="A kept version; the latest when absent.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The version the evaluator found best.")] = False,
    trainer: Annotated[
        Path | None,
        typer.Option("--trainer", help="Settings of a silo, whose [trainer] adds batch-norm statistics from its data."),
    ] = None,
    form: Annotated[
        Form,
        typer.Option("--format", metavar="FORM", help="safetensors, torch, onnx or adapter; all but the first need --trainer."),
    ] = Form.SAFETENSORS,
    server: Server = None,
    identity: Identity = FOLDER,
    as_json: Json = False,
) -> None:
    """Write a model to a file: its parameters, which are all the server has, or with --trainer the whole model."""
    if trainer is None and form is not Form.SAFETENSORS:
        raise SettingsError(f"--format {form.value} needs --trainer: the server has parameters only, and no model to put them in")
    with connected(server, identity) as (client, _):
        got, data = client.download(name, version=version, best=best)
    if trainer is not None:
        from fedrep_cli.client import make_trainer
        from fedrep_silo.config import load_silo_settings

        made = make_trainer(load_silo_settings(trainer))
        vector, metadata = model_files.downloaded_model(data, made, trainer)
        model_files.write_form(made, vector, target, form, metadata)
    else:
        target.write_bytes(data)
    result = {"run": name, "version": got, "file": str(target), "format": form.value, "statistics": trainer is not None}
    emit(result, as_json, _exported_text)


def _exported_text(result: Any) -> str:
    more = "" if result["statistics"] else " It holds the parameters; a model with batch norm needs --trainer for its statistics."
    return f"Wrote {result['file']}, version {result['version']}.{more} Use it: {model_files.shown(result)}"


def _steer(method: str, request: Any, server: str | None, identity: Path, as_json: bool) -> None:
    with connected(server, identity) as (client, _):
        response = _plain(client.call(method, request))
    _emit_state(response, as_json)


def _emit_state(response: dict[str, Any], as_json: bool) -> None:
    body = next(iter(response.values()))
    emit(body, as_json, lambda r: f"{r['name']}: {r['state']}" + (f" ({r['state_reason']})" if r.get("state_reason") else ""))


def _plain(message: Any) -> dict[str, Any]:
    """64-bit integers as numbers and bytes as hex, which is what people and programs expect here."""
    plain = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    converted: dict[str, Any] = _converted(plain, message.DESCRIPTOR)
    return converted


def _converted(plain: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    import base64

    for field in descriptor.fields:
        if field.name not in plain:
            continue
        value = plain[field.name]
        values = value if isinstance(value, list) else [value]
        if field.message_type is not None:
            values = [_converted(item, field.message_type) for item in values]
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            values = [int(item) for item in values]
        elif field.type == field.TYPE_BYTES:
            values = [base64.b64decode(item).hex() for item in values]
        plain[field.name] = values if isinstance(value, list) else values[0]
    return plain


def _runs_table(result: Any) -> Any:
    if not result["runs"]:
        return "No runs yet. Create one: fedrep run init, then fedrep run create."
    table = _table("run", "state", "round", "skipped", "accuracy", "silos", "MB up/down", "epsilon")
    for run in result["runs"]:
        accuracy = f"{run['accuracy']:.4f}" if "accuracy" in run else "-"
        table.add_row(
            run["name"],
            run["state"],
            f"{run['round']}/{run['rounds_planned']}",
            str(run["rounds_skipped"]),
            accuracy,
            f"{run['silos_present']}/{run['silos_allowed']}",
            f"{_short(run['bytes_up'] / 1e6)}/{_short(run['bytes_down'] / 1e6)}",
            shown(run.get("epsilon_total")),
        )
    return table


def _run_table(run: Any) -> Any:
    from rich.console import Group
    from rich.text import Text

    silos = _table("silo", "state", "KB up/down", "epsilon", "record epsilon")
    for silo in run["silos"]:
        silos.add_row(
            silo["name"],
            silo["state"],
            f"{_short(silo['bytes_up'] / 1e3)}/{_short(silo['bytes_down'] / 1e3)}",
            shown(silo.get("epsilon_total")),
            _record_epsilon(silo),
        )
    at = time.time()
    told = {
        silo["name"]: away_text(silo.get("reason", ""), silo.get("away_since", 0.0), at) or silo["problem"]
        for silo in run["silos"]
    }
    problems = [Text(f"{name}: {why}") for name, why in told.items() if why]
    kept = ", ".join(f"{m['version']}{' (best)' if m['best'] else ''}" for m in run["models"])
    figures = ", ".join(f"{name} {value:.4f}" for name, value in run["summary"].get("metrics", {}).items())
    now = [Text(f"Now: {run['waiting_for']}.")] if run.get("waiting_for") else []
    lines = [*([f"Latest figures of the evaluator: {figures}"] if figures else []), f"Kept models: {kept}"]
    covers = Text(
        f"epsilon, in all runs over a silo's data, covers {COVERS}.\nrecord epsilon, as each silo says, covers {RECORD_COVERS}."
    )
    return Group(
        _runs_table({"runs": [run["summary"]]}), "", silos, *problems, "", *now, covers, *lines, *map(Text, reckoned_lines(run))
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _table(first: str, *others: str) -> Table:
    """Fits 80 columns: only the first, a name, is folded where it must be."""
    columns = [Column(first, overflow="fold", min_width=8), *(Column(name, no_wrap=True) for name in others)]
    return Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)


def _record_epsilon(silo: Any) -> str:
    if silo.get("record_none"):
        return shown(None)
    if "record_epsilon" not in silo:
        return "not reported"
    budget = f" of {silo['record_budget']:g}" if "record_budget" in silo else ""
    return f"{shown(silo['record_epsilon'])}{budget}, delta {silo.get('record_delta', 0.0):g}"
