"""What left the silo is on its disk, not only in the kernel's memory, when `sent` returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedrep.protocol.silo_effects import Save
from fedrep.protocol.silo_state import SiloState
from fedrep_silo.audit import Audit, AuditLine
from fedrep_silo.change_log import read_log
from fedrep_silo.state import StateFolder
from tests.harness.federation import StubTrainer


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


def spoken(state: SiloState) -> SiloState:
    """The next round begins."""
    return replace(state, journal=replace(state.journal, run="aa", last_round=state.journal.last_round + 1))


def rounds_of(folder: Path) -> list[int]:
    return [entry["round"] for entry in Audit(folder / "audit.jsonl").entries()]


def after_rounds(folder: Path, rounds: int, fold_at: int | None = None) -> None:
    """What a silo has on its disk that spoke in so many rounds."""
    kept = StateFolder(folder, fold_at=fold_at)
    state = kept.load(StubTrainer())
    for _ in range(rounds):
        state = spoken(state)
        kept.write(Save(state), [AuditLine("ProposeCoordinates", 10, state.journal.last_round)])


def test_an_entry_is_on_the_disk_with_the_state_that_its_message_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_rounds(tmp_path, 1)
    synced: list[list[bool]] = []
    real = os.fdatasync

    def noted(descriptor: int) -> None:
        real(descriptor)
        (log,) = tmp_path.glob("changes-*.log")
        synced.append(['"round":2' in entry for entry in read_log(log)[-1].notes["audit"]])

    kept = StateFolder(tmp_path)
    state = spoken(kept.load(StubTrainer()))
    monkeypatch.setattr(os, "fdatasync", noted)
    kept.write(Save(state), [AuditLine("ProposeCoordinates", 10, 2)])
    assert synced == [[True]], "one sync, of the log, which has the entry"
    assert rounds_of(tmp_path) == [1, 2]


@pytest.mark.parametrize("lost", [1, 2])
def test_entries_that_a_power_cut_took_from_the_audit_come_back_from_the_log(tmp_path: Path, lost: int) -> None:
    after_rounds(tmp_path, 3)
    path = tmp_path / "audit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-lost]) + bytes(7))  # it had grown, and some of its bytes never came
    StateFolder(tmp_path).load(StubTrainer())
    assert rounds_of(tmp_path) == [1, 2, 3]
    StateFolder(tmp_path).load(StubTrainer())
    assert rounds_of(tmp_path) == [1, 2, 3], "and none comes twice"


def test_a_log_is_not_given_up_before_the_audit_has_its_entries_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, unlink = Audit.sync, Path.unlink

    def synced(audit: Audit) -> None:
        happened.append("audit synced")
        sync(audit)

    def gone_now(path: Path, *, missing_ok: bool = False) -> None:
        happened.append(f"{path.name} gone")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Audit, "sync", synced)
    monkeypatch.setattr(Path, "unlink", gone_now)
    after_rounds(tmp_path, 4, fold_at=0)
    gone = [number for number, what in enumerate(happened) if what.startswith("changes-")]
    assert len(gone) >= 3
    assert all(happened[number - 1] == "audit synced" for number in gone)
    assert rounds_of(tmp_path) == [1, 2, 3, 4]
