"""A file that only grows: one record for each small change, durable when `append` returns, unless that can wait.

A record is a header (mark, length, checksums) and a safetensors document. What a crash cut short was never acknowledged, or could
wait, so a reader leaves it out; damage anywhere else is an error, for records say what this silo has spoken and revealed. At most
the last record is not durable yet, so "anywhere else" is where a whole record follows.

The file is longer than its records, by zeros: a record that overwrites them changes nothing but its own bytes, and waits for them
alone, where a file that grows waits for the file system's own books too.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedrep.errors import SettingsError
from fedrep_runtime.json_text import parsed

MARK = b"FRc1"
_HEAD = struct.Struct("<4sQI")  # mark, length and checksum of the payload
_SUM = struct.Struct("<I")  # checksum of the head
HEADER_SIZE = _HEAD.size + _SUM.size
AHEAD = 2**18
START_ANEW = (
    "leave the run with `fedrep client leave --purge` and join as a new silo. An older copy of the folder is no help: it would "
    "send values a second time"
)


@dataclass(frozen=True, slots=True)
class Record:
    notes: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class ChangeLog:
    """`count` records in `size` bytes, all of them durable if it `is_safe`. One process writes; it opens the file through
    `continued` or `started`."""

    def __init__(self, path: Path, descriptor: int, count: int, size: int) -> None:
        self.path = path
        self.count = count
        self.size = size
        self.is_safe = True
        self._descriptor = descriptor
        self._length = size  # of the file
        self._closed = weakref.finalize(self, os.close, descriptor)  # also if its folder is just let go, as of a run that is over

    @classmethod
    def started(cls, path: Path) -> ChangeLog:
        """Empty; the caller makes its name durable."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fsync(descriptor)
        return cls(path, descriptor, 0, 0)

    @classmethod
    def continued(cls, path: Path) -> ChangeLog:
        """After its last whole record; what a crash cut short is taken off."""
        count = size = 0
        for _, end in _records(path):
            count, size = count + 1, end
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(descriptor, size)
        log = cls(path, descriptor, count, size)
        log.is_safe = not count  # the last one may have been waiting when its writer died
        return log

    def append(self, record: Record, *, durably: bool = True) -> None:
        """Not `durably`, it stays if this process ends, and is safe from a power cut with the next record.

        A second one in a row is made durable all the same: a power cut may keep the later and lose the earlier.
        """
        durably = durably or not self.is_safe
        payload = save(dict(record.arrays), {"fedrep": json.dumps(record.notes)})
        head = _HEAD.pack(MARK, len(payload), zlib.crc32(payload))
        data = head + _SUM.pack(zlib.crc32(head)) + payload
        end = self.size + len(data)
        zeros = bytes(AHEAD) if end > self._length else b""
        try:
            written = os.pwritev(self._descriptor, [data, zeros], self.size)
            if written < len(data):
                raise OSError(errno.ENOSPC, "took only a part of a record", str(self.path))
            if durably:
                os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.size)  # half a record must not lie before the next one
            self._length = self.size
            raise
        self._length = max(self._length, self.size + written)
        self.count += 1
        self.size = end
        self.is_safe = durably

    def close(self) -> None:
        self._closed()


def read_log(path: Path) -> list[Record]:
    return [record for record, _ in _records(path)]


def _records(path: Path) -> Iterator[tuple[Record, int]]:
    """Each whole record, with the offset of its end."""
    data, start = memoryview(path.read_bytes()), 0
    while (payload := _payload(path, data[start:])) is not None:
        start += HEADER_SIZE + len(payload)
        try:
            yield _record(bytes(payload)), start
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path) from error


def _payload(path: Path, rest: memoryview) -> memoryview | None:
    """Of the first record in `rest`; None at the end of the file, or where a crash cut it."""
    if len(rest) < HEADER_SIZE:
        return None
    head = rest[: _HEAD.size]
    mark, length, checksum = _HEAD.unpack(head)
    if mark != MARK or _SUM.unpack(rest[_HEAD.size : HEADER_SIZE])[0] != zlib.crc32(head):
        if _holds_another(rest):
            raise _damaged(path)
        return None  # the file had grown on disk, and not all of its bytes had come yet
    payload = rest[HEADER_SIZE : HEADER_SIZE + length]
    if len(payload) < length:
        return None
    if zlib.crc32(payload) != checksum:
        if _holds_another(rest):
            raise _damaged(path)
        return None
    return payload


def _holds_another(rest: memoryview) -> bool:
    """Whether a whole record stands somewhere behind bytes that are none."""
    data = rest.tobytes()
    start = data.find(MARK, 1)
    while start >= 0:
        head = data[start : start + _HEAD.size]
        if len(data) >= start + HEADER_SIZE and _SUM.unpack_from(data, start + _HEAD.size)[0] == zlib.crc32(head):
            _, length, checksum = _HEAD.unpack(head)
            payload = data[start + HEADER_SIZE : start + HEADER_SIZE + length]
            if len(payload) == length and zlib.crc32(payload) == checksum:
                return True
        start = data.find(MARK, start + 1)
    return False


def _record(payload: bytes) -> Record:
    size = int.from_bytes(payload[:8], "little")
    notes = parsed(parsed(payload[8 : 8 + size])["__metadata__"]["fedrep"])
    if not isinstance(notes, dict):
        raise ValueError("a record's notes are an object")
    return Record(notes, load(payload))


def _damaged(path: Path) -> SettingsError:
    return SettingsError(
        f"{path} is damaged. It belongs to the journal, which says in which rounds this silo spoke: {START_ANEW}"
    )
