"""Shell completion: the table of commands as a group of typer's, of which only the command under the cursor is imported.

The shell calls `fedrep` with COMPLETE_VARIABLE set, as typer's scripts do; `fedrep completion bash` prints the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.completion import completion_init, get_completion_script, shell_complete  # type: ignore[attr-defined]  # not re-exported
from typer.core import TyperCommand, TyperGroup

from fedrep_cli.loading import load_command
from fedrep_cli.main import COMPLETE_VARIABLE, Command
from fedrep_cli.output import JSON_HELP, emit

app = typer.Typer(add_completion=False)

WHERE = {
    "bash": 'add to ~/.bashrc: eval "$(fedrep completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit: eval "$(fedrep completion zsh)"',
    "fish": "write to ~/.config/fish/completions/fedrep.fish",
    "powershell": "add to $PROFILE",
}


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to complete in.")],
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Print the script that completes fedrep's commands and options in a shell."""
    script = get_completion_script(prog_name="fedrep", complete_var=COMPLETE_VARIABLE, shell=shell.value)
    result = {"shell": shell.value, "script": script, "where": WHERE[shell.value]}
    emit(result, as_json, lambda _: f"# {WHERE[shell.value]}\n{script}", fold=False)


class Commands(TyperGroup):
    """Names and help come from the table; a command's own options and sub-commands from its module."""

    def __init__(self, table: Mapping[str, Command]) -> None:
        super().__init__(name="fedrep", commands={name: TyperCommand(name, help=entry.help) for name, entry in table.items()})
        self._table = table

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self._table:
            return args[0], load_command(self._table[args[0]].target), args[1:]
        return super().resolve_command(ctx, args)


def complete(table: Mapping[str, Command], instruction: str) -> int:
    """Answers the shell; a command whose packages are missing has nothing to offer."""
    completion_init()
    try:
        return shell_complete(Commands(table), {}, "fedrep", COMPLETE_VARIABLE, instruction)
    except ModuleNotFoundError:
        return 0
