"""The report judges the cells that a preset asks for, all of them and nothing else, and says what else there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrep_lab.catalogue import load_experiment
from fedrep_lab.cell import Cell
from fedrep_lab.comparisons import FAILS, HOLDS, UNTESTED, Verdict
from fedrep_lab.report import Section, write_report
from fedrep_lab.results import ResultFolder


def keep(folder: Path, name: str, cells: Iterable[Cell], **outcome: Any) -> None:
    """Finished cells, as a run would leave them."""
    plain: dict[str, Any] = {"code": {"sources": "aaaa"}, "parameters": 1000, "seconds": 0.0, "cpu_seconds": 0.0}
    plain["history"] = [{"round": 0, "epoch": 0.0, "accuracy": 0.1}]
    for cell in cells:
        ResultFolder(folder).write(name, "laptop", cell, {**plain, **outcome})


def attended(folder: Path) -> list[Cell]:
    """All of `attendance`, with the very figures that the page states."""
    experiment = load_experiment("attendance")
    cells = experiment.cells("laptop")
    for cell in cells:
        of_cell = [
            one for one in experiment.stated() if all(getattr(cell, name) == value for name, value in one.settings.items())
        ]
        keep(folder, "attendance", [cell], metrics={one.metric: one.figure for one in of_cell})
    return cells


def reported(folder: Path, name: str) -> tuple[str, str]:
    """The verdict, and the page."""
    outcome = write_report(folder, "laptop", folder / "report.html", folder / "pages")
    status = next(row["status"] for row in outcome["verdicts"] if row["experiment"] == name)
    return status, (folder / "pages" / f"{name}.md").read_text()


def test_cells_with_other_settings_than_the_presets_are_not_judged_and_further_seeds_are(tmp_path: Path) -> None:
    cells = attended(tmp_path)
    others = [replace(cell, method_settings={"min_survivors": 2}) for cell in cells if cell.s == 3]
    keep(tmp_path, "attendance", others, metrics={"applied": 0.1, "contributing": 0.1})
    status, page = reported(tmp_path, "attendance")
    assert status == HOLDS
    assert "36 cells" in page
    assert "Run: m 10, 32; f 0; s 2, 3, 4, 5, 6; rounds 400; seed 0." in page, "nobody trained, on no data"
    assert "6 of the cells have other settings than the preset's" in page
    assert "6 of the cells have other settings than the preset's" in (tmp_path / "report.html").read_text()
    assert len((tmp_path / "pages" / "attendance.csv").read_text().splitlines()) == 1 + 36
    keep(tmp_path, "attendance", [replace(cell, seed=3) for cell in cells], metrics={"applied": 0.1, "contributing": 0.1})
    status, page = reported(tmp_path, "attendance")
    assert status == FAILS
    assert "6 of the cells have other settings" in page


def test_where_nothing_was_run_as_the_preset_asks_all_is_judged_and_the_page_says_so(tmp_path: Path) -> None:
    cells = load_experiment("coordinates").cells("laptop", {"rounds": 150})
    keep(tmp_path, "coordinates", cells, metrics={"best_accuracy": 0.1})
    _, page = reported(tmp_path, "coordinates")
    assert "rounds 150" in page
    assert "alie: min and honest" in page
    assert "None of the 36 planned cells has been run, only others." in page
    assert "These are not the preset's settings" in page
    assert "These are not the preset's settings" in (tmp_path / "report.html").read_text()


def test_the_page_of_a_claim_names_the_versions_of_the_sources_that_its_cells_came_from(tmp_path: Path) -> None:
    first, *rest = attended(tmp_path)
    metrics = {"applied": 1.0, "contributing": 1.0}
    keep(tmp_path, "attendance", [first], metrics=metrics, code={"sources": "bbbb"})
    keep(tmp_path, "attendance", [replace(first, rounds=1)], metrics=metrics, code={"sources": "cccc"})
    _, page = reported(tmp_path, "attendance")
    assert f"Versions of the sources: aaaa ({len(rest)} cells), bbbb (1 cell)." in page
    assert f"Versions of the sources: aaaa ({len(rest)} cells), bbbb (1 cell)." in (tmp_path / "report.html").read_text()


def test_the_page_names_every_rate_that_was_chosen_with_what_it_depends_on_and_none_that_was_not(tmp_path: Path) -> None:
    many, few = Cell(rule="median", f=7, rate=0.5, seed=0), Cell(rule="median", f=3, rate=1.0, seed=0)
    cells = [many, replace(many, seed=1), few, replace(few, rule="mean", rate=0.2), replace(few, record_epsilon=8.0, rate=120.0)]
    keep(tmp_path, "strong_attacks", cells, metrics={"best_accuracy": 0.1})
    results = ResultFolder(tmp_path).load("strong_attacks", "laptop")
    section = Section(load_experiment("strong_attacks"), results, Verdict(UNTESTED, ""), None, tunes=True)
    names = "pre = none, beta = 0.9, I = 1"
    assert section.tuned.split("; ") == [
        f"FedREP, rule = mean, {names}: 0.2",
        f"FedREP, rule = median, {names}, f = 3: 1",
        f"FedREP, rule = median, {names}, f = 7: 0.5",
    ]
    assert not replace(section, tunes=False).tuned
