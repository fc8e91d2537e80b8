"""What left the silo is on its disk, not only in the kernel's memory, when `sent` returns."""

from __future__ import annotations

import errno
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


def test_a_disk_that_takes_only_a_part_of_an_entry_is_an_error_and_spoils_no_other_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silo's trainings are entered beside its messages, by another `Audit` of the same file."""
    messages, trainings = (Audit(tmp_path / "audit.jsonl") for _ in range(2))
    messages.sent("Join", 100, 0)
    trainings.sent("training", 0, 1)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        for audit in (messages, messages, trainings):
            with pytest.raises(OSError, match="only a part") as refused:
                audit.sent("SubmitMaskedShare", 123456, 1)
            assert refused.value.errno == errno.ENOSPC
    trainings.sent("training", 0, 2)
    messages.sent("SubmitMaskedShare", 123456, 2)
    entered = [(entry["what"], entry["round"]) for entry in messages.entries()]
    assert entered == [("Join", 0), ("training", 1), ("training", 2), ("SubmitMaskedShare", 2)]


def test_an_entry_after_one_that_a_crash_cut_short_is_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    Audit(path).sent("Join", 100, 0)
    path.write_bytes(path.read_bytes() + b'{"at":1.0,"what":"Submit')
    Audit(path).sent("Leave", 10, 0)
    assert [entry["what"] for entry in Audit(path).entries()] == ["Join", "Leave"]
