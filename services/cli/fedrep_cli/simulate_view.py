"""What a person sees of a simulation: one live table with a plot on stderr; on no terminal a line now and then."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedrep.privacy import shown

if TYPE_CHECKING:
    from fedrep_simulator.terms import Terms

SHOWN_ROUNDS = 8
PLOT_WIDTH, PLOT_HEIGHT = 60, 6
BLOCKS = " ▁▂▃▄▅▆▇█"
QUIET_LINES = 10


class SimulationView:
    def __init__(self, terms: Terms, quiet: bool) -> None:
        self._terms = terms
        self._quiet = quiet
        self._console = Console(file=sys.stderr)
        self._live: Live | None = None
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> SimulationView:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, terms: Terms) -> None:
        self._terms = terms

    def step(self, text: str) -> None:
        """Something else begins; what was drawn stays."""
        self.stop()
        self._rows = []
        self.say(f"... {text}")

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, row: dict[str, Any], rounds: int) -> None:
        self._rows.append(row)
        if self._quiet:
            if row["round"] % max(rounds // QUIET_LINES, 1) == 0:
                self._console.print(f"... {_told(self._rows, rounds)}", highlight=False, soft_wrap=True)
            return
        self._draw(picture(self.title, self._rows, rounds))

    def central(self, done: int, rounds: int) -> None:
        if not self._quiet:
            self._draw(Text(f"central model: {done} of {rounds} rounds"))

    def _draw(self, drawn: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._live.update(drawn)

    @property
    def title(self) -> str:
        terms = self._terms
        attackers = f"{terms.byzantine} of them attack with {terms.attack.name}" if terms.byzantine else "nobody attacks"
        way = "without cryptography" if terms.fast else "with secure aggregation"
        return f"{len(terms.run.silos)} silos, {attackers}; {terms.run.aggregator.name}, {way}"


def picture(title: str, rows: list[dict[str, Any]], rounds: int) -> RenderableType:
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in (title, _told(rows, rounds))]
    return Group(*lines, "", _table(rows), "", *plot(rows))


def _told(rows: list[dict[str, Any]], rounds: int) -> str:
    known = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    accuracy = f", accuracy {known[-1]:.3f}" if known else ""
    return f"round {rows[-1]['round']} of {rounds}{accuracy}, epsilon {shown(rows[-1]['epsilon'])} in all"


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("round", "accuracy", "loss", "up KB", "down KB", "|I|", "epsilon", "sec"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True, overflow="ellipsis")
    for row in rows[-SHOWN_ROUNDS:]:
        table.add_row(
            str(row["round"]),
            _number(row["accuracy"]),
            _number(row["loss"]),
            f"{row['bytes_up'] / 1e3:.1f}",
            f"{row['bytes_down'] / 1e3:.1f}",
            str(row["coordinates"]),
            shown(row["epsilon"]),
            f"{row['seconds']:.2f}",
            row["outcome"] if row["outcome"] == "applied" else f"skipped: {row['reason']}",
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def plot(rows: list[dict[str, Any]]) -> list[Text]:
    """Accuracy by round, or the loss where there is none, in columns of blocks."""
    figure = "accuracy" if any(row["accuracy"] is not None for row in rows) else "loss"
    values = [float(row[figure]) for row in rows if row[figure] is not None]
    if len(values) < 2:
        return []
    columns = _thinned(values, PLOT_WIDTH)
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    steps = PLOT_HEIGHT * (len(BLOCKS) - 1)
    levels = [round((value - low) / span * (steps - 1)) + 1 for value in columns]
    lines = []
    for line in reversed(range(PLOT_HEIGHT)):
        cells = "".join(BLOCKS[min(max(level - line * (len(BLOCKS) - 1), 0), len(BLOCKS) - 1)] for level in levels)
        label = f"{high:8.3f}" if line == PLOT_HEIGHT - 1 else f"{low:8.3f}" if line == 0 else " " * 8
        lines.append(Text(f"{label} ┤{cells}", no_wrap=True))
    return [*lines, Text(f"{figure:>8} by round", style="dim")]


def _thinned(values: list[float], width: int) -> list[float]:
    if len(values) <= width:
        return values
    return [values[number * len(values) // width] for number in range(width)]
