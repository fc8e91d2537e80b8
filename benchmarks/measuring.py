"""What benchmarks measure with: processor time of calls that take turns, and processes that answer questions."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT

Work = Callable[[], Any]


def timed(work: Work) -> float:
    """Milliseconds of processor time."""
    begun = time.process_time()
    work()
    return 1e3 * (time.process_time() - begun)


def peak_mb() -> float:
    """The most memory this process has had. What `getrusage` says of a spawned one begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def interleaved(work: dict[str, Work], repeats: int) -> dict[str, float]:
    """The least milliseconds of each, all in turn within each repeat, so that a busy machine slows them alike."""
    best = dict.fromkeys(work, math.inf)
    for _ in range(repeats):
        for name, call in work.items():
            best[name] = min(best[name], timed(call))
    return best


class Worker:
    """A process that answers a line of JSON with a line of JSON, and is idle in between."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"The worker ended in the middle of {question}: its error stands above, or it ran out of memory (try --quick)."
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
