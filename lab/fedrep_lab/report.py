"""What the lab found, on one page: each figure beside the paper's claim, the verdict, and the numbers behind it.

The HTML page has everything inside; the Markdown folder holds the same as a page per claim, PNG files and CSV tables, for a
repository.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedrep.errors import NotFoundError
from fedrep_lab import tuning
from fedrep_lab.catalogue import Experiment, load_experiments, load_presets
from fedrep_lab.comparisons import Verdict
from fedrep_lab.figures import draw
from fedrep_lab.grids import Grid, apart_from_seed
from fedrep_lab.measurements import ON_DATA
from fedrep_lab.results import Result, ResultFolder, tables_of
from fedrep_lab.scores import grouped, label, values_of, varying
from fedrep_lab.tuning import by_key
from fedrep_lab.verdicts import judge
from fedrep_runtime.files import write_atomically

_SIZES = ("paper", "cifar", "laptop", "smoke")
# What is said of every experiment, from its cells; the rest of the settings is in the CSV files.
_STATED = ("dataset", "model", "m", "f", "s", "rounds", "epochs", "interval", "beta", "rate", "seed", "rule")
_LENGTHS = ("rounds", "epochs")
_OF_TRAINING = ("dataset", "model", "interval", "beta", "rate", "rule")
_METHOD = ("method", "rule", "pre", "beta", "interval")
_TELLING = ("f", "attackers", "method_settings", "ratio")  # said of a method where its rate depends on them


def _depends_on(result: Result, setting: str) -> bool:
    """Of the two lengths one decided how long a cell was trained; what measures without data has neither data nor training."""
    cell = result.cell
    if setting in _LENGTHS:
        return setting == ("epochs" if cell.epochs > 0 else "rounds")
    return setting not in _OF_TRAINING or cell.task == "train" or cell.task in ON_DATA


@dataclass(frozen=True)
class Table:
    columns: list[str]
    rows: list[dict[str, Any]]

    def takes(self, row: dict[str, Any]) -> bool:
        """Whether a row says the same kind of thing: it begins alike, and has more than that in common."""
        return self.columns[0] == next(iter(row)) and (len(row) == 1 or len(row.keys() & set(self.columns)) > 1)

    def add(self, row: dict[str, Any]) -> None:
        self.columns.extend(name for name in row if name not in self.columns)
        self.rows.append(row)


@dataclass(frozen=True)
class Section:
    experiment: Experiment
    results: Sequence[Result]  # those that verdict and figure are about
    verdict: Verdict
    figure: bytes | None
    tunes: bool = False
    others: Sequence[Result] = ()  # with settings that the preset does not ask for, beside cells that it does
    as_planned: bool = True  # False: nothing was run with the preset's settings, and what was run is judged instead

    @property
    def everything(self) -> list[Result]:
        return sorted([*self.results, *self.others], key=_key)

    @property
    def picture(self) -> str:
        return base64.b64encode(self.figure or b"").decode()

    @property
    def tables(self) -> list[Table]:
        """Rows that say different things (the comparisons, and what was measured) are tables of their own."""
        found: list[Table] = []
        for row in self.verdict.rows:
            if not found or not found[-1].takes(row):
                found.append(Table(list(row), []))
            found[-1].add(row)
        return found

    @property
    def settings(self) -> str:
        """What was run, from the cells themselves and not from the preset."""
        parts = []
        for name in _STATED:
            values = values_of([result for result in self.results if _depends_on(result, name)], name)
            if values:
                parts.append(f"{name} {', '.join(map(str, values))}")
        return "; ".join(parts)

    @property
    def seeds(self) -> str:
        """How many seeds stand behind it: of all cells alike, or from the fewest to the most."""
        alike = grouped(self.results, lambda result: apart_from_seed(result.cell)).values()
        counts = [len({one.cell.seed for one in group}) for group in alike]
        if not counts:
            return ""
        return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"

    @property
    def tuned(self) -> str:
        """The rates that `tuning` chose for its methods, if it chose any: rates of private cells are named by experiments."""
        chosen = [one for one in self.results if self.tunes and one.cell.task == "train" and not one.cell.record_epsilon]
        methods = grouped(chosen, lambda one: label(one, _METHOD)).values()
        return "; ".join(sorted(line for method in methods for line in _rates(method)))

    @property
    def chosen(self) -> str:
        steps = self.experiment.steps_below
        best = "chosen on images held out of the training ones"
        return f"{steps} step{'s' * (steps > 1)} of the grid below those {best}" if steps else best

    @property
    def cpu_minutes(self) -> float:
        return sum(result.cpu_seconds for result in self.everything) / 60

    @property
    def inactive(self) -> float:
        """The share of rounds in which the rule had no effect, so that it was the plain mean."""
        found = [float(result.metrics["rule_inactive"]) for result in self.results if "rule_inactive" in result.metrics]
        return max(found, default=0.0)

    @property
    def sources(self) -> str:
        """Which versions of the sources the cells came from: they are not run again when the sources change."""
        counts = Counter(str(result.code.get("sources", "unknown")) for result in self.results)
        return ", ".join(f"{digest} ({count} cell{'s' * (count > 1)})" for digest, count in sorted(counts.items()))

    @property
    def diverged(self) -> int:
        return sum(bool(result.metrics.get("diverged")) for result in self.results)


def _rates(method: Sequence[Result]) -> list[str]:
    """Of cells of one method: its rate, or its rates with what tells them apart."""
    one = len({result.cell.rate for result in method}) == 1
    telling = [] if one else varying(method, _TELLING)
    found = grouped(method, lambda result: label(result, (*_METHOD, *telling)))
    return [
        f"{name}: {' or '.join(f'{rate:g}' for rate in sorted({one.cell.rate for one in group}))}"
        for name, group in found.items()
    ]


def write_report(folder: Path, preset: str | None, page: Path, markdown: Path | None = None) -> dict[str, Any]:
    results = ResultFolder(folder)
    present = results.presets()
    chosen = preset or next((name for name in _SIZES if name in present), None)
    if chosen is None or chosen not in present:
        wanted = f"of the preset {preset}" if preset else "at all"
        raise NotFoundError(f"There are no results {wanted} in {folder}; `fedrep lab run all --out {folder}` makes some.")
    sections = [_section(experiment, chosen, results) for experiment in load_experiments(["all"])]
    run = [section for section in sections if section.results]
    once = {_key(result): result for section in sections for result in section.everything}  # experiments share cells
    facts = {
        "preset": chosen,
        "folder": folder,
        "about": load_presets()[chosen]["about"],
        "sections": sections,
        "cells": len(once),
        "cpu_minutes": sum(result.cpu_seconds for result in once.values()) / 60,
        "codes": sorted({tuple(sorted(result.code.items())) for section in run for result in section.everything}),
    }
    templates = Environment(
        loader=PackageLoader("fedrep_lab", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, templates.get_template("report.html").render(facts).encode(), mode=0o644)
    if markdown is not None:
        _write_markdown(markdown, templates, facts, run)
    verdicts = [
        {"experiment": section.experiment.name, "status": section.verdict.status, "sentence": section.verdict.sentence}
        for section in sections
    ]
    return {"preset": chosen, "cells": facts["cells"], "page": str(page), "verdicts": verdicts}


def _section(experiment: Experiment, preset: str, folder: ResultFolder) -> Section:
    """Judged are the preset's cells and nothing else; where there is none of them, all that was run."""
    results = sorted(folder.load(experiment.name, preset), key=_key)
    grid = Grid.of(experiment, preset, by_key(folder.load(tuning.NAME, preset)))
    asked = grid.belonging(results)
    judged = asked or results
    keys = {_key(result) for result in judged}
    return Section(
        experiment,
        judged,
        judge(experiment.verdict, preset, judged, grid),
        draw(experiment, judged),
        tunes=bool(asked and experiment.tuning(preset)),
        others=[result for result in results if _key(result) not in keys],
        as_planned=bool(asked or not results),
    )


def _key(result: Result) -> str:
    return result.cell.key()


def _write_markdown(folder: Path, templates: Environment, facts: dict[str, Any], sections: Sequence[Section]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        if section.figure is not None:
            write_atomically(folder / f"{section.experiment.name}.png", section.figure, mode=0o644)
        for name, text in tables_of(section.experiment.name, section.everything).items():
            write_atomically(folder / name, text.encode(), mode=0o644)
    for name, text in tables_of(tuning.NAME, ResultFolder(facts["folder"]).load(tuning.NAME, facts["preset"])).items():
        write_atomically(folder / name, text.encode(), mode=0o644)
    plain = templates.overlay(autoescape=False)
    for section in sections:
        page = plain.get_template("claim.md.j2").render(**facts, section=section)
        write_atomically(folder / f"{section.experiment.name}.md", page.encode(), mode=0o644)
    write_atomically(folder / "verdicts.md", plain.get_template("verdicts.md.j2").render(facts).encode(), mode=0o644)
