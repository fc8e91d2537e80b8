"""Prints the transition table of a round as a Mermaid diagram: `--write` puts it into docs/protocol.md."""

from __future__ import annotations

import sys
from pathlib import Path

from fedrep.protocol.messages import Phase
from fedrep.protocol.server_round import IGNORED, TRANSITIONS

PAGE = Path(__file__).parents[1] / "protocol.md"
BEGIN, END = "<!-- state diagram: begin -->", "<!-- state diagram: end -->"


def diagram() -> str:
    arrows: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, event), row in TRANSITIONS.items():
        for target in row.to:
            arrows.setdefault((phase, target), []).append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> PROPOSE"]
    for phase, target in ((a, b) for a in Phase for b in Phase if (a, b) in arrows):
        lines.append(f"    {phase.name} --> {target.name}: {', '.join(sorted(arrows[phase, target]))}")
    lines += ["    DONE --> [*]", "```", "", "In every phase:", ""]
    for ignored in IGNORED:
        events = ", ".join(f"`{event.__name__}`" for event in ignored.events)
        lines.append(f"- {events} {ignored.words}: accepted, nothing changes")
    return "\n".join([*lines, "- anything else: `OutOfPhaseError`, nothing changes"])


def page_with(drawn: str, page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{drawn}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with(diagram(), PAGE.read_text()))
    else:
        sys.stdout.write(diagram() + "\n")
