"""`python -m tests.stress`: the suite again and again while something else keeps every core busy, and once in a shuffled order.

A test that fails here and passes alone waits for a clock, or needs another one before it: both are faults of the test. What keeps
the machine busy is counting in as many processes as there are cores; they end with this program.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LEFT_OUT = ("tests/chaos/test_random_kills.py", "tests/images")
SUITE = ["-n", "2", "--dist", "loadfile", "--durations", "40", *(f"--ignore={path}" for path in LEFT_OUT)]
# It ends when its parent does: whoever is adopted by another process has lost its own.
COUNTING = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))\n"


@contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", COUNTING]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def play(options: list[str], log: Path) -> dict[str, Any]:
    """One run of the suite; what pytest prints goes to the log, and to the screen where a test fails."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", *SUITE, *options]
    with log.open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)))
    return {"seconds": time.monotonic() - began, "code": code, "failed": failed, "last_line": text.strip().splitlines()[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="runs in the usual order, with every core busy")
    parser.add_argument("--shuffled", type=int, default=1, help="runs in a shuffled order, with every core busy")
    parser.add_argument("--seed", type=int, help="of the shuffled order; drawn and shown if absent")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="processes that count")
    parser.add_argument("--folder", type=Path, default=Path(".stress"), help="for the logs")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("tests", nargs="*", help="files or folders; all if absent")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    seed = options.seed if options.seed is not None else secrets.randbits(31)
    orders: list[list[str]] = [[] for _ in range(options.times)] + [
        ["--shuffle", str(seed + number)] for number in range(options.shuffled)
    ]
    runs = []
    with busy_cores(options.busy):
        for number, order in enumerate(orders, 1):
            log = options.folder / f"{number}.log"
            run = play([*order, *options.tests], log) | {"order": " ".join(order) or "as always"}
            runs.append(run)
            print(f"{number} of {len(orders)} ({run['order']}): {run['last_line']}", flush=True)
            for test in run["failed"]:
                print(f"  {test}: see {log}", flush=True)
    failures = sum(run["code"] != 0 for run in runs)
    print(f"{len(runs) - failures} of {len(runs)} runs passed with {options.busy} other processes that never rest")
    if options.json:
        options.json.write_text(json.dumps({"busy": options.busy, "seed": seed, "runs": runs}, indent=2) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
