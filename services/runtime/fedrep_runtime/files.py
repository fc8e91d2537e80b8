"""Files that survive a crash: a reader sees the old bytes or the new, never a part; and one process owns a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedrep.errors import SettingsError


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    with replacing(path, mode) as descriptor, os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[int]:
    """Temporary file beside the target, fsync, rename, fsync of the folder: the order that makes rename a commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None  # the name that somebody asked for
    try:
        try:
            os.fchmod(descriptor, mode)
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - the pair of names is clearer side by side
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process. The kernel drops the lock when the process dies: no stale lock is left."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise SettingsError(
                f"The folder {folder} is in use by another process (id {holder}). "
                "Stop that process first, or give this one a folder of its own.",
                reason="FOLDER_IN_USE",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Wait for, then hold, the lock file at `path`: for short steps that several processes may want at once."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
