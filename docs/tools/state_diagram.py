"""Prints the server's transition tables as Mermaid diagrams: `--write` puts them into docs/protocol.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from fedrep.protocol.messages import Phase
from fedrep.protocol.run_progress import RunState
from fedrep.protocol.server_round import IGNORED, TRANSITIONS
from fedrep.protocol.server_run import STATES

PAGE = Path(__file__).parents[1] / "protocol.md"


def mermaid(states: type[Enum], edges: Iterable[tuple[Enum, type, Enum]]) -> str:
    """The first state begins; one that no edge leaves is an end."""
    arrows: dict[tuple[Enum, Enum], set[str]] = {}
    for state, event, target in edges:
        arrows.setdefault((state, target), set()).add(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(states)).name}"]
    for state, target in ((a, b) for a in states for b in states if (a, b) in arrows):
        lines.append(f"    {state.name} --> {target.name}: {', '.join(sorted(arrows[state, target]))}")
    ends = [state for state in states if state not in {start for start, _ in arrows}]
    return "\n".join([*lines, *(f"    {end.name} --> [*]" for end in ends), "```"])


def round_diagram() -> str:
    edges = ((phase, event, target) for (phase, event), row in TRANSITIONS.items() for target in row.to)
    lines = [mermaid(Phase, edges), "", "In every phase:", ""]
    for ignored in IGNORED:
        events = ", ".join(f"`{event.__name__}`" for event in ignored.events)
        lines.append(f"- {events} {ignored.words}: accepted, nothing changes")
    return "\n".join([*lines, "- anything else: `OutOfPhaseError`, nothing changes"])


def run_diagram() -> str:
    return mermaid(RunState, ((state, event, target) for (state, event), target in STATES.items()))


def drawn(page: str) -> str:
    """The page with both diagrams as the tables have them now."""
    for name, diagram in (("state diagram", round_diagram()), ("run states", run_diagram())):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{diagram}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(drawn(PAGE.read_text()))
    else:
        sys.stdout.write(f"{round_diagram()}\n\n{run_diagram()}\n")
