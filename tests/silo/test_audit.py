"""What left the silo is on its disk, not only in the kernel's memory, when `sent` returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedrep_silo.audit import Audit


def test_an_entry_is_on_the_disk_before_its_bytes_leave_and_costs_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    synced: list[tuple[str, int]] = []

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            what = "folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "audit"
            synced.append((what, len(path.read_text().splitlines())))
            real(descriptor)

        return noted

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    audit = Audit(path)
    for number in (1, 2, 3):
        audit.sent("ProposeCoordinates", 10, number)
        assert synced[-1][1] == number, "synced after the line was written"
    assert synced == [("audit", 1), ("folder", 1), ("audit", 2), ("audit", 3)]
    assert [entry["round"] for entry in audit.entries()] == [1, 2, 3]
