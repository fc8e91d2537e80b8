"""How every command prints its result: one JSON object with `--json`, otherwise text for a person.

A command builds one mapping and hands it to `emit`; the text is rendered from that same mapping, so the two can never
disagree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedrep_runtime.texts import harmless, harmless_all, harmless_json

if TYPE_CHECKING:
    from rich.console import RenderableType

JSON_HELP = "Print the result as one JSON object."


def emit(result: Mapping[str, Any], as_json: bool, render: Callable[[Mapping[str, Any]], RenderableType]) -> None:
    """Print `result` on stdout. `render` returns a string, printed as it is, or anything rich can draw."""
    if as_json:
        print(harmless_json(json.dumps(result, ensure_ascii=False, allow_nan=False, default=_plain)))
        return
    text = render(harmless_all(result))
    if isinstance(text, str):
        print(text)
        return
    from rich.console import Console  # a fifth of a second to import: only where something is drawn

    Console(file=sys.stdout).print(text)


def complain(program: str, sentence: str) -> None:
    """One line on stderr, where it does not mix with a result that is being piped."""
    print(f"{program}: {harmless(' '.join(sentence.split()))}", file=sys.stderr)


def stay_up(dashboard: str) -> None:
    """Until Ctrl-C, for people who watch."""
    from threading import Event

    print(f"\nThe dashboard stays up at {dashboard} until Ctrl-C.", file=sys.stderr)
    try:
        Event().wait()
    except KeyboardInterrupt:
        print(file=sys.stderr)


def _plain(value: object) -> object:
    """numpy scalars and arrays, paths and the like, without importing what a command did not need."""
    for method in ("tolist", "isoformat", "__fspath__"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
