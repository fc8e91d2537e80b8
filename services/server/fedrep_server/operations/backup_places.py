"""Where backups go: a file, a folder that keeps the newest, or an object store by an address that fsspec knows.

An object store gets a whole backup or none: it is written to a temporary file first.
"""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep_server.operations.backup import BackupReport

NAME = "fedrep-%Y%m%dT%H%M%SZ.tar"
_OURS = re.compile(r"fedrep-\d{8}T\d{6}Z\.tar$")


def name_of_now() -> str:
    return dt.datetime.now(dt.UTC).strftime(NAME)


Make = Callable[[Path], BackupReport]


def write_backup(target: str, make: Make, keep: int | None = None) -> tuple[str, int, BackupReport]:
    """The place it went to and its size. A target that ends with / or is a folder gets a file named after the time."""
    if "://" not in target:
        return _to_file(target, make, keep)
    place = f"{target}{name_of_now()}" if target.endswith("/") else target
    store, path = _store(place)
    with _in_sentences(place), tempfile.TemporaryDirectory() as scratch:
        if store.exists(path):
            raise SettingsError(f"There is something at {place} already. Give another name, or move it away.")
        local = Path(scratch) / "backup.tar"
        report = make(local)
        size = local.stat().st_size
        store.makedirs(store._parent(path), exist_ok=True)
        store.put_file(str(local), path)
        if store.size(path) != size:
            raise StoreUnavailableError(f"{place} is not as long as what was sent. Take another backup.")
        if keep is not None:
            for old in _older(store.ls(store._parent(path), detail=False), keep):
                store.rm_file(old)
    return place, size, report


def _to_file(target: str, make: Make, keep: int | None) -> tuple[str, int, BackupReport]:
    path = Path(target)
    if target.endswith("/") or path.is_dir():
        path = path / name_of_now()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(f"The folder {path.parent} cannot be made: {error.strerror}.") from error
    report = make(path)
    if keep is not None:
        for old in _older([str(found) for found in path.parent.iterdir()], keep):
            Path(old).unlink()
    return str(path), path.stat().st_size, report


@contextmanager
def local_copy(source: str) -> Iterator[Path]:
    """The backup as a file of this machine."""
    if "://" not in source:
        yield Path(source)
        return
    store, path = _store(source)
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) / "backup.tar"
        with _in_sentences(source):
            store.get_file(path, str(local))
        yield local


def _older(found: list[str], keep: int) -> list[str]:
    """Only files that this program has named: what else lies there is somebody's."""
    return sorted(name for name in found if _OURS.search(name))[:-keep]


def _store(address: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise SettingsError(f"{address} needs fsspec: install fedrep[backup], and the driver of your store beside it.") from None
    try:
        store, path = fsspec.core.url_to_fs(address)
    except (ValueError, ImportError) as error:
        raise SettingsError(
            f"{address} cannot be opened: {error}. Install the store's driver for fsspec (s3fs, gcsfs, adlfs, ...)."
        ) from error
    return store, str(path)


@contextmanager
def _in_sentences(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise StoreUnavailableError(
            f"{place} cannot be used: {error}. Check the address, the credentials and the way there."
        ) from error
