"""Errors of a silo's own code, told as its author needs them: what, and in which of the author's lines.

Imports no torch. `FEDREP_DEBUG=1` shows the whole traceback besides.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from fedrep.errors import FedrepError

_NOT_THE_AUTHORS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def explained(error: BaseException) -> str:
    """Type, message, notes, and file and line of the author's own frame: "KeyError: 'folder' (trainer.py, line 12, in build)"."""
    if isinstance(error, FedrepError):
        return str(error)  # ours, and a sentence already
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {_message(error)}{notes}{_place(error)}"


def show_traceback(error: BaseException) -> None:
    """Where an error becomes a line of a table, and nobody would see it."""
    if os.environ.get("FEDREP_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)


def _message(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"there is no file {os.fspath(error.filename)!r}, looked for from {Path.cwd()}"
    if isinstance(error, KeyError) and len(error.args) == 1:
        return f"there is no {error.args[0]!r}"
    if isinstance(error, SyntaxError):
        return error.msg
    return str(error) or "without a message"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    found = _own_frame(error.__traceback__)
    if found is None:
        return ""
    frame, line = found
    code = frame.f_code
    inside = "" if code.co_name == "<module>" else f", in {code.co_name}"
    return f" ({Path(code.co_filename).name}, line {line}{inside})"


def _own_frame(trace: TracebackType | None) -> tuple[FrameType, int] | None:
    """The innermost frame that is neither ours, nor Python's, nor of a package that was installed."""
    found = None
    while trace is not None:
        frame = trace.tb_frame
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        installed = file.startswith(("<", *_NOT_THE_AUTHORS)) or "site-packages" in Path(file).parts
        if not installed and top != "fedrep" and not top.startswith("fedrep_"):
            found = frame, trace.tb_lineno
        trace = trace.tb_next
    return found
