"""The daemon's status file: cheap to write, never in its way, and readable at any moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedrep_silo.status_file import LOOKS, PAGE, read_status, write_status


def test_it_is_written_in_place_and_keeps_its_length(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_status(path, {"phase": "training", "round": 1})
    file, length = path.stat().st_ino, path.stat().st_size
    write_status(path, {"phase": "idle"})
    assert (path.stat().st_ino, path.stat().st_size) == (file, length), "a rename, or another length, waits for the disk"
    assert read_status(path) == {"phase": "idle"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("lengths", [(10, PAGE + 10, 10), (3 * PAGE, 5)])
def test_nothing_is_left_of_a_longer_one(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    path = tmp_path / "status.json"
    for length in lengths:
        write_status(path, {"why": "x" * length})
        assert read_status(path) == {"why": "x" * length}


def test_a_write_that_the_disk_cuts_short_leaves_nothing_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pwrite = tmp_path / "status.json", os.pwrite
    write_status(path, {"phase": "training"})
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:8], offset))
    write_status(path, {"phase": "idle"})
    assert path.read_bytes() == b'{"phase"'
    with pytest.raises(ValueError, match="delimiter"):
        read_status(path)


def test_whoever_comes_in_the_middle_of_a_write_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read, looked = tmp_path / "status.json", Path.read_bytes, []
    write_status(path, {"phase": "training"})

    def torn(self: Path) -> bytes:
        looked.append(self)
        return read(self)[:9] if len(looked) < LOOKS else read(self)

    monkeypatch.setattr(Path, "read_bytes", torn)
    assert read_status(path) == {"phase": "training"}
    assert len(looked) == LOOKS
