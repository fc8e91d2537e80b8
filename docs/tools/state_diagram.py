"""Draws the state diagram of a round from the server's transition table, so that the page cannot say what the code does not do.

Reads `ServerRound.receive` and the methods it leads to, and runs none of them.

    python -m docs.tools.state_diagram            print the diagram
    python -m docs.tools.state_diagram --write    put it into docs/protocol.md
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedrep.protocol.messages import Phase
from fedrep.protocol.server_round import ServerRound

PAGE = Path(__file__).parents[1] / "protocol.md"
BEGIN, END = "<!-- state diagram: begin -->", "<!-- state diagram: end -->"

# The guards of rows that hold in every phase, in words; a new one needs its own.
_CONDITIONS = {"is_resend": "sent again with the same bytes", "": "of another phase"}

Edge = tuple[str, str, str]


@dataclass(frozen=True)
class Row:
    """One case of the table. No phases: the case holds in all of them. No events: it is the last one, which refuses."""

    phases: tuple[str, ...]
    events: tuple[str, ...]
    guard: str
    result: ast.expr | None


def rows() -> list[Row]:
    table = next(node for node in ast.walk(_methods()["receive"]) if isinstance(node, ast.Match))
    return [_row(case) for case in table.cases]


def edges() -> list[Edge]:
    """(phase, event, next phase), in the order of the phases; staying in a phase is an edge too."""
    found = {
        (phase, event, target or phase)
        for row in rows()
        if row.result is not None
        for phase in row.phases
        for event in row.events
        for target in _ends_of(row.result)
    }
    order = {phase.name: number for number, phase in enumerate(Phase)}
    return sorted(found, key=lambda edge: (order[edge[0]], order[edge[2]], edge[1]))


def diagram() -> str:
    """Mermaid, then the rows that hold in every phase."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(Phase)).name}"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for phase, event, target in edges():
        arrows.setdefault((phase, target), []).append(event)
    lines += [f"    {phase} --> {target}: {', '.join(events)}" for (phase, target), events in arrows.items()]
    lines += ["    DONE --> [*]", "```", "", "In every phase:", ""]
    for row in rows():
        if row.result is not None and not row.phases:
            events = ", ".join(f"`{event}`" for event in row.events)
            lines.append(f"- {events} {_CONDITIONS[row.guard]}: accepted, nothing changes")
        elif row.result is None:
            lines.append("- anything else: `OutOfPhaseError`, nothing changes")
    return "\n".join(lines)


@cache
def _methods() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(ServerRound)))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _row(case: ast.match_case) -> Row:
    last = case.body[-1]
    result = last.value if isinstance(last, ast.Return) else None
    guard = ast.unparse(case.guard).removeprefix("self._").removesuffix("(event)") if case.guard else ""
    if not isinstance(case.pattern, ast.MatchSequence):
        return Row((), (), guard, result)
    phase, event = case.pattern.patterns
    return Row(_names(phase), _names(event), guard, result)


def _names(pattern: ast.pattern) -> tuple[str, ...]:
    match pattern:
        case ast.MatchOr(patterns):
            return tuple(name for each in patterns for name in _names(each))
        case ast.MatchValue(ast.Attribute(attr=name)):
            return (name,)
        case ast.MatchClass(ast.Name(id=name)):
            return (name,)
        case ast.MatchAs(pattern=None):
            return ()
    raise ValueError(f"the transition table holds a pattern this drawing does not know: {ast.unparse(pattern)}")


def _ends_of(result: ast.expr) -> set[str | None]:
    """The phases after a returned expression; None where the phase stays."""
    if isinstance(result, ast.IfExp):
        return _ends_of(result.body) | _ends_of(result.orelse)
    ends: set[str | None] = set()
    for node in ast.walk(result):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _methods():
            ends |= _ends_of_call(node.func.attr, node)
    return ends or {None}


def _ends_of_call(name: str, call: ast.Call) -> set[str | None]:
    method = _methods()[name]
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr="phase")], value=ast.Attribute(attr=phase)):
                return {phase}
            case ast.Assign(targets=[ast.Attribute(attr="phase")], value=ast.Name()):
                argument = call.args[0]
                assert isinstance(argument, ast.Attribute)
                return {argument.attr}
    returned = [node.value for node in ast.walk(method) if isinstance(node, ast.Return) and node.value is not None]
    return {end for value in returned for end in _ends_of(value)}


def page_with(drawn: str, page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


def main(arguments: list[str]) -> None:
    if arguments == ["--write"]:
        PAGE.write_text(page_with(diagram(), PAGE.read_text()))
    else:
        sys.stdout.write(diagram() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
