"""What a command that sets something up did: one step after the other, each done once and kept when the command is repeated."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrep_runtime.files import write_atomically

DONE, KEPT = "done", "kept"


@dataclass(frozen=True)
class Step:
    what: str
    state: str
    text: str


def plain(steps: Iterable[Step]) -> list[dict[str, str]]:
    return [asdict(step) for step in steps]


def lines(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line each, the longer ones folded under their own beginning."""
    rows = list(steps)
    width = max((len(row["what"]) for row in rows), default=0)
    columns = min(shutil.get_terminal_size().columns, 100)
    return [
        textwrap.fill(
            row["text"],
            columns,
            initial_indent=f"  {row['state']:<4}  {row['what']:<{width}}  ",
            subsequent_indent=" " * (width + 10),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for row in rows
    ]


def next_lines(commands: Iterable[str]) -> list[str]:
    """`COMMAND    # comment`, the comment above, since both seldom fit beside each other."""
    shown = []
    for command, _, comment in (entry.partition("    # ") for entry in commands):
        shown += [f"  # {comment}"] if comment else []
        shown.append(f"  {command}")
    return shown


def settings_step(path: Path, make: Callable[[], str], text: str, mode: int = 0o644) -> Step:
    """A settings file is written once and whole; after that it belongs to the person."""
    if path.exists():
        return Step(path.name, KEPT, "was there already and is left as it is")
    write_atomically(path, make().encode(), mode)
    return Step(path.name, DONE, text)
