"""A long cell that is interrupted goes on where it was: its state on disk, written in one go, every few minutes.

The file is read by the same code alone, from the folder of its own results, and removed with the cell's end; another version of
the sources starts the cell anew, as does a file that is damaged.
"""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrep_runtime.files import write_atomically

if TYPE_CHECKING:
    from fedrep_lab.simulation import Training


class Checkpoints:
    def __init__(self, path: Path, sources: str, every: float = 180.0) -> None:
        """`every` is in seconds: a cell that ends sooner is never written."""
        self._path = path
        self._sources = sources
        self._every = every
        self._last = time.monotonic()

    def restore(self, training: Training) -> int:
        """The last finished round; 0 if there is nothing to go on from."""
        try:
            found = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        try:
            kept: dict[str, Any] = pickle.loads(found)
            sources, state, number = kept["sources"], kept["state"], int(kept["round"])
        except Exception:  # what a damaged pickle raises can be anything
            return 0
        if sources != self._sources:
            return 0
        training.load_state(state)
        return number

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._every

    def save(self, training: Training, number: int) -> None:
        record = {"sources": self._sources, "round": number, "state": training.state()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, pickle.dumps(record), mode=0o600)
        self._last = time.monotonic()

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
