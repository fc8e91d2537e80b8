"""What a person sees of the demo: a few lines on stderr, then one live table."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedrep.privacy import shown

SHOWN_ROUNDS = 10


class DemoView:
    """Writes to stderr only, so that stdout stays the result's. On no terminal it prints plain lines."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(file=sys.stderr)
        self._live: Live | None = None
        self._last = 0

    def __enter__(self) -> DemoView:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def step(self, text: str) -> None:
        self.say(f"... {text}")

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, run: Any, rounds: list[Any]) -> None:
        if self._quiet:
            self._print_progress(run, rounds)
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._live.update(picture(run, rounds))

    def _print_progress(self, run: Any, rounds: list[Any]) -> None:
        if not rounds:
            self._last = 0
        elif rounds[-1].round >= self._last + 10:
            self._last = rounds[-1].round
            accuracy = f", accuracy {run.summary.accuracy:.3f}" if run.summary.HasField("accuracy") else ""
            self.say(f"... round {self._last} of {run.summary.rounds_planned}{accuracy}")


def picture(run: Any, rounds: list[Any]) -> RenderableType:
    """Two lines on the run and a table of its last rounds, within 80 columns."""
    summary = run.summary
    accuracy = f"{summary.accuracy:.3f}" if summary.HasField("accuracy") else "not known yet"
    epsilon = shown(summary.epsilon_total if summary.HasField("epsilon_total") else None)
    lines = [
        f"{summary.name}: {summary.state}, round {summary.round} of {summary.rounds_planned}, accuracy {accuracy}, "
        f"{summary.silos_present} of {summary.silos_allowed} silos",
        f"{summary.aggregator}; {summary.bytes_up / 1e6:.2f} MB up, {summary.bytes_down / 1e6:.2f} MB down; "
        f"epsilon {epsilon} in all",
    ]
    if summary.records.without:
        lines.append(f"one training record: epsilon {shown(None)}, without guarantee at {summary.records.without} of the silos")
    elif summary.records.HasField("epsilon"):
        lines.append(f"one training record: epsilon {shown(summary.records.epsilon)} at most, delta {summary.records.delta:g}")
    return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines), "", _table(rounds))


def _table(rounds: list[Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("round", "accuracy", "up KB", "down KB", "epsilon", "sec", "late", "dropped"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True, overflow="ellipsis")
    for item in rounds[-SHOWN_ROUNDS:]:
        statuses = [silo.status for silo in item.silos]
        table.add_row(
            str(item.round),
            f"{item.accuracy:.3f}" if item.HasField("accuracy") else "",
            f"{item.bytes_up / 1e3:.1f}",
            f"{item.bytes_down / 1e3:.1f}",
            shown(item.epsilon if item.HasField("epsilon") else None),
            f"{sum(item.phase_seconds):.1f}",
            str(statuses.count("late")),
            str(statuses.count("dropped")),
            "applied" if item.outcome == 1 else f"skipped: {item.reason}",
        )
    return table
