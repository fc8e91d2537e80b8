"""Vectors in chunks: any model passes the default message cap, and nothing is allocated on a peer's word alone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

from fedrep.errors import DecodeError

CHUNK_BYTES = 512 * 1024


def cut_into_chunks(data: bytes | memoryview, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(view), size):
        yield bytes(view[start : start + size])


class Assembler:
    """Collects a stream whose header announced `size` bytes with hash `sha256`; never holds more than `limit` bytes."""

    def __init__(self, size: int, sha256: bytes, limit: int, what: str) -> None:
        if size > limit:
            raise DecodeError(f"{what}: {size} bytes announced, at most {limit} are possible here", reason="TOO_LARGE")
        self.size = size
        self._sha256 = sha256
        self._what = what
        self._data = bytearray()  # not a list of chunks: millions of tiny ones would cost many times their bytes

    @property
    def count(self) -> int:
        return len(self._data)

    def add(self, chunk: bytes) -> None:
        if len(self._data) + len(chunk) > self.size:
            raise DecodeError(f"{self._what}: more bytes than the {self.size} announced", reason="TOO_LARGE")
        self._data += chunk

    def finish(self) -> bytes:
        return bytes(self.take())

    def take(self) -> bytearray:
        """What was collected, without a copy of it, for what is as large as a model."""
        if len(self._data) != self.size:
            message = f"{self._what}: the stream ended after {len(self._data)} of {self.size} bytes"
            raise DecodeError(message, reason="TRUNCATED")
        data, self._data = self._data, bytearray()
        if not hmac.compare_digest(hashlib.sha256(data).digest(), self._sha256):
            raise DecodeError(f"{self._what}: the bytes do not have the announced SHA-256; send them again", reason="WRONG_HASH")
        return data
