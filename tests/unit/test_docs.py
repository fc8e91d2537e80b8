"""What the documents point at exists: tests named as evidence, files, commands, and links between pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fedrep_cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = "tests|services|fedrep|docs|dashboard|lab|deploy|benchmarks|proto"


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def tests() -> dict[Path, str]:
    return {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_test_that_a_page_names_exists(page: Path, tests: dict[Path, str]) -> None:
    text = page.read_text()
    defined = {name for source in tests.values() for name in re.findall(r"def (test_\w+)\(", source)}
    assert set(re.findall(r"`(test_\w+)`", text)) <= defined
    assert set(re.findall(r"`(test_\w+\.py)`", text)) <= {path.name for path in tests}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_and_link_on_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    files = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text))
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
    assert [link for link in sorted(links) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_on_a_page_is_one(page: Path) -> None:
    text = page.read_text()
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    typed = re.findall(r"`fedrep ([a-z]+)", text) + [found[1] for line in lines if (found := re.match(r"fedrep ([a-z]+)", line))]
    assert set(typed) <= set(COMMANDS)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_the_threat_model_names_evidence_for_every_adversary_in_it() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    adversaries = text.partition("## Adversaries")[2].partition("\n## ")[0].split("\n### ")[1:]
    silent = [part.splitlines()[0] for part in adversaries if "test_" not in part and "tests/" not in part]
    assert len(adversaries) >= 5
    assert silent == []


@pytest.mark.parametrize("record", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda record: record.stem)
def test_every_decision_is_dated_and_of_one_form(record: Path) -> None:
    form = r"# .+\n\n- \*\*Date:\*\* \d{4}-\d\d-\d\d\n- \*\*Status:\*\* \w.*\n\n## Context\n\n"
    assert re.match(form, record.read_text())
    assert re.findall(r"^##? .*", record.read_text(), re.MULTILINE)[1:] == ["## Context", "## Decision", "## Consequences"]


def test_the_walk_of_an_update_passes_at_most_twenty_files_and_none_twice() -> None:
    steps = re.findall(r"^(\d+)\. `([\w./]+)`", (ROOT / "docs" / "walk.md").read_text(), re.MULTILINE)
    files = [file for _, file in steps]
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 15 <= len(files) <= 20
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert [file for file in files if files.count(file) > 1] == []


def test_the_walk_names_files_only_as_its_steps() -> None:
    text = (ROOT / "docs" / "walk.md").read_text()
    assert re.findall(r"(?<!^)[\w/]+\.py", re.sub(r"^\d+\. `[\w./]+`", "", text, flags=re.MULTILINE)) == []


def test_setup_says_what_it_does_before_every_step_that_takes_long() -> None:
    """As `make` would carry it out; nothing is carried out."""
    command = ["make", "--dry-run", "--always-make", "setup"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    slow = [number for number, line in enumerate(planned) if re.search(r" -m venv | pip .*install | dashboard/build\.py", line)]
    assert len(slow) == 5
    assert all(planned[number - 1].startswith('echo "setup: ') for number in slow)
