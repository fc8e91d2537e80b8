"""`fedrep demo`: a whole federation as real processes on this machine, and a live table of what it does."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrep_cli.attack_options import attack_options
from fedrep_cli.main import main
from fedrep_cli.nursery import Nursery, can_fork
from fedrep_cli.output import JSON_HELP, emit, stay_up

app = typer.Typer(add_completion=False)

# Less than this between two accuracies is as likely chance.
SEEN = 0.02
SERVICES_NEED = (
    "fedrep_cli.ca",
    "fedrep_cli.server",
    "fedrep_server.operations.app",
    "fedrep_cli.dashboard",
    "fedrep_dashboard.app",
)


@app.command()
def demo(
    silos: Annotated[int, typer.Option(help="Silos, attackers included.", min=3)] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds to play.", min=1)] = 60,
    byzantine: Annotated[
        int | None,
        typer.Option(
            help="Silos that attack; the rule is told to expect that many. 2, or as many as the silos withstand.", min=0
        ),
    ] = None,
    attack: Annotated[
        str, typer.Option(help="What the attackers send: foe, alie, signflip, bitflip, ...; an unknown name lists all.")
    ] = "foe",
    attack_option: Annotated[
        list[str] | None, typer.Option("--attack-option", help="Setting of the attack, such as z=1.5; may be repeated.")
    ] = None,
    aggregator: Annotated[str, typer.Option(help="Robust rule over the buffers.")] = "geometric_median",
    alpha: Annotated[float, typer.Option(help="Share of random coordinates in a proposal.", min=0, max=1)] = 0.5,
    buffer_size: Annotated[int, typer.Option(help="Silos per buffer.", min=2)] = 2,
    drop_rate: Annotated[
        float,
        typer.Option(help="Share of the silos lost in a round: killed at random, and started again.", min=0, max=1),
    ] = 0.0,
    dataset: Annotated[str, typer.Option(help="digits, fashion_mnist or cifar10.")] = "digits",
    data_dir: Annotated[Path | None, typer.Option(help="Where fashion_mnist or cifar10 lie.")] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Train by DP-SGD: no record may cost a silo more than epsilon 8 at delta 1e-5.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Play it again with the plain mean, and show both.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where everything is written; a temporary folder when absent.")] = None,
    exit_at_once: Annotated[
        bool, typer.Option("--exit", help="End when the run is over instead of leaving the dashboard up.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """CA, server, silos (some of them attackers), evaluator and dashboard, all real, all on localhost."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # nobody who has a channel forks
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a thread of numpy's that forking would lose
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # the authority closing an idle connection is no news
    with ExitStack() as stack:
        # It loads what server and dashboard need while this process loads torch.
        services = stack.enter_context(closing(Nursery(SERVICES_NEED, main))) if can_fork() else None
        from fedrep_cli.demo_federation import play
        from fedrep_cli.demo_settings import DemoSettings
        from fedrep_runtime.logging import configure_logging

        configure_logging("demo", level="WARNING")
        settings = DemoSettings(
            silos=silos,
            rounds=rounds,
            byzantine=byzantine,
            attack=attack,
            attack_options=attack_options(attack_option or []),
            aggregator=aggregator,
            alpha=alpha,
            buffer_size=buffer_size,
            drop_rate=drop_rate,
            dataset=dataset,
            data_dir=data_dir,
            private=private,
            compare=compare,
            folder=folder,
        )
        result = stack.enter_context(play(settings, quiet=as_json or not sys.stderr.isatty(), services=services))
        if exit_at_once:
            result = what_stays(result, folder)
        emit(result, as_json, _summary)
        sys.stdout.flush()  # a reader at the end of a pipe waits for it too
        if not exit_at_once:
            stay_up(str(result["dashboard_url"]))


def what_stays(result: dict[str, object], folder: Path | None) -> dict[str, object]:
    """Of a demo that ends at once nobody can open the dashboard any more, nor a temporary folder."""
    gone = {"dashboard_url": None} if folder is not None else {"dashboard_url": None, "folder": None}
    return result | gone


def _summary(result: Any) -> str:
    from fedrep_cli.epsilon import text

    lines = [
        f"Accuracy {result['final_accuracy']:.3f} (all data in one place: {result['central_accuracy']:.3f}) "
        f"after {result['rounds_applied']} applied and {result['rounds_skipped']} skipped rounds.",
        f"Traffic of all silos: {result['bytes_up'] / 1e6:.2f} MB up, {result['bytes_down'] / 1e6:.2f} MB down. "
        f"The rounds' {result['traffic']['sent'] / 1e6:.2f} MB are {result['traffic']['sentence']}.",
        f"Suspected buffers: {result['suspicion']['sentence']}",
        f"Epsilon of the proposals: {text(result['epsilon_total'])} in all. It covers {result['epsilon_covers']}.",
    ]
    if result.get("record_budget") is not None:
        lines.append(
            f"One training record has cost at most epsilon {text(result['record_epsilon'])} of {result['record_budget']:g} at "
            f"delta {result['record_delta']:g}. It covers {result['record_covers']}."
        )
    if result.get("byzantine"):
        lines.append(f"{result['byzantine']} of {result['silos']} silos attacked with {result['attack']}.")
    if result.get("comparison"):
        lines.append(_comparison(result, result["comparison"]))
    width = shutil.get_terminal_size().columns
    return "\n" + "\n".join(textwrap.fill(line, width) for line in lines)


def _comparison(result: Any, other: Any) -> str:
    against = "The same attack against the plain mean" if result.get("byzantine") else "The same with the plain mean"
    text = f"{against}: accuracy {other['final_accuracy']:.3f}."
    if result["dashboard_url"] is not None:
        text += " The dashboard's Compare page shows both."
    if result.get("byzantine") and other["final_accuracy"] > result["final_accuracy"] - SEEN:
        text += (
            f" {result['attack']} moves the mean in every round, but so few attackers by too little to see here; foe is louder."
        )
    return text
