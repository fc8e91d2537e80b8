"""Bytes per silo and direction since the last round was committed, and within the process for Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Traffic:
    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)

    def received(self, silo: str, size: int) -> None:
        self.up[silo] += size

    def sent(self, silo: str, size: int) -> None:
        self.down[silo] += size

    def take(self) -> dict[str, tuple[int, int]]:
        """(up, down) per silo since the last take."""
        taken = {name: (self.up[name], self.down[name]) for name in self.up.keys() | self.down.keys()}
        self.up.clear()
        self.down.clear()
        return taken
