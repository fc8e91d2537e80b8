"""What a simulation leaves: rounds, model, and the figures at the end; in Python an object, on disk files."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrep.errors import SettingsError
from fedrep_simulator.folder import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SimulationResult:
    """`history` has one flat dict per round; `model` is a state dict by parameter name; `summary` the figures at the end.

    `comparison` is the same run against the plain mean, and `central` the figures of a model trained on all data in one place.
    """

    history: list[Row] = field(repr=False)
    model: dict[str, Any] = field(repr=False)
    summary: dict[str, Any]
    central: Row | None = None
    comparison: SimulationResult | None = None
    folder: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """Of the last round that was measured."""
        found: float | None = last(self.history, "accuracy")
        return found

    def frame(self) -> Any:
        """`history` as a pandas DataFrame."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise SettingsError("frame() needs the package pandas: pip install pandas, or use history") from error
        return pandas.DataFrame(self.history)

    def plot(self, figure: str = "accuracy") -> Figure:
        """One figure by round, beside the central model's and the plain mean's where they are known."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise SettingsError("plot() needs the package matplotlib: pip install matplotlib, or use history") from error
        drawn = Figure(figsize=(7, 4), layout="constrained")
        axes = drawn.subplots()
        lines = {str(self.summary["aggregator"]): self.history}
        if self.comparison is not None:
            lines["mean"] = self.comparison.history
        for label, rows in lines.items():
            seen = [(row["round"], row[figure]) for row in rows if isinstance(row.get(figure), int | float)]
            axes.plot([number for number, _ in seen], [value for _, value in seen], label=label)
        if self.central is not None and self.central.get(figure) is not None:
            axes.axhline(self.central[figure], linestyle="--", color="gray", label="all data in one place")
        axes.set_xlabel("round")
        axes.set_ylabel(figure)
        axes.legend()
        _show_in_notebooks()
        return drawn

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures at the end, one line each."""
        shown = ("accuracy", "central_accuracy", "rounds_applied", "rounds_skipped", "bytes_up_per_silo", "epsilon_total")
        cells = "".join(f"<tr><td>{name}</td><td>{self.summary.get(name)}</td></tr>" for name in shown)
        return f"<table>{cells}</table>"


def _show_in_notebooks() -> None:
    """Without pyplot a notebook does not know how to draw a figure."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})  # type: ignore[no-untyped-call]


def last(rows: list[Row], figure: str) -> Any:
    return next((row[figure] for row in reversed(rows) if row.get(figure) is not None), None)


def best(rows: list[Row], figure: str) -> Any:
    return max((row[figure] for row in rows if row.get(figure) is not None), default=None)
