"""Clocks that can be wrong: a few lines of C, compiled here and loaded into a process, add what a file says to its wall clock."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


def compiled(folder: Path) -> Path | None:
    """The library, or None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class Clock:
    """Of one member of the federation, over all its restarts."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(8))

    def set(self, seconds: int) -> None:
        """So many ahead of the right time; the process, which has the file mapped, sees it at once."""
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET_FILE": str(self._file)}
