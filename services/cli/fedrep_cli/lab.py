"""`fedrep lab`: the paper's experiments, run and reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep_cli.output import JSON_HELP, emit

app = typer.Typer(add_completion=False, no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Out = Annotated[Path, typer.Option("--out", help="Folder of the results.")]


class Preset(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    cifar = "cifar"
    paper = "paper"


class Engine(StrEnum):
    local = "local"
    ray = "ray"


@app.command("list")
def list_experiments(
    preset: Annotated[Preset, typer.Option("--preset", help="Count the cells of this preset.")] = Preset.laptop,
    as_json: Json = False,
) -> None:
    """The experiments, what they test, and their number of cells."""
    from fedrep_lab.catalogue import load_experiments, load_presets

    rows = [
        {"name": e.name, "title": e.title, "where": e.where, "claim": e.claim, "cells": len(e.cells(preset.value))}
        for e in load_experiments(["all"])
    ]
    presets = {name: table["about"] for name, table in load_presets().items()}
    emit({"preset": preset.value, "presets": presets, "experiments": rows}, as_json, _listing)


@app.command()
def run(
    experiments: Annotated[list[str], typer.Argument(help="Experiments by name, or `all`.")],
    preset: Annotated[Preset, typer.Option("--preset", help="How large: smoke, laptop, cifar or paper.")] = Preset.smoke,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of Fashion-MNIST or CIFAR-10; smoke needs none.")
    ] = None,
    engine: Annotated[Engine, typer.Option("--engine", help="Processes of this machine, or a Ray cluster.")] = Engine.local,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Cells side by side.")] = 1,
    device: Annotated[str, typer.Option("--device", help="Where training runs: cpu, cuda, cuda:1.")] = "cpu",
    out: Out = Path("lab-results"),
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of every cell: NAME=VALUE, VALUE as in JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the cells that have no result yet; Ctrl-C keeps what is finished, and the same command goes on."""
    from rich.console import Console

    from fedrep_lab.catalogue import load_experiments
    from fedrep_lab.running import Plan, run_experiments

    plan = Plan(preset.value, out, data_dir, engine.value, jobs, device, _changes(change or []))
    emit(run_experiments(load_experiments(experiments), plan, Console(stderr=True)), as_json, _summary)


@app.command("plan")
def plan_command(
    experiments: Annotated[list[str], typer.Argument(help="Experiments by name, or `all`.")],
    preset: Annotated[Preset, typer.Option("--preset", help="How large: smoke, laptop, cifar or paper.")] = Preset.laptop,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data; for --measure.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Cells side by side.")] = 2,
    out: Out = Path("lab-results"),
    measure: Annotated[
        bool, typer.Option("--measure", help="Play a few rounds of every kind of cell that has not been run yet.")
    ] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of every cell: NAME=VALUE, VALUE as in JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What is left to run and how long it takes, from the processor time of finished cells."""
    from fedrep_lab.catalogue import load_experiments
    from fedrep_lab.planning import planned
    from fedrep_lab.running import Plan

    plan = Plan(preset.value, out, data_dir, processes=jobs, changes=_changes(change or []))
    emit(planned(load_experiments(experiments), plan, measure=measure), as_json, _plan)


@app.command()
def restore(
    tables: Annotated[Path, typer.Argument(help="Folder of tables, as `fedrep lab report --markdown` writes them.")],
    preset: Annotated[Preset, typer.Option("--preset", help="Of which preset they are.")] = Preset.laptop,
    out: Out = Path("lab-results"),
    as_json: Json = False,
) -> None:
    """Take up cells that were published as tables: `fedrep lab run` then runs the others alone."""
    from fedrep_lab.archive import restore as restore_cells

    emit({"folder": str(out), "restored": restore_cells(tables, out, preset.value)}, as_json, _restored)


@app.command()
def report(
    out: Out = Path("lab-results"),
    preset: Annotated[Preset | None, typer.Option("--preset", help="Which results; the largest preset there is.")] = None,
    page: Annotated[Path | None, typer.Option("--page", help="The HTML file; OUT/report.html.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Also write a folder with a Markdown page and its figures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One HTML page: every figure beside the paper's claim, a verdict, and the numbers behind it."""
    from fedrep_lab.report import write_report

    emit(write_report(out, preset.value if preset else None, page or out / "report.html", markdown), as_json, _verdicts)


def _changes(given: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes NAME=VALUE, not {item!r}")
        try:
            changes[name] = json.loads(text)
        except ValueError:
            changes[name] = text
    return changes


def _listing(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        "experiment", "cells", "what", "where", title=f"preset {result['preset']}: {result['presets'][result['preset']]}"
    )
    for row in result["experiments"]:
        table.add_row(row["name"], str(row["cells"]), row["title"], row["where"])
    return table


def _plan(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table("experiment", "cells", "left", "s per cell", "core hours", "spent", title=f"preset {result['preset']}")
    for row in result["experiments"]:
        left = f"{row['left']} ({row['unknown']} unknown)" if row["unknown"] else str(row["left"])
        times = (f"{row[name]:g}" for name in ("seconds_per_cell", "core_hours", "spent_core_hours"))
        table.add_row(row["experiment"], str(row["cells"]), left, *times)
    hours = f"{result['core_hours']:g} core hours, {result['hours']:g} hours with {result['jobs']} jobs"
    table.caption = f"{result['left']} cells left: {hours}; the others took {result['spent_core_hours']:g} core hours"
    if result["unknown"]:
        table.caption += f"; {result['unknown']} of kinds that nobody has run yet are not counted: --measure tries them"
    return table


def _restored(result: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in result["restored"].items())
    return f"Restored into {result['folder']}: {counts}."


def _summary(result: Mapping[str, Any]) -> str:
    return (
        f"{result['ran']} cells run, {result['present']} were there already; results in {result['folder']}. "
        f"`fedrep lab report --out {result['folder']}` draws them."
    )


def _verdicts(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table("experiment", "verdict", "because", title=f"preset {result['preset']}, {result['cells']} cells")
    for row in result["verdicts"]:
        table.add_row(row["experiment"], row["status"], row["sentence"])
    table.caption = f"written to {result['page']}"
    return table
