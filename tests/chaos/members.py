"""The processes of the federation: started, killed, paused, and started again when they end, as a supervisor does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.processes import REPOSITORY

RESTART_SECONDS = 1.0
MARK = "FEDREP_CHAOS"


@dataclass
class Usage:
    """What one process occupied at some age in seconds."""

    pid: int
    age: float
    mb: float
    files: int
    threads: int


@dataclass
class Member:
    """One part of the federation over all its restarts. `wanted` is False once it may stay away."""

    name: str
    command: Callable[[], list[str]]
    log: Path
    trace: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    wanted: bool = True
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    starts: int = 0
    exits: list[int] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.traced", str(self.trace), *self.command()]
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **self.environment}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, env=variables, stdout=output, stderr=output)
        self.started_at, self.ended_at = time.monotonic(), None
        self.starts += 1

    def tend(self) -> None:
        """Starts it again a moment after it ended."""
        if self.process is None or self.process.poll() is None:
            return
        if self.ended_at is None:
            self.ended_at = time.monotonic()
            self.exits.append(self.process.returncode)
        if self.wanted and time.monotonic() - self.ended_at >= RESTART_SECONDS:
            self.start()

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            assert self.process is not None
            self.process.send_signal(number)

    def look(self) -> None:
        """Notes what the process occupies now."""
        if not self.alive:
            return
        assert self.process is not None
        home = Path(f"/proc/{self.process.pid}")
        try:
            pages = int((home / "statm").read_text().split()[1])
            threads = int((home / "stat").read_text().rpartition(")")[2].split()[17])
            files = len(list((home / "fd").iterdir()))
        except OSError:
            return  # it ended while we looked
        mb = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.usage.append(Usage(self.process.pid, time.monotonic() - self.started_at, mb, files, threads))

    def end(self, seconds: float = 10.0) -> None:
        """It was told to; whoever takes longer is killed."""
        if self.process is None:
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def orphans(mark: str) -> list[str]:
    """Processes that carry the mark of this federation in their environment, and are not zombies."""
    found = []
    for home in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (home / "environ").read_bytes().split(b"\0") and int(home.name) != os.getpid():
                found.append((home / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
