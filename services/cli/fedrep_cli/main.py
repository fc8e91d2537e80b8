"""The `fedrep` command: a table of sub-commands, each imported only when it is called.

`fedrep --help` therefore imports neither numpy, torch nor grpc, not even typer. A sub-command is a typer app, with
one command or several; its module raises, and this one turns what was raised into one sentence on stderr and an exit
code.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedrep.errors import FedrepError
from fedrep_cli.output import ReaderGoneError, complain, stdout_for_results
from fedrep_runtime.ciphers import prefer_tls13


class Command(NamedTuple):
    target: str  # "module:typer app"
    help: str  # one line
    extra: str | None = None  # the optional dependencies it needs, named if one of them is missing


COMMANDS: Final[dict[str, Command]] = {
    "init": Command("fedrep_cli.init:app", "Set up a federation: authority, server, dashboard, invitations.", "server"),
    "up": Command("fedrep_cli.up:app", "Start what `fedrep init` set up, until Ctrl-C.", "server"),
    "join": Command("fedrep_cli.join:app", "Join with an invitation: enrol, settings, check, take part.", "client"),
    "demo": Command("fedrep_cli.demo:app", "A whole federation on this machine, attackers included.", "client"),
    "simulate": Command("fedrep_cli.simulate:app", "Your trainer with many silos and attackers, in this process.", "client"),
    "new": Command("fedrep_cli.new:app", "A folder with a trainer of your own that works at once."),
    "server": Command("fedrep_cli.server:app", "Run the federation server; init, check, backup, restore.", "server"),
    "run": Command("fedrep_cli.run:app", "Create, watch and steer runs as an admin.", "server"),
    "client": Command("fedrep_cli.client:app", "Run this silo; init, check, status, audit, export, leave.", "client"),
    "dashboard": Command("fedrep_cli.dashboard:app", "Watch and steer runs in the browser.", "dashboard"),
    "ca": Command("fedrep_cli.ca:app", "The consortium's certificate authority: init, sign, list, serve.", "server"),
    "silo": Command("fedrep_cli.silo:app", "Invite a silo (or another role) into the federation, or revoke it.", "server"),
    "enroll": Command("fedrep_cli.enroll:app", "Turn an invitation into a key and certificate on this machine.", "client"),
    "renew": Command("fedrep_cli.enroll:renew_app", "Get a new certificate before the old one ends.", "client"),
    "doctor": Command("fedrep_cli.doctor:app", "Why a silo does not get through, and what to do.", "client"),
    "epsilon": Command("fedrep_cli.epsilon:app", "What proposing coordinates costs in privacy, by round and in all."),
    "plan": Command("fedrep_cli.plan:app", "What a run's settings will give: buffers, slack, traffic, privacy.", "server"),
    "lab": Command("fedrep_cli.lab:app", "The paper's experiments: list, run, report.", "lab"),
    "version": Command("fedrep_cli.version:app", "What is installed here."),
    "completion": Command("fedrep_cli.completion:app", "The script that completes commands and options in your shell."),
}

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
CANNOT_CONNECT: Final = 3
FAULT: Final = 70
LOST_LEAD: Final = 75
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[int, str]] = {
    OK: "it worked",
    FAILED: "refused or failed; the reason is on stderr",
    USAGE: "the command line is wrong",
    CANNOT_CONNECT: "the other side could not be reached",
    FAULT: "a fault in fedrep itself; FEDREP_DEBUG=1 shows where",
    LOST_LEAD: "a server lost the lead to another one; it must be started again",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

COMPLETE_VARIABLE: Final = "_FEDREP_COMPLETE"  # set by the shell, see `fedrep_cli.completion`
LOOK_THERE: Final = (
    "Check the address, and that the server runs there (fedrep up, or fedrep server); fedrep doctor looks how far one gets."
)
UNREACHABLE_STATUS: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
OWN_PACKAGES: Final = frozenset(
    {"fedrep"}
    | {f"fedrep_{part}" for part in ("cli", "dashboard", "identity", "lab", "runtime", "server", "silo", "simulator", "trainers")}
)


def main(argv: Sequence[str] | None = None) -> int:
    if sys.stdout is None:  # closed by whoever started this, as `>&-` does
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for as long as the process lives
    try:
        code = _main(argv)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGoneError):
        return _reader_gone()
    if argv is None:
        end_over_training(code)
    return code


def end_over_training(code: int) -> None:
    """Does not return while a training goes on that was not waited for: Python would end its thread in the middle of a library's
    C++, which aborts the process, and a supervisor would take a silo that left politely for one that crashed."""
    training: Any = sys.modules.get("fedrep_silo.training")
    if training is not None and training.is_under_way():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and COMPLETE_VARIABLE in os.environ:
        from fedrep_cli.completion import complete

        return complete(COMMANDS, os.environ[COMPLETE_VARIABLE])
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(help_text())
        return OK
    if arguments[0] == "--version":
        print(f"fedrep {_version()}")
        return OK
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        complain("fedrep", _unknown(name))
        return USAGE
    program = f"fedrep {name}"
    try:
        return _run(program, COMMANDS[name], rest)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, ReaderGoneError):
        raise
    except Exception as error:
        if os.environ.get("FEDREP_DEBUG"):
            raise
        return _explain(program, COMMANDS[name], error)


def help_text() -> str:
    width = max(len(name) for name in COMMANDS)
    commands = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    return (
        "Usage: fedrep COMMAND [OPTIONS]\n\n"
        "Federated learning that is Byzantine-robust, communication-efficient and\nprivate at once.\n\n"
        f"Commands:\n{commands}\n\n"
        "Options:\n  --help     Show this text; `fedrep COMMAND --help` shows a command's own.\n"
        "  --version  Show the version.\n\n"
        f"Every command that prints a result takes --json.\n\nExit codes:\n{codes}"
    )


def _run(program: str, command: Command, arguments: Sequence[str]) -> int:
    prefer_tls13()
    from fedrep_cli.loading import load_command  # typer and rich, which `fedrep --help` does without

    with stdout_for_results() if "--json" in arguments else nullcontext():
        result = load_command(command.target).main(args=list(arguments), prog_name=program, standalone_mode=False)
    sys.stdout.flush()
    return result if isinstance(result, int) else OK


def _reader_gone() -> int:
    """`head`, or a pager that was left. Python would complain once more when it flushes stdout at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _explain(program: str, command: Command, error: Exception) -> int:
    """One sentence for what went wrong, and its exit code."""
    if isinstance(error, FedrepError):
        complain(program, str(error))
        return CANNOT_CONNECT if error.status in UNREACHABLE_STATUS else FAILED
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in OWN_PACKAGES:
        extra = f"fedrep[{command.extra}]" if command.extra else str(error.name)
        complain(program, f"the Python package {error.name!r} is missing; install {extra} (pip install '{extra}').")
        return FAILED
    usage = _usage_problem(program, error)
    if usage is not None:
        if usage:
            complain(program, usage)
        return USAGE
    status = _grpc_status(error)
    if status is not None:
        said = f"{status[1] or 'the server gave no reason'} ({status[0]})."
        unreachable = status[0] in UNREACHABLE_STATUS
        complain(program, f"the server cannot be reached: {said} {LOOK_THERE}" if unreachable else said)
        return CANNOT_CONNECT if unreachable else FAILED
    if isinstance(error, ConnectionError | TimeoutError):
        complain(program, f"cannot connect: {error or type(error).__name__}.")
        return CANNOT_CONNECT
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            complain(program, f"the disk is full{where}. Free some space and start again: what was written before is whole.")
        else:
            complain(program, f"{error.strerror or error}{where}.")
        return FAILED
    if isinstance(error.__cause__, EOFError):  # not of a prompt: typer makes an Abort of any
        error = error.__cause__
    if type(error).__name__ == "Abort" or "lost sys.stdin" in str(error):  # a prompt that got no answer, or could not ask
        if isinstance(error.__context__, KeyboardInterrupt):
            return INTERRUPTED
        complain(
            program, f"a question stayed without an answer: stdin has ended. Give the answers as options; see {program} --help."
        )
        return FAILED
    complain(program, f"{type(error).__name__}: {error} (this is a fault in fedrep; FEDREP_DEBUG=1 shows where).")
    return FAULT


def _usage_problem(program: str, error: Exception) -> str | None:
    """typer's own errors, known by their method: the class sits in a private module that moves between releases."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        print(format_message())
        return ""
    context = getattr(error, "ctx", None)  # of the very sub-command
    return f"{str(format_message()).rstrip('.')}. See {getattr(context, 'command_path', program)} --help."


def _grpc_status(error: Exception) -> tuple[str, str] | None:
    """(status, text) of a failed call, without importing grpc for commands that never use it."""
    grpc = sys.modules.get("grpc")
    if grpc is None or not isinstance(error, grpc.RpcError):
        return None
    return error.code().name, str(error.details() or "")


def _unknown(name: str) -> str:
    close = get_close_matches(name, COMMANDS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    what = "option" if name.startswith("-") else "command"
    return f"there is no {what} {name!r}.{hint} See fedrep --help."


def _version() -> str:
    from importlib.metadata import version

    return version("fedrep")


if __name__ == "__main__":
    sys.exit(main())
