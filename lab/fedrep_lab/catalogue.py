"""Experiments as TOML files: defaults, a grid, variants, and what each preset changes.

`[cells]` holds what all cells share; `[grid]` gives lists, whose product is taken; `[[variants]]`, if there are any, are
tables that are each combined with the whole grid. `[smoke]`, `[laptop]` and `[paper]` override these for a preset, and may
have a `grid` and `variants` of their own. Presets themselves are in presets.toml. Where a document states the figure that a
variant should give, the variant has it as `stated`, and `[stated]` says which page, how near, and for which other settings.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedrep.errors import SettingsError
from fedrep_lab.cell import Cell, cell_from
from fedrep_lab.results import Result
from fedrep_lab.tuning import chosen_rate, tuning_cells

FOLDER = Path(__file__).parent / "experiments"
PRESETS_FILE = Path(__file__).parent / "presets.toml"


@dataclass(frozen=True)
class Figure:
    """What is drawn: accuracy curves, or a metric over the values of a setting; one panel and line per value."""

    kind: str = "curves"  # curves, points, worst (cases over attacks) or table
    panels: tuple[str, ...] = ()
    lines: tuple[str, ...] = ("method",)
    x: str = ""
    y: str = "best_accuracy"
    log: bool = False


@dataclass(frozen=True)
class Stated:
    """A figure that a page of the documentation states, and the settings it is stated for."""

    settings: Mapping[str, Any]
    metric: str
    figure: float


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    where: str  # in the paper, or what the paper leaves open
    claim: str
    verdict: str
    figure: Figure
    tables: Mapping[str, Any]

    def cells(
        self, preset: str, changes: Mapping[str, Any] | None = None, tuned: Mapping[str, Result] | None = None
    ) -> list[Cell]:
        """`changes` come from the command line and win over everything, grids included.

        Where a preset tunes and nothing here names a rate, a cell has the rate that `tuned`, the finished cells of `tuning`, give
        to its method; cells whose method has not been tuned yet are left out, unless there is no `tuned` at all.
        """
        table = self._tuning_table(preset)
        found: dict[str, Cell] = {}
        for cell, tunes in self._points(preset, changes):
            if tunes and tuned is not None and table is not None:
                rate = chosen_rate(self._tried(cell, table), tuned, self.steps_below)
                if rate is not None:
                    chosen = replace(cell, rate=rate)
                    found[chosen.key()] = chosen
            else:
                found[cell.key()] = cell
        return list(found.values())

    @property
    def steps_below(self) -> int:
        """How many steps of the grid its rates lie below those that tuning finds best."""
        return int(self._own_tuning().get("below", 0))

    def tuning(self, preset: str, changes: Mapping[str, Any] | None = None) -> list[Cell]:
        """What must be run before the rates of these cells are known."""
        table = self._tuning_table(preset)
        if table is None:
            return []
        tuned = [cell for cell, tunes in self._points(preset, changes) if tunes]
        return list({one.key(): one for cell in tuned for one in self._tried(cell, table)}.values())

    def _tried(self, cell: Cell, table: Mapping[str, Any]) -> list[Cell]:
        return tuning_cells(cell, table, self._own_tuning().get("also", ()))

    def _tuning_table(self, preset: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = load_presets().get(preset, {}).get("tuning")
        return found

    def _own_tuning(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.tables.get("tuning", {})
        return found

    def _points(self, preset: str, changes: Mapping[str, Any] | None) -> Iterator[tuple[Cell, bool]]:
        """Every cell, and whether its rate is left to tuning."""
        presets = load_presets()
        if preset not in presets:
            raise SettingsError(f"There is no preset {preset!r}; choose {', '.join(presets)}.")
        own = dict(self.tables.get(preset, {}))
        grid = {**self.tables.get("grid", {}), **own.pop("grid", {})}
        variants = own.pop("variants", None) or self.tables.get("variants") or [{}]
        limits = presets[preset].get("limits", {})
        shared = {**self.tables.get("cells", {}), **presets[preset].get("cells", {}), **own}
        changes = dict(changes or {})
        grid = {name: values for name, values in grid.items() if name not in changes}
        for variant in variants:
            for point in itertools.product(*grid.values()):
                settings = {**shared, **dict(zip(grid, point, strict=True)), **variant, **changes}
                settings.pop("stated", None)
                for name in limits.keys() - changes.keys():
                    settings[name] = min(settings.get(name, getattr(Cell, name)), limits[name])
                cell = cell_from(settings, f"The experiment {self.name}")
                yield cell, "tuning" in presets[preset] and "rate" not in settings and cell.task == "train"

    def stated(self) -> list[Stated]:
        figures = []
        for variant in self.tables.get("variants", []):
            settings = {name: value for name, value in variant.items() if name != "stated"}
            figures += [Stated(settings, metric, figure) for metric, figure in variant.get("stated", {}).items()]
        return figures


def load_presets() -> dict[str, Any]:
    return _read(PRESETS_FILE)


def experiment_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_experiment(name: str) -> Experiment:
    if name not in experiment_names():
        close = get_close_matches(name, experiment_names(), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingsError(f"There is no experiment {name!r}.{hint} `fedrep lab list` shows them.")
    return experiment_from(name, _read(FOLDER / f"{name}.toml"))


def load_experiments(names: Sequence[str]) -> list[Experiment]:
    chosen = experiment_names() if "all" in names else list(dict.fromkeys(names))
    return [load_experiment(name) for name in chosen]


def experiment_from(name: str, tables: Mapping[str, Any]) -> Experiment:
    missing = [key for key in ("title", "where", "claim", "verdict") if key not in tables]
    if missing:
        raise SettingsError(f"The experiment {name} lacks {', '.join(missing)}.")
    drawn = dict(tables.get("figure", {}))
    for key in ("panels", "lines"):
        if key in drawn:
            drawn[key] = tuple(drawn[key])
    return Experiment(name, tables["title"], tables["where"], tables["claim"], tables["verdict"], Figure(**drawn), tables)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error
