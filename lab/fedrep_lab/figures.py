"""The figures: accuracy against epochs, as the paper draws them, a number against a setting, or a map of worst cases.

Lines differ in dash and marker as well as in colour, and maps are gray: a print in black and white tells as much.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedrep_lab.catalogue import Experiment
from fedrep_lab.results import Result
from fedrep_lab.scores import as_attacked, best_rate, grouped, label, place_name, places_of, shown, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL_INCHES = (4.2, 3.2)
_MOST_COLUMNS = 4
_SHOWN_BELOW = 0.1  # of accuracy, below the lowest end of a curve
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
_MARKERS = "osD^vX*P"
AXES = {
    "best_accuracy": "best top-1 accuracy",
    "peak_largest_residual": "largest entry of the memory / typical update",
    "alpha": "alpha",
}


def draw(experiment: Experiment, results: Sequence[Result]) -> bytes | None:
    """A PNG, or None where the numbers are better read as a table."""
    if experiment.figure.kind == "table":
        return None
    results = [
        result for result in results if result.cell.task == "train" and (result.history or experiment.figure.kind != "curves")
    ]
    if not results:
        return None
    if experiment.figure.kind == "worst":
        return _map_of_worst_cases(experiment, results)
    panels = _panels(experiment, results)
    figure, axes = _sheet(len(panels))
    for axis, (title, cells) in zip(axes, panels.items(), strict=False):
        if experiment.figure.kind == "curves":
            _curves(axis, experiment, cells, results)
        else:
            _points(axis, experiment, cells, results)
        axis.set_title(title, fontsize=9)
        axis.grid(visible=True, alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    lines = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    names = sorted(lines)  # a line need not be in every panel
    widest = 0.6 + 0.065 * max(len(name) for name in names)  # inches, at this size of letters
    columns = max(1, min(len(names), int(figure.get_size_inches()[0] / widest)))
    figure.legend([lines[name] for name in names], names, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return _png(figure)


def _panels(experiment: Experiment, results: Sequence[Result]) -> dict[str, list[Result]]:
    names = experiment.figure.panels
    groups = grouped(results, lambda result: label(result, names) or experiment.title)
    return dict(sorted(groups.items()))


def _curves(axis: Axes, experiment: Experiment, cells: list[Result], everything: Sequence[Result]) -> None:
    names = varying(everything, experiment.figure.lines) or list(experiment.figure.lines[:1])
    lines = grouped(cells, lambda result: label(result, names))
    order = _styles(everything, names)
    for text, members in sorted(lines.items(), key=lambda item: order.index(item[0])):
        chosen = best_rate(members)
        epochs, by_epoch = curve(chosen)
        (line,) = axis.plot(
            epochs,
            [statistics.fmean(values) for values in by_epoch],
            label=text,
            linewidth=1.2,
            markersize=4,
            markevery=max(1, len(epochs) // 6),
            **_style(order.index(text)),
        )
        if len(chosen) > 1:  # from the worst to the best seed
            lowest, highest = [min(values) for values in by_epoch], [max(values) for values in by_epoch]
            axis.fill_between(epochs, lowest, highest, color=line.get_color(), alpha=0.15, linewidth=0)
    _look_at_the_end(axis)
    axis.set_xlabel("epochs", fontsize=8)
    axis.set_ylabel("top-1 accuracy", fontsize=8)
    axis.tick_params(labelsize=8)


def _look_at_the_end(axis: Axes) -> None:
    """Where no line ends low, the first steep rise is cut off: the claims are about points at the end."""
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in axis.get_lines()]
    lowest = min(ends) - _SHOWN_BELOW
    if lowest > axis.get_ylim()[0]:
        axis.set_ylim(bottom=lowest)


def curve(results: Sequence[Result]) -> tuple[list[float], list[tuple[float, ...]]]:
    """The epochs of the longest training, and the accuracies of all trainings at each of them."""
    epochs = max(([float(point["epoch"]) for point in one.history] for one in results), key=len)
    return epochs, list(zip(*(_accuracies(one, len(epochs)) for one in results), strict=True))


def _accuracies(result: Result, length: int) -> list[float]:
    """Training that left the finite numbers ended early; its last accuracy stands for the rest."""
    found = [float(point["accuracy"]) for point in result.history]
    return found + [found[-1]] * (length - len(found))


def _points(axis: Axes, experiment: Experiment, cells: list[Result], everything: Sequence[Result]) -> None:
    drawn = experiment.figure
    places = [place_name(drawn.x, place) for place in places_of(everything, drawn.x)]  # panels share an axis
    positions = {place: float(number) for number, place in enumerate(places)}
    order = _styles(everything, drawn.lines)
    for text, members in sorted(grouped(cells, lambda result: label(result, drawn.lines)).items()):
        by_place = grouped(members, lambda result: place_name(drawn.x, getattr(result.cell, drawn.x)))
        xs = [positions[place] for place in positions if place in by_place]
        ys = [
            statistics.fmean(float(one.metrics[drawn.y]) for one in best_rate(by_place[place]))
            for place in positions
            if place in by_place
        ]
        axis.plot(xs, ys, label=text, linewidth=1.0, markersize=4, **_style(order.index(text)))
    axis.set_xticks(list(positions.values()), list(positions), rotation=30 if len(places[-1]) > 5 else 0, fontsize=8)
    axis.set_xlabel(AXES.get(drawn.x, shown(drawn.x, "").split(" = ")[0]), fontsize=8)
    axis.set_ylabel(AXES.get(drawn.y, drawn.y), fontsize=8)
    axis.tick_params(labelsize=8)


def _styles(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """A line looks the same in every panel."""
    return sorted({label(result, names) for result in results})


def _style(number: int) -> dict[str, Any]:
    return {
        "color": f"C{number % 10}",
        "linestyle": _DASHES[number % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def _map_of_worst_cases(experiment: Experiment, results: Sequence[Result]) -> bytes:
    """A square for every pair of values."""
    drawn = experiment.figure
    rows = _styles(results, (drawn.x,))
    columns = _styles(results, drawn.lines)
    worst = worst_cases(experiment, results)
    figure, axes = _sheet(1)
    figure.set_size_inches(1.6 + 1.35 * len(columns), 1.0 + 0.42 * len(rows))
    axis = axes[0]
    numbers = [[worst[row, column].least if (row, column) in worst else float("nan") for column in columns] for row in rows]
    axis.imshow(numbers, cmap="gray", vmin=0.0, vmax=1.0, aspect="auto")
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            if (row, column) in worst:
                found, attack, complete = worst[row, column]
                axis.text(
                    x,
                    y,
                    f"{found:.3f}{'' if complete else '*'}\n{attack}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="black" if found > 0.5 else "white",
                )
    axis.set_xticks(range(len(columns)), columns, fontsize=7, rotation=20, ha="right")
    axis.set_yticks(range(len(rows)), [row.partition(" = ")[2] for row in rows], fontsize=8)
    told = "" if all(square.complete for square in worst.values()) else "\n* not all of the map's attacks were run"
    axis.set_title(f"least accuracy over all attacks, and the attack{told}", fontsize=9)
    return _png(figure)


class Square(NamedTuple):
    least: float
    attack: str
    complete: bool  # every attack that the map knows was run here


def worst_cases(experiment: Experiment, results: Sequence[Result]) -> dict[tuple[str, str], Square]:
    """By row and column of the map: the least mean over the attacks, and which attack it is of."""
    drawn = experiment.figure
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (row, column, attack), members in _by_attack(as_attacked(results), drawn.x, drawn.lines).items():
        mean = statistics.fmean(float(one.metrics[drawn.y]) for one in best_rate(members))
        found.setdefault((row, column), {})[attack] = mean
    attacks = {attack for means in found.values() for attack in means}
    return {
        place: Square(*min((mean, attack) for attack, mean in means.items()), set(means) == attacks)
        for place, means in found.items()
    }


def _by_attack(results: Sequence[Result], x: str, lines: Sequence[str]) -> dict[tuple[str, str, str], list[Result]]:
    found: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if result.cell.attack != "none":
            found.setdefault((label(result, (x,)), label(result, lines), result.cell.attack), []).append(result)
    return found


def _sheet(count: int) -> tuple[Figure, list[Any]]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(count, _MOST_COLUMNS)
    rows = -(-count // columns)
    # A single panel is widened, so that its legend does not outgrow it.
    size = (_PANEL_INCHES[0] * max(columns, 1.7), _PANEL_INCHES[1] * rows + 0.6)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, list(axes.flat)


def _png(figure: Figure) -> bytes:
    from matplotlib import pyplot

    data = io.BytesIO()
    # No date or version in the file: the same numbers give the same bytes.
    figure.savefig(data, format="png", dpi=80, metadata={"Software": None})
    pyplot.close(figure)
    return data.getvalue()
