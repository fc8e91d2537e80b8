"""Disks that can be full: a small tmpfs where this machine lets us mount one, and a sentence where not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FILLER = ".filler"


def can_mount(folder: Path) -> bool:
    """Tried, not guessed: containers forbid it to root too."""
    probe = folder / "probe"
    probe.mkdir(parents=True)
    try:
        if os.geteuid() != 0 or not _mount(probe, 1):
            return False
        _unmount(probe)
        return True
    finally:
        probe.rmdir()


class SmallDisk:
    """A file system of its own at `folder`, until `close`."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if not _mount(folder, megabytes):
            raise OSError(f"cannot mount a tmpfs at {folder}")

    def fill(self) -> None:
        """Until not a byte is left."""
        with (self.folder / FILLER).open("ab") as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        os.write(file.fileno(), bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        (self.folder / FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        _unmount(self.folder)


def _mount(folder: Path, megabytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
