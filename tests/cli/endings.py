"""Whether processes are gone, as Linux shows it in /proc."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    """A zombie nobody has collected yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_ended(pids: list[int]) -> None:
    """With a limit, so that a child that never ends is a failure."""
    limit = time.monotonic() + 120
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < limit, f"these go on: {left}"
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """Children before their own children."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found
