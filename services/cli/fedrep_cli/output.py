"""How every command prints its result: one JSON object with `--json`, otherwise text for a person.

A command builds one mapping and hands it to `emit`; the text is rendered from that same mapping, so the two can never
disagree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from fedrep_runtime.texts import harmless, harmless_all, harmless_json

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST = 40
_COMMAND = re.compile(r" *(?:[A-Z_]+=\S+ )*(?:fedrep|kubectl|cp) ")
_HEAD = re.compile(r" *(?:- |\S+ {2,}|(?=\S))")
JSON_HELP = "Print the result as one JSON object."


_results: list[TextIO] = []  # where results go while stdout is kept for them


class ReaderGoneError(Exception):
    """Nobody reads the results any more. An OSError would not reach `main`: typer ends the process over a broken pipe."""


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Whatever else is printed meanwhile goes to stderr: a `print` in a user's trainer must not break the JSON."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def emit(
    result: Mapping[str, Any],
    as_json: bool,
    render: Callable[[Mapping[str, Any]], RenderableType],
    *,
    fold: bool = True,
) -> None:
    """Print `result` on stdout. `render` returns a string or anything rich can draw. Lines of a string that are too long for
    the terminal are folded at words unless `fold` is off, as for what programs read."""
    if as_json:
        text = harmless_json(json.dumps(result, ensure_ascii=False, allow_nan=False, default=_plain))
        try:
            print(text, file=_results[-1] if _results else sys.stdout, flush=True)
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        return
    drawn = render(harmless_all(result))
    if isinstance(drawn, str):
        width = columns() if fold else None
        print(drawn if width is None else folded(drawn, width))
        return
    from rich.console import Console  # a fifth of a second to import: only where something is drawn

    Console(file=sys.stdout).print(drawn)


def columns() -> int | None:
    """Of the terminal, or as COLUMNS says; None where no person reads along."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, NARROWEST)
    return None


def folded(text: str, width: int) -> str:
    """Under the beginning of what a line says, behind its indentation, dash or heading. Commands stay whole, to be copied."""
    lines: list[str] = []
    for line in text.splitlines():
        if len(line) <= width or _COMMAND.match(line):
            lines.append(line)
            continue
        found = _HEAD.match(line)
        head = found[0] if found is not None and len(found[0]) < width // 2 else ""
        options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
        lines += textwrap.wrap(line[len(head) :], width, initial_indent=head, subsequent_indent=" " * len(head), **options)
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def ask(text: str, **options: Any) -> Any:
    """A question goes where complaints go: what is printed stays the result alone."""
    import typer

    return typer.prompt(text, err=True, **options)


def insist(text: str) -> None:
    """Ends the command unless the answer is yes."""
    import typer

    typer.confirm(text, abort=True, err=True)


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
