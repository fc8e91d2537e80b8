"""`fedrep simulate`: the trainer and the run of this folder, played by a whole federation in this process."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrep.errors import SettingsError
from fedrep_cli.attack_options import attack_options
from fedrep_cli.epsilon import text
from fedrep_cli.output import JSON_HELP, complain, emit, stay_up
from fedrep_cli.simulate_view import SimulationView
from fedrep_runtime.logging import configure_logging

if TYPE_CHECKING:
    from fedrep_simulator.api import Listeners
    from fedrep_simulator.terms import Terms

app = typer.Typer(add_completion=False)

OUT = Path("simulation")


@app.command()
def simulate(
    trainer: Annotated[
        str | None, typer.Option("--trainer", help="module:function that makes a silo's trainer; client.toml's when absent.")
    ] = None,
    silos: Annotated[int | None, typer.Option(help="Silos; as many as run.toml lists, or 10.", min=2)] = None,
    byzantine: Annotated[int, typer.Option(help="How many of them attack: the last ones.", min=0)] = 0,
    attack: Annotated[str, typer.Option(help="What the attackers send: alie, foe, signflip, minmax, ...")] = "",
    attack_option: Annotated[
        list[str] | None, typer.Option("--attack-option", help="Setting of the attack, such as epsilon=10; may be repeated.")
    ] = None,
    aggregator: Annotated[str | None, typer.Option(help="The rule over the buffers; run.toml's when absent.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds; run.toml's when absent.", min=1)] = None,
    alpha: Annotated[float | None, typer.Option(help="Share of random coordinates in a proposal.", min=0, max=1)] = None,
    fraction: Annotated[float | None, typer.Option(help="K/d, share of the coordinates sent per round.", min=0, max=1)] = None,
    buffer_size: Annotated[int | None, typer.Option(help="Silos per buffer.", min=2)] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Play it again with the plain mean, and show both.")] = False,
    central: Annotated[
        bool, typer.Option("--central/--no-central", help="Train the same model on all data in one place too, to compare with.")
    ] = True,
    fast: Annotated[bool, typer.Option("--fast", help="Without cryptography; the model is the same to the bit.")] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Train with a record budget of epsilon 8 at delta 1e-5, unless [privacy] says more.")
    ] = False,
    engine: Annotated[str, typer.Option(help="Where silos train: local or ray.")] = "local",
    gpus_per_silo: Annotated[float, typer.Option(help="With --engine ray: the share of a GPU a silo needs.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="All that is drawn follows from it.", min=0)] = 0,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show the rounds in the browser as well, until Ctrl-C.")] = False,
    exit_at_once: Annotated[bool, typer.Option("--exit", help="With --dashboard: end with the simulation.")] = False,
    client: Annotated[Path | None, typer.Option("--client", help="Settings of the silos; client.toml if it is here.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Terms of the run; run.toml if it is here.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for state and results; the same command goes on there.")] = OUT,
    again: Annotated[bool, typer.Option("--again", help="Begin anew, whatever the folder holds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Your trainer with many silos, some of them attackers, before there is any server or certificate."""
    configure_logging("simulate", level="CRITICAL")
    from fedrep_simulator.api import Listeners, build_trainer_of, run_simulation
    from fedrep_simulator.terms import Wishes, read_files

    wishes = Wishes(
        silos=silos,
        rounds=rounds,
        aggregator=aggregator,
        byzantine=byzantine,
        attack=attack,
        attack_options=attack_options(attack_option or []),
        alpha=alpha,
        fraction=fraction,
        buffer_size=buffer_size,
        seed=seed,
        fast=fast,
        private=private,
    )
    terms = read_files(wishes, trainer, client, run)
    with ExitStack() as stack:
        view = stack.enter_context(SimulationView(terms, quiet=as_json or not sys.stderr.isatty()))
        listeners = Listeners(view.step, view.show, view.central, on_run=view.begin)
        url = ""
        if dashboard:
            listeners, url = _watched(terms, view, stack)
        try:
            result = run_simulation(
                terms,
                build_trainer_of(terms.trainer),
                engine=engine,  # type: ignore[arg-type]  # checked there
                gpus_per_silo=gpus_per_silo,
                compare=compare,
                central=central,
                out=out,
                again=again,
                listeners=listeners,
            )
        except KeyboardInterrupt:
            view.stop()
            complain(
                "fedrep simulate", f"interrupted; the rounds that are over lie in {out}, and the same command goes on from there"
            )
            raise
        view.stop()
        comparison = result.comparison.summary if result.comparison is not None else None
        emit({**result.summary, "comparison": comparison}, as_json, summary_text)
        sys.stdout.flush()  # a reader at the end of a pipe waits for it too
        if dashboard and not exit_at_once:
            stay_up(url)


def _watched(terms: Terms, view: SimulationView, stack: ExitStack) -> tuple[Listeners, str]:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # this process forks only to start the dashboard
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from fedrep_cli.observed_simulation import ObservedSimulation

        importlib.import_module("fedrep_dashboard.app")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"--dashboard needs what a server and its dashboard need, and {error.name!r} is missing: "
            "pip install 'fedrep[server,dashboard]'"
        ) from error
    from fedrep_cli.processes import orderly_end
    from fedrep_simulator.api import Listeners

    stack.enter_context(orderly_end())
    view.step("starting the dashboard")
    observed = stack.enter_context(ObservedSimulation(terms))
    view.say(f"Dashboard: {observed.url}")

    def on_round(row: dict[str, Any], rounds: int) -> None:
        view.show(row, rounds)
        observed.show(row, rounds)

    return Listeners(view.step, on_round, view.central, observed.watch, view.begin), observed.url


def summary_text(result: Any) -> str:
    width = shutil.get_terminal_size().columns
    rounds = f"{result['rounds_applied']} applied and {result['rounds_skipped']} skipped rounds ({result['ended']})"
    lines = [
        f"Accuracy {_figure(result['accuracy'])} (all data in one place: {_figure(result['central_accuracy'])}) after {rounds}; "
        f"loss {_figure(result['loss'])}.",
        f"Traffic of one silo: {result['bytes_up_per_silo'] / 1e6:.2f} MB up, {result['bytes_down_per_silo'] / 1e6:.2f} MB down"
        + (", as `fedrep plan` reckons it: no message was sent." if result["bytes_are"] == "reckoned" else "."),
        f"Epsilon of the proposals: {text(result['epsilon_total'])} in all. It covers {result['epsilon_covers']}.",
    ]
    if "record_epsilon" in result:
        budget = f"at delta {result['record_delta']:g}, of {result['record_budget']:g}"
        lines.append(f"Epsilon of a record: {text(result['record_epsilon'])} {budget}. It covers {result['record_covers']}.")
    if result["comparison"] is not None:
        other = result["comparison"]
        end = f" ({other['problem']})" if other["problem"] else ""
        lines.insert(1, f"The same silos and attackers against the plain mean: accuracy {_figure(other['accuracy'])}{end}.")
    if not result["cryptography"]:
        lines.append("Played without cryptography (--fast): the sums are the same to the bit, and nothing was masked or signed.")
    lines += [f"Note: {note}." for note in result["notes"]]
    lines.append(f"History, model and the run's file are in {result['folder']}.")
    told = "\n".join(textwrap.fill(line, width) for line in lines)
    return f"{told}\n\nThe same run for real:\n{_deployment(result['deploy'])}"


def _deployment(parts: Any) -> str:
    return "\n".join(f"# {part['where']}\n" + "\n".join(part["commands"]) for part in parts)


def _figure(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}"
