"""The pictures of docs/benchmarks.md: legible in black and white, and the same bytes from the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

SETTINGS: Any = {
    "svg.hashsalt": "fedrep",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
LINES = (("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"), ("v", (0, (5, 1))), ("x", (0, (1, 1))))
GREYS = ("black", "0.35", "0.5", "0.2", "0.6", "0.45")


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    pictures = []
    with mpl.rc_context(SETTINGS):
        rivals = results.get("rivals", {"rounds": [], "poisoned": []})
        if rivals["rounds"]:
            pictures.append(_save(_rounds(rivals["rounds"]), folder / "bench-rounds.svg"))
        if rivals["poisoned"]:
            pictures.append(_save(_poisoned(rivals["poisoned"]), folder / "bench-poisoned.svg"))
        if "aggregators" in results:
            pictures.append(_save(_rules(largest(results["aggregators"]["rows"])), folder / "bench-rules.svg"))
        if "scaling" in results:
            pictures.append(_save(_scaling(results["scaling"]["axes"]), folder / "bench-scaling.svg"))
    return pictures


def largest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules at the most parameters of those that were measured, where the peer had the memory to run."""
    most = max(row["d"] for row in rows)
    return [row for row in rows if row["d"] == most and row["ratio"] is not None]


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    return path


def _rounds(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(7.5, 0.42 * len(rows) + 0.8))
    axes = figure.subplots()
    places = range(len(rows))
    bests = [row["best_ms"] for row in rows]
    bars = axes.barh(places, bests, color="0.8", edgecolor="black", label="best")
    for bar, row in zip(bars, rows, strict=True):
        if row["system"].startswith("FedREP"):
            bar.set_hatch("///")
        axes.text(
            row["median_ms"] * 1.15, bar.get_y() + bar.get_height() / 2, f"{row['best_ms']:,.0f} ms", va="center", fontsize=8
        )
    axes.plot([row["median_ms"] for row in rows], places, "k|", markersize=11, label="median")
    axes.set_yticks(places, [row["system"] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(bests) / 3, 6 * max(row["median_ms"] for row in rows))
    axes.set_xlabel("milliseconds a round, ten silos, d = 270,000")
    axes.legend(frameon=False, loc="lower right")
    return figure


def _poisoned(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(7.5, 3.4))
    axes = figure.subplots()
    for index, row in enumerate(rows):
        marker, style = LINES[index % len(LINES)]
        axes.plot(
            row["by_round"], marker=marker, linestyle=style, color=GREYS[index % len(GREYS)], markevery=(index, 5), markersize=5,
            linewidth=2 if row["system"].startswith("FedREP") else 1, label=row["system"],
        )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, two of ten poisoned")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _rules(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(7.5, 0.36 * len(rows) + 1.0))
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh(
        [place + 0.2 for place in places], [row["peer_ms"] for row in rows], 0.4, color="0.8", edgecolor="black", label="byzfl"
    )
    axes.barh(
        [place - 0.2 for place in places], [row["ours_ms"] for row in rows], 0.4,
        color="white", edgecolor="black", hatch="///", label="FedREP",
    )  # fmt: skip
    for place, row in zip(places, rows, strict=True):
        axes.text(row["peer_ms"] * 1.15, place, f"{row['ratio']:.1f}x", va="center", fontsize=8)
    axes.set_yticks(places, [f"{row['rule'].replace('_', ' ')}, {row['n']} vectors" for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(row["ours_ms"] for row in rows) / 3, 5 * max(row["peer_ms"] for row in rows))
    axes.set_xlabel(f"milliseconds, d = {rows[0]['d']:,}; the ratio beside each pair")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return figure


def _scaling(axes_figures: dict[str, Any]) -> Figure:
    shown = {axis: result["rows"] for axis, result in axes_figures.items() if result["rows"]}
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    quantities = (("best_ms", "round, best"), ("server_ms", "server CPU"), ("silo_ms", "CPU per silo"))
    for panel, (axis, rows) in zip(panels, shown.items(), strict=False):
        at = [row["at"] for row in rows]
        for index, (name, label) in enumerate(quantities):
            marker, style = LINES[index]
            panel.loglog(at, [row[name] for row in rows], marker=marker, linestyle=style, color=GREYS[index], label=label)
        panel.set_xlabel(axis)
        panel.set_ylabel("ms a round")
        panel.set_xticks(at, [f"{value:g}" for value in at])
        panel.minorticks_off()
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    return figure
