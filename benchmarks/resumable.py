"""Long benchmarks in steps: what a step measured is kept as soon as it ends, and a later call goes on with the missing ones.

A step has a name; what it measured is a JSON object. Steps of other settings than the present ones are left in the file and
take no part.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.machine import save


class Steps:
    """`seconds` is how long this call may begin new steps."""

    def __init__(self, path: Path, seconds: float | None, *, fresh: bool) -> None:
        self._path = path
        self._until = None if seconds is None else time.monotonic() + seconds
        self.done: dict[str, dict[str, Any]] = {}
        if path.exists() and not fresh:
            self.done = json.loads(path.read_text(encoding="utf-8")).get("steps", {})

    def play(self, steps: Iterable[tuple[str, Callable[[], dict[str, Any]]]]) -> bool:
        """Whether all of them are there now."""
        wanted = list(steps)
        for number, (name, step) in enumerate(wanted, 1):
            if name in self.done:
                continue
            if self._until is not None and time.monotonic() > self._until:
                missing = sum(name not in self.done for name, _ in wanted)
                print(f"{missing} of {len(wanted)} steps are left; the same command goes on with them", file=sys.stderr)
                return False
            print(f"[{number}/{len(wanted)}] {name}", file=sys.stderr, flush=True)
            begun = time.monotonic()
            self.done[name] = step() | {"took": round(time.monotonic() - begun, 1)}
            self.keep()
        return True

    def keep(self, **figures: Any) -> None:
        save(self._path, {**figures, "steps": self.done})


def add_options(parser: argparse.ArgumentParser, results: Path) -> None:
    parser.add_argument("--json", type=Path, default=results, help="where the figures are kept, and found by the next call")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew, not only what is missing")
    parser.add_argument("--seconds", type=float, help="begin no further step after so many seconds")
