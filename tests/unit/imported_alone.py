"""A program for an environment's own Python: imports modules one by one, then asks commands for help.

Prints as JSON what failed, what each import changed outside itself, and which commands did not end well. Uses the standard
library only, since it runs where nothing but the wheel and its dependencies are.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.metadata import distributions, entry_points
from typing import Any


def outside() -> dict[str, Any]:
    """What a program that only imports a library expects to find as it was."""
    root = logging.getLogger()
    structlog = sys.modules.get("structlog")
    return {
        "environment": dict(os.environ),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "logging": (root.level, root.handlers[:], root.filters[:], logging.root.manager.disable),
        "structlog": structlog is not None and structlog.is_configured(),
        "threads": threading.active_count(),
        "hooks": (sys.excepthook, threading.excepthook, sys.path[:]),
    }


def imported(modules: list[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    failed: dict[str, str] = {}
    changed: dict[str, list[str]] = {}
    for name in modules:
        before = outside()
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"
        after = outside()
        differences = [what for what in before if before[what] != after[what]]
        if differences:
            changed[name] = differences
    return failed, changed


def asked(commands: list[list[str]]) -> dict[str, str]:
    """Commands that did not end with 0, and what they said."""
    (script,) = entry_points(group="console_scripts", name="fedrep")
    main: Callable[[list[str]], int] = script.load()
    refused = {}
    for command in commands:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            code = main(command)
        if code != 0 or not said.getvalue():
            refused[" ".join(command)] = f"{code}: {said.getvalue()}"
    return refused


def run(modules: list[str], commands: list[list[str]]) -> None:
    failed, changed = imported(modules)
    names = sorted({str(found.metadata["Name"]).lower().replace("_", "-") for found in distributions()})
    report = {"failed": failed, "changed": changed, "refused": asked(commands), "distributions": names}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    run(*json.load(sys.stdin))
