"""docs/benchmarks.md says what the kept results say, and its pictures show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.environment import ROOT
from benchmarks.plots import draw
from benchmarks.report import IMAGES, PAGE, kept, page
from benchmarks.sections import number


def test_the_page_is_what_the_command_makes_of_the_kept_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(kept()), "run python -m benchmarks.report and commit the result"


def test_the_pictures_are_what_the_command_draws_from_the_kept_results(tmp_path: Path) -> None:
    drawn = draw(kept(), tmp_path)
    assert drawn
    for picture in drawn:
        assert (IMAGES / picture.name).read_bytes() == picture.read_bytes(), (
            "run python -m benchmarks.report and commit the result"
        )


def test_every_kept_result_says_where_and_when_it_was_measured() -> None:
    for name, figures in kept().items():
        missing = {"processor", "cores", "python", "date", "commit"} - figures["machine"].keys()
        assert not missing, f"{name} does not say {missing}"


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.01234, "0.0123"), (12.345, "12.3"), (99999.4, "99,999")])
def test_numbers_have_three_digits_and_no_powers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_writes_its_figures_where_it_is_told(name: str) -> None:
    """Read, not run: what some of them import takes longer than all tests of this file. Those that can be resumed share it."""
    files = [ROOT / "benchmarks" / f"{each}.py" for each in (name, "resumable")]
    own, shared = (path.read_text(encoding="utf-8") for path in files)
    assert '"--json", type=Path' in (shared if "from benchmarks.resumable import" in own else own)
