"""What proposals from one data set have cost, a file for each run: outside the runs' own folders, and never purged."""

from __future__ import annotations

import json
from pathlib import Path

from fedrep.errors import InvalidInputError, SettingsError
from fedrep.privacy import Ledger, sum_of
from fedrep_runtime.files import write_atomically
from fedrep_runtime.json_text import parsed


class LedgerFolder:
    """Written before the proposal it pays for leaves; read anew at every question, for another run may have gone on."""

    def __init__(self, folder: Path, silo: str) -> None:
        self._folder = folder
        self._silo = silo

    def of(self, run: str) -> Ledger:
        path = self._path(run)
        return _read(path) if path.exists() else Ledger()

    def elsewhere(self, run: str) -> float | None:
        # records.json, beside them, is `record_books`'.
        others = [path for path in sorted(self._folder.glob("*-*.json")) if path != self._path(run)]
        return sum_of(0.0, *(ledger.total for ledger in map(_read, others) if ledger.rounds))

    def write(self, run: str, ledger: Ledger) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(run), json.dumps(ledger.to_dict()).encode())

    def _path(self, run: str) -> Path:
        return self._folder / f"{self._silo}-{run[:32]}.json"


def _read(path: Path) -> Ledger:
    try:
        return Ledger.from_dict(parsed(path.read_bytes()))
    except (OSError, ValueError, InvalidInputError) as error:
        raise SettingsError(
            f"{path} cannot be read ({error}). It holds what proposals from this data set have cost: restore it from a backup; "
            "without it the budget would start anew"
        ) from error
