"""A command as typer makes it, with what all of them share: `-h` beside `--help`, and a help in plain text.

typer would draw the help with rich, which takes `[trainer]` for a style and cuts the names of long options at 80 columns.
"""

from __future__ import annotations

import importlib
from typing import Any

from typer.main import get_command

HELP_OPTIONS = ["-h", "--help"]


def load_command(target: str) -> Any:
    """`target` is "module:typer app"."""
    module, _, attribute = target.partition(":")
    command = get_command(getattr(importlib.import_module(module), attribute))
    command.context_settings["help_option_names"] = HELP_OPTIONS
    _in_plain_text(command)
    return command


def _in_plain_text(command: Any) -> None:
    command.rich_markup_mode = None
    if command.help:
        command.short_help = command.help.partition("\n\n")[0]  # whole in the list of commands; else it is cut at a length
    for inner in getattr(command, "commands", {}).values():
        _in_plain_text(inner)
