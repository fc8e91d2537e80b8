"""Append-only record of everything that left the silo: when, what, how many bytes, with whom, at which cost in epsilon.

Trainings that state what they cost the records stand there too, with no bytes.
An entry is on the disk before its bytes leave, so the record may show a message that never arrived, never the reverse: not even
after a power cut. Where a silo's state goes to the disk before the same message, its entry goes there with it, in the log of
changes, and only then into this file, which waits for no disk: after a power cut `complete` takes from the log what is missing.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrep_runtime.files import sync_folder
from fedrep_runtime.json_text import parsed

ENTRY = {"at", "what", "bytes", "round"}


@dataclass(frozen=True, slots=True)
class AuditLine:
    what: str
    size: int
    round: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """As of now."""
        entry = {"at": round(time.time(), 3), "what": self.what, "bytes": self.size, "round": self.round, **self.details}
        return json.dumps(entry, separators=(",", ":"))


class Audit:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = False

    def sent(self, what: str, size: int, round_number: int, **details: Any) -> None:
        self.add(AuditLine(what, size, round_number, details))

    def add(self, *lines: AuditLine) -> None:
        self.append([line.text() for line in lines])

    def append(self, texts: Iterable[str], *, durably: bool = True) -> None:
        """JSON lines. One that a crash or a full disk cut short is skipped by `entries`; the next begins on a line of its own."""
        text = "".join(f"{line}\n" for line in texts).encode()
        is_new = not self._known and not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if not _ends_whole(descriptor):
                text = b"\n" + text
            if os.write(descriptor, text) != len(text):
                raise OSError(errno.ENOSPC, "took only a part of an entry", str(self._path))
            if durably:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self._path.parent)
        self._known = True

    def sync(self) -> None:
        """All that was appended is on the disk when this returns."""
        with self._path.open("rb") as file:
            os.fdatasync(file.fileno())

    def complete(self, texts: Sequence[str]) -> None:
        """Appends, durably, those that are not here."""
        here = set(self._path.read_bytes().splitlines()) if texts and self._path.exists() else set()
        if missing := [text for text in texts if text.encode() not in here]:
            self.append(missing)

    def entries(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        for line in self._path.read_bytes().splitlines():
            try:
                entry = parsed(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.keys() >= ENTRY:
                yield entry


def _ends_whole(descriptor: int) -> bool:
    """Looked at every time: another one may have written last."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
