"""Bytes per silo and direction since the last round was committed."""

from __future__ import annotations

from collections import Counter

from fedrep_server.store.rows import Traffic


class TrafficCounter:
    def __init__(self) -> None:
        self._up: Counter[str] = Counter()
        self._down: Counter[str] = Counter()

    def add(self, silo: str, up: int, down: int) -> None:
        self._up[silo] += up
        self._down[silo] += down

    def take(self) -> dict[str, Traffic]:
        """What came together since the last take."""
        taken = {name: Traffic(self._up[name], self._down[name]) for name in self._up.keys() | self._down.keys()}
        self._up.clear()
        self._down.clear()
        return taken
