"""Child processes that end with their parent, whatever ends it, and whose output goes to one log file each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedrep.errors import FedrepError
from fedrep_cli.nursery import Grown, Nursery
from fedrep_cli.parent_death import CAN_END_WITH_PARENT, end_with_parent

GRACE_SECONDS = 8.0
_REASON = re.compile(r"fedrep [a-z]+: ")  # as `complain` writes it


class Processes:
    """`start` by name; leaving the context ends all of them, politely first."""

    def __init__(self, logs: Path, nurseries: Mapping[str, Nursery] | None = None) -> None:
        """`nurseries` by the commands whose processes are forked from them; all others are a new Python each."""
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._nurseries = nurseries or {}
        self._running: dict[str, subprocess.Popen[bytes] | Grown] = {}
        self._began: dict[str, int] = {}  # where in its log each of them begins

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        limit = time.monotonic() + GRACE_SECONDS
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(limit - time.monotonic(), 0.0))
            if process.poll() is None:
                process.kill()
                process.wait()

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
        """`fedrep ARGUMENTS`, its output appended to NAME.log."""
        path = self._logs / f"{name}.log"
        with path.open("ab") as log:
            self._began[name] = log.tell()
            if arguments and arguments[0] in self._nurseries:
                self._running[name] = self._nurseries[arguments[0]].start(arguments, path, environment or {})
                return
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedrep_cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the parent only, which then ends its children in order
                preexec_fn=partial(end_with_parent, os.getpid()) if CAN_END_WITH_PARENT else None,
            )

    def kill(self, name: str) -> None:
        """As a power cut would."""
        process = self._running[name]
        process.kill()
        process.wait()

    def running(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def failed(self) -> list[str]:
        """Names of those that ended by themselves with an error."""
        return [name for name, process in self._running.items() if (process.poll() or 0) > 0]

    def require(self, name: str) -> None:
        """Fails with the last words of a process that should be running."""
        process = self._running[name]
        code = process.poll()
        if code is not None and code < 0:
            raise FedrepError(
                f"{name} ended with code {code}: it was killed by signal {-code}, as by a system without memory; its log is "
                f"{self._logs / f'{name}.log'}. What it had written is whole: start it again"
            )
        if code is not None:
            raise FedrepError(f"{name} ended with code {code}: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """Why it ended, if it said so, however much was logged after that; else its last line. Nothing of those before it."""
        with (self._logs / f"{name}.log").open("rb") as log:
            log.seek(self._began.get(name, 0))
            lines = log.read().decode(errors="replace").strip().splitlines()
        reasons = [line for line in lines if _REASON.match(line)]
        return (reasons or lines or ["it said nothing"])[-1]


@contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM and a closed terminal leave through the same doors as Ctrl-C, so that children and files go too."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
