"""Decoded pixels as .npy files: written once and atomically, then mapped, so that silos of one machine share the pages."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import SettingsError
from fedrep_trainers.whole_files import replacing

Scalar = TypeVar("Scalar", bound=np.generic)


def cache_folder(data_dir: Path, cache_dir: Path | None) -> Path:
    """The configured folder, else one beside the data, else (data on a read-only disk) one in the user's cache."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedrep"
    beside = data_dir / ".fedrep-cache"
    folder = cache_dir or (beside if os.access(data_dir, os.W_OK) else user_cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"decoded images cannot be kept in {folder}: {error}; set cache_dir") from error
    return folder


def fingerprint(sources: list[Path], root: Path) -> str:
    """Changes when a file comes, goes, or changes its size or time; cheaper by far than decoding."""
    digest = hashlib.sha256()
    skipped = len(str(root))
    for source in map(str, sources):
        status = os.stat(source)  # noqa: PTH116  Path.stat takes twice as long, and there may be 60,000 files
        digest.update(f"{source[skipped:]}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:20]


def cached_array(folder: Path, name: str, decode: Callable[[], NDArray[Scalar]]) -> NDArray[Scalar]:
    """The array called `name`, mapped read-only; decoded first if no process has done so yet, or its file is damaged."""
    path = folder / f"{name}.npy"
    array: NDArray[Scalar] | None = _mapped(path)
    if array is None:
        with _lock(folder / f"{name}.lock"):
            array = _mapped(path)  # another silo may have decoded while this one waited
            if array is None:
                _write(path, decode())
                array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _mapped(path: Path) -> NDArray[Any] | None:
    """None if there is no such file, or half of one."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError):
        return None
    return found


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, array: NDArray[np.generic]) -> None:
    with replacing(path) as file:
        np.save(file, array, allow_pickle=False)
