"""Bytes per silo and direction since the last round was committed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from fedrep_server.store.rows import Traffic


class TrafficCounter:
    """Safe from any thread: what is added is in one take or in the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._up: Counter[str] = Counter()
        self._down: Counter[str] = Counter()

    def add(self, silo: str, up: int, down: int) -> None:
        with self._lock:
            self._up[silo] += up
            self._down[silo] += down

    def take(self) -> dict[str, Traffic]:
        """What came together since the last take."""
        with self._lock:
            up, self._up = self._up, Counter()
            down, self._down = self._down, Counter()
        return {name: Traffic(up[name], down[name]) for name in up.keys() | down.keys()}


def together(first: Mapping[str, Traffic], second: Mapping[str, Traffic]) -> dict[str, Traffic]:
    none = Traffic()
    sums = {name: (first.get(name, none), second.get(name, none)) for name in first.keys() | second.keys()}
    return {name: Traffic(one.up + other.up, one.down + other.down) for name, (one, other) in sums.items()}
