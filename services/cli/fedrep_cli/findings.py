"""Findings of a check as a list that fits a narrow terminal: outcome, what was looked at, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def render_findings(result: Mapping[str, Any]) -> Any:
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(
        Column("", no_wrap=True),
        Column("check", max_width=24),
        Column("what was found, and what to do", overflow="fold"),
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    for row in result["findings"]:
        style = STYLES[row["outcome"]]
        found = Text(row["text"])
        if row["advice"]:
            found.append(f"\n{row['advice']}", style="bold")
        table.add_row(Text(row["outcome"], style), Text(row["check"]), found)
    return table
