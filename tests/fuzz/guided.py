"""One target, fuzzed with inputs that coverage chooses, in a process forked from this one: what it takes to import is paid once.

It needs atheris, which `make fuzz` installs beside the environment and not into it: it is made for few versions of Python.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

PACKAGES = ["fedrep", "fedrep_identity", "fedrep_runtime", "fedrep_server", "fedrep_silo", "fedrep_trainers"]
with redirect_stderr(StringIO()), atheris.instrument_imports(include=PACKAGES):  # it names every module
    from tests.fuzz.mutations import changed
    from tests.fuzz.targets import TARGETS, Message


def fuzz_apart(name: str, options: list[str], log: Path, crash: Path) -> tuple[int, float]:
    """Its exit code, and the processor time it had; what libFuzzer says goes to `log`, and what raised an error to `crash`."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            _fuzz(name, options, crash)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _fuzz(name: str, options: list[str], crash: Path) -> None:
    target = TARGETS[name]

    def one_input(data: bytes) -> None:
        try:
            target.accepts(data)
        except BaseException:
            crash.write_bytes(data)
            raise

    message = target.decode
    if isinstance(message, Message):

        def change(data: bytes, most: int, seed: int) -> bytes:
            return changed(message, data, most, seed, atheris.Mutate)

        atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=change)
    else:
        atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()
