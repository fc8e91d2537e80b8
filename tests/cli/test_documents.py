"""What the documents tell people to type can be typed: every command is there, with every option that is shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedrep_cli.loading import load_command
from fedrep_cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEMPLATE = ROOT / "services" / "cli" / "fedrep_cli" / "templates" / "shared" / "README.md"


def shown(text: str) -> Iterator[str]:
    """Lines of blocks, with those that go on in the next one, and what stands between backticks; from `fedrep` on."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)]:
        for part in re.split(r"&&|;|\|", line):
            found = re.match(r"\s*(?:\w+=\S+ )*(?:\S*bin/|.* -- )?fedrep(?= [a-z])(.*)", part)
            if found is not None:
                yield found[1]


@cache
def command(name: str) -> Any:
    return load_command(COMMANDS[name].target)


def problem(line: str) -> str | None:
    """Why it cannot be typed like this, if so."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None  # a sentence's apostrophe
    if words[0] not in COMMANDS:
        return f"there is no `fedrep {words[0]}`"
    here, path = command(words[0]), words[0]
    known = {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words[1:]:
        inner = getattr(here, "commands", {})
        if word in inner:
            here, path = inner[word], f"{path} {word}"
            known |= {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)}
        elif inner and re.fullmatch(r"[a-z]+", word) and path.count(" ") == 0 and not here.params:
            return f"there is no `fedrep {path} {word}`"
        elif word.startswith("--") and word.partition("=")[0] not in known | {"--help"}:
            return f"`fedrep {path}` has no option {word}"
    return None


@pytest.mark.parametrize("page", [*PAGES, TEMPLATE], ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_tells_people_to_type_can_be_typed(page: Path) -> None:
    wrong = {line.strip(): why for line in shown(page.read_text()) if (why := problem(line)) is not None}
    assert wrong == {}


@pytest.mark.parametrize("line", [" frobnicate", " run frobnicate x", " run show x --frobnicate", " join TOKEN --frobnicate=1"])
def test_what_cannot_be_typed_is_found(line: str) -> None:
    assert problem(line) is not None
