"""Prints the tables of both sides for docs/protocol.md, the server's as Mermaid diagrams: `--write` puts them there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from fedrep.protocol.messages import Phase
from fedrep.protocol.run_progress import RunState
from fedrep.protocol.server_round import IGNORED, TRANSITIONS
from fedrep.protocol.server_run import STATES
from fedrep.protocol.silo_table import GO_ON, TABLE
from fedrep.protocol.silo_table import Phase as SiloPhase

PAGE = Path(__file__).parents[1] / "protocol.md"


def marks(name: str) -> tuple[str, str]:
    """What a printed part stands between on the page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


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


def silo_table() -> str:
    lines = ["| phase | hears | does | and is then |", "|---|---|---|---|"]
    for (phase, event), row in TABLE.items():
        lines.append(f"| {phase.value} | `{event.__name__}` | `{row.action}` | {_then(row.to)} |")
    lines += ["", f"*On*: {', '.join(phase.value for phase in GO_ON)}."]
    always = (
        "`StopAsked` ends a silo that waits for a round, and any other after the round it is in; `LineLost` makes it join again."
    )
    return "\n".join([*lines, "", always, "An answer that nobody waits for, and what a phase does not list, changes nothing."])


def _then(phases: tuple[SiloPhase, ...]) -> str:
    if set(phases) >= set(GO_ON):
        return ", ".join([*(phase.value for phase in phases if phase not in GO_ON), "*on*"])
    return ", ".join(phase.value for phase in phases)


PARTS = {"state diagram": round_diagram, "run states": run_diagram, "silo table": silo_table}


def page_with_parts(page: str) -> str:
    for name, draw in PARTS.items():
        begin, end = marks(name)
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{draw()}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with_parts(PAGE.read_text()))
    else:
        sys.stdout.write("\n\n".join(draw() for draw in PARTS.values()) + "\n")
