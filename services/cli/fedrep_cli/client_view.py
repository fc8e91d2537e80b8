"""The silo on a terminal: one line that changes while a round goes on, and one that stays when it is over."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedrep.privacy import shown

if TYPE_CHECKING:
    from fedrep_silo.daemon import SiloDaemon
    from fedrep_silo.evaluator import Evaluator
    from fedrep_silo.following import Follower

REFRESH_SECONDS = 0.25
EPSILONS = ("epsilon_total", "epsilon_data_set", "record_epsilon")
LABELS = {"at": "last sign of life", "now": "run of now", "state": "the run, as last heard", "outcome": "last outcome"}
LABELS |= {"epsilon_total": "epsilon of this run", "epsilon_data_set": "epsilon of all runs over these data"}
LABELS |= {"server_away": "server out of reach", "away_since": "out of reach since", "running": "this daemon is running"}


async def show_rounds(daemon: SiloDaemon | Evaluator | Follower, console: Console | None = None) -> None:
    """Beside the daemon, until cancelled. Only looks at its status."""
    console = console or Console(stderr=True)
    reports, shown = None, 0
    with console.status("starting") as line:
        while True:
            status, now = status_of(daemon), getattr(daemon, "reports", None)
            if now is not reports:  # a silo that follows runs counts each from its start
                reports, shown = now, 0
            over = getattr(reports, "rounds_over", 0)
            if over > shown:
                shown = over
                console.print(Text(round_line(status)))
            line.update(Text(phase_line(status)))  # not markup: a problem's text may hold brackets
            await asyncio.sleep(REFRESH_SECONDS)


def status_of(daemon: SiloDaemon | Evaluator | Follower) -> Mapping[str, Any]:
    reports = getattr(daemon, "reports", None)
    status: Mapping[str, Any] = reports.status if reports is not None else daemon.status  # type: ignore[union-attr]
    return status


def phase_line(status: Mapping[str, Any]) -> str:
    where = f"round {status['round']}: " if status.get("round") else ""
    problem = f"  problem: {status['problem']}" if status.get("problem") else ""
    away = f"  server out of reach: {status['server_away']}" if status.get("server_away") else ""
    accuracy = f"  accuracy {status['accuracy']:.4f}" if status.get("accuracy") is not None else ""
    metrics = "".join(f"  {name} {value:.4f}" for name, value in status.get("metrics", {}).items())
    return f"{where}{status['phase']}{accuracy}{metrics}{problem}{away}"


def waiting_line(status: Mapping[str, Any], grace: float) -> str:
    """What a silo that was asked to stop still does."""
    which = f"round {status['round']}" if status.get("round") else "its round"
    return (
        f"stopping. Others count on this silo in {which}, which is now at {status['phase']!r}: it is finished first, for at most "
        f"{grace:g} s. Ctrl-C again leaves at once."
    )


def round_line(status: Mapping[str, Any]) -> str:
    """Phase, loss, bytes, epsilon left; what is not known is left out."""
    parts = [f"round {status['last_round']}", str(status["outcome"])]
    if status.get("reason"):
        parts.append(str(status["reason"]))
    if status.get("train_loss") is not None:
        parts.append(f"loss {status['train_loss']:.4f}")
    parts.append(f"{status['bytes_sent']:,} bytes sent")
    if status.get("epsilon_left") is not None:
        parts.append(f"epsilon left {math.floor(100 * status['epsilon_left']) / 100:.2f}")
    else:
        parts.append(f"epsilon spent {shown_epsilon(status['epsilon_total'])}")
    if status.get("record_budget") is not None:
        parts.append(f"records {shown_epsilon(status['record_epsilon'])} of {status['record_budget']:g}")
    return "  ".join(parts)


def render_status(status: Mapping[str, Any]) -> str:
    """One line for each thing that is known, with times and figures as people write them."""
    lines = []
    for key, value in status.items():
        if value in (None, "", {}) or key == "seconds_ago":
            continue
        if key == "at":
            ago = f" ({status['seconds_ago']:g} s ago)" if "seconds_ago" in status else ""
            value = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(value))} UTC{ago}"
        elif key == "away_since":
            value = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(value))} UTC"
        elif key in EPSILONS:
            value = shown_epsilon(value)
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, float):
            value = f"{value:.6g}"
        elif isinstance(value, Mapping):
            value = ", ".join(f"{name} {figure:.6g}" for name, figure in value.items())
        lines.append(f"{LABELS.get(key, key.replace('_', ' '))}: {value}")
    return "\n".join(lines)


def shown_epsilon(total: float | str) -> str:
    """Never smaller than it is."""
    return total if isinstance(total, str) else shown(total)
