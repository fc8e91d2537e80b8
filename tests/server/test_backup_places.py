"""Backups in folders and object stores: named after the time, whole or not there, and only our own are thinned out."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from fedrep.errors import SettingsError, StoreUnavailableError
from fedrep_server.operations import backup_places
from fedrep_server.operations.backup import BackupReport
from fedrep_server.operations.backup_places import local_copy, write_backup

REPORT = BackupReport("0001", 1, 2, 3)


def make(path: Path) -> BackupReport:
    path.write_bytes(b"a backup")
    return REPORT


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backup is a minute after the one before."""
    names = iter(f"fedrep-20260101T00{minute:02}00Z.tar" for minute in range(60))
    monkeypatch.setattr(backup_places, "name_of_now", lambda: next(names))


@pytest.mark.parametrize("store", ["folder", "memory"])
def test_the_newest_are_kept_and_what_is_not_ours_stays(store: str, tmp_path: Path) -> None:
    folder = f"{tmp_path}/backups/" if store == "folder" else f"memory://{tmp_path.name}/"
    places, path = fsspec.core.url_to_fs(folder)
    places.makedirs(path, exist_ok=True)
    places.pipe_file(f"{path.rstrip('/')}/fedrep-2026.tar", b"by hand")
    for _ in range(4):
        place, size, report = write_backup(folder, make, keep=2)
        assert (size, report) == (8, REPORT)
    names = sorted(name.rsplit("/", 1)[-1] for name in places.ls(path, detail=False))
    assert names == ["fedrep-2026.tar", "fedrep-20260101T000200Z.tar", "fedrep-20260101T000300Z.tar"]
    with local_copy(place) as file:
        assert file.read_bytes() == b"a backup"


def test_an_object_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}/one.tar"
    write_backup(place, make)
    with pytest.raises(SettingsError, match="already"):
        write_backup(place, make)


def test_a_store_that_is_not_known_or_not_there_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="cannot be opened"):
        write_backup("nowhere://bucket/", make)
    with pytest.raises(StoreUnavailableError, match="cannot be used"), local_copy("memory://nothing/here.tar"):
        pass
