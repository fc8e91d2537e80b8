"""What proposals from one data set have cost, a file for each run: outside the runs' own folders, and never purged.

A line for each charge, of which the last whole one counts: one that a crash cut short, or of which a power cut kept only some
pages, was not acknowledged, so nothing left that it would have paid for. A long file, or one that this process did not begin, is
written anew in one go.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from fedrep.errors import InvalidInputError, RefusedError, SettingsError
from fedrep.privacy import Ledger, sum_of
from fedrep_runtime.files import taking_turns, write_atomically
from fedrep_runtime.json_text import parsed

LONGEST_FILE = 2**14  # bytes: read whole at every question


class LedgerFolder:
    """Written before the proposal it pays for leaves; read anew at every question, for another run may have gone on.

    Charges take turns: what a charge rests on, the ledger as it was and what other runs have spent of the `budget`, holds when
    it is written. Two daemons with folders of their own can be in one run; the one that finds a charge of the other stops.
    """

    def __init__(self, folder: Path, silo: str, budget: float | None = None) -> None:
        self._folder = folder
        self._silo = silo
        self._budget = budget
        self._known: dict[str, Ledger] = {}  # as this process read or wrote it last
        self._sizes: dict[str, int] = {}  # of the files that this process wrote, whole lines all of them

    def of(self, run: str) -> Ledger:
        self._known[run] = self._now(run)
        return self._known[run]

    def elsewhere(self, run: str) -> float | None:
        """Asked for three times a round, so a plain listing of names. records.json, beside them, is `record_books`'."""
        own = self._path(run).name
        try:
            found = os.listdir(self._folder)  # noqa: PTH208 - names alone: a path for each costs more than reading them
        except FileNotFoundError:
            found = []
        others = sorted(name for name in found if "-" in name and name.endswith(".json") and name != own)
        return sum_of(0.0, *(ledger.total for ledger in (_read(self._folder / name) for name in others) if ledger.rounds))

    def write(self, run: str, ledger: Ledger) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with taking_turns(self._folder / ".ledgers.lock"):
            self._check(run, ledger)
            self._write(run, json.dumps(ledger.to_dict()).encode() + b"\n")
        self._known[run] = ledger

    def _check(self, run: str, ledger: Ledger) -> None:
        before = self._now(run)
        if before != self._known.get(run, Ledger()):
            raise SettingsError(
                f"{self._path(run)} was changed by somebody else: another daemon of {self._silo!r}, with a state folder of its "
                "own, is in the same run. Stop one of the two; nothing was sent"
            )
        if self._budget is None or ledger.rounds == before.rounds:
            return
        spent = sum_of(ledger.total, self.elsewhere(run))
        if spent is None or spent > self._budget:
            raise RefusedError(
                f"another run over these data spent what was left of the epsilon budget of {self._budget:g} at the same moment; "
                "nothing was sent. Raise epsilon_budget in this silo's policy to go on",
                reason="EPSILON_BUDGET",
            )

    def _now(self, run: str) -> Ledger:
        path = self._path(run)
        return _read(path) if path.exists() else Ledger()

    def _write(self, run: str, line: bytes) -> None:
        size = self._sizes.pop(run, LONGEST_FILE)
        if size + len(line) > LONGEST_FILE:
            write_atomically(self._path(run), line)
            size = 0
        else:
            self._add(self._path(run), line)
        self._sizes[run] = size + len(line)

    def _add(self, path: Path, line: bytes) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:  # somebody took it away, which this process never does
            return write_atomically(path, line)
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "took only a part of a charge", str(path))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, run: str) -> Path:
        return self._folder / f"{self._silo}-{run[:32]}.json"


def _read(path: Path) -> Ledger:
    try:
        *lines, rest = path.read_bytes().split(b"\n")
        if len(lines) > 1 and b"\0" in lines[-1]:
            lines.pop()
        return Ledger.from_dict(parsed(lines[-1] if lines else rest))
    except (OSError, ValueError, InvalidInputError) as error:
        raise SettingsError(
            f"{path} cannot be read ({error}). It holds what proposals from this data set have cost: restore it from a backup; "
            "without it the budget would start anew"
        ) from error
