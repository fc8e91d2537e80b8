"""What processes of a drill write down about themselves, one frame after the other, for the invariants to be checked against.

The product writes no such thing: a trace holds what a server sees anyway (sums) and what a silo would never tell (its memory). It
exists only where `traced` (traced.py) starts a process. A process may be killed at any moment, so a frame is either whole or not
there, and each process has a file of its own.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Frame:
    kind: str
    notes: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)


class TraceFile:
    """Appends frames; one write each, so that a kill leaves no half of two."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{len(list(folder.glob('*.trace'))):06d}-{os.getpid()}.trace"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._lock = threading.Lock()

    def note(self, kind: str, notes: dict[str, Any] | None = None, **arrays: NDArray[Any]) -> None:
        data = pickle.dumps((kind, notes or {}, arrays), protocol=5)
        with self._lock:
            os.write(self._file, _LENGTH.pack(len(data)) + data)


class TraceReader:
    """Reads on from where it stopped, in the order in which processes were started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new_frames(self) -> Iterator[Frame]:
        for path in sorted(self._folder.glob("*.trace")):
            yield from self._of(path)

    def _of(self, path: Path) -> Iterator[Frame]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
                (length,) = _LENGTH.unpack(head)
                data = file.read(length)
                if len(data) < length:
                    return  # being written, or cut short by a kill
                self._read[path] = file.tell()
                yield Frame(*pickle.loads(data))
