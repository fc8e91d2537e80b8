"""Finished cells on disk: one JSON file each, written in one go, and CSV tables made from them.

A cell's file holds its settings in full and the code version, so a result can never be taken for that of other settings,
and a cell whose file is there is not run again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedrep
import fedrep_trainers
from fedrep.errors import DecodeError, SettingsError
from fedrep_lab.cell import Cell, cell_from
from fedrep_runtime.files import write_atomically

_DECIDING_MODULES = (
    "adversary",
    "attendance",
    "cell",
    "clipped_sums",
    "layers",
    "leaks",
    "lying_server",
    "measurements",
    "membership",
    "models",
    "private_silos",
    "record_noise",
    "shards",
    "silos",
    "simulation",
)


_OUTCOME = ("code", "parameters", "metrics", "history", "seconds", "cpu_seconds")  # what a result has beside its cell


@dataclass(frozen=True)
class Result:
    experiment: str
    preset: str
    cell: Cell
    code: Mapping[str, str]
    parameters: int
    metrics: Mapping[str, Any]
    history: list[dict[str, Any]]
    seconds: float
    cpu_seconds: float

    def value(self, name: str) -> Any:
        """A metric, or a setting of the cell."""
        return self.metrics[name] if name in self.metrics else getattr(self.cell, name)


@lru_cache(maxsize=1)
def code_version() -> dict[str, str]:
    """The release, and a digest of the sources that decide a result: the mathematics, the simulation, the trainers."""
    own = Path(__file__).parent
    digest = hashlib.sha256()
    for folder in (Path(fedrep.__file__).parent, Path(fedrep_trainers.__file__).parent, own / "methods"):
        for path in sorted(folder.rglob("*.py")):
            _add_source(digest, path, folder.parent)
    for name in _DECIDING_MODULES:
        _add_source(digest, own / f"{name}.py", own.parent)
    return {
        "fedrep": version("fedrep"),
        "sources": digest.hexdigest()[:16],
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def _add_source(digest: Any, path: Path, root: Path) -> None:
    digest.update(f"{path.relative_to(root)}\0".encode())
    digest.update(path.read_bytes())


class ResultFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, experiment: str, preset: str, cell: Cell) -> Path:
        return self.root / preset / experiment / f"{cell.key()}.json"

    def has(self, experiment: str, preset: str, cell: Cell) -> bool:
        return self.path(experiment, preset, cell).is_file()

    def adopt(self, experiment: str, preset: str, cell: Cell) -> bool:
        """Take over the same cell from another experiment, where it has been run; False if nobody has."""
        for path in sorted((self.root / preset).glob(f"*/{cell.key()}.json")):
            found = vars(self._read(path))
            self.write(experiment, preset, cell, {name: found[name] for name in _OUTCOME})
            return True
        return False

    def save(self, experiment: str, preset: str, cell: Cell, outcome: Mapping[str, Any]) -> None:
        self.write(experiment, preset, cell, {"code": code_version(), **outcome})

    def write(self, experiment: str, preset: str, cell: Cell, outcome: Mapping[str, Any]) -> None:
        """`outcome` names the code that it came from."""
        path = self.path(experiment, preset, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"experiment": experiment, "preset": preset, "cell": cell.plain(), **outcome}
        write_atomically(path, (json.dumps(record, allow_nan=False) + "\n").encode(), mode=0o644)

    def load(self, experiment: str, preset: str) -> list[Result]:
        """In the order of their files' names, which is no order; the reader sorts."""
        return [self._read(path) for path in sorted((self.root / preset / experiment).glob("*.json"))]

    def presets(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir() if path.is_dir()) if self.root.is_dir() else []

    def write_tables(self, experiment: str, preset: str) -> None:
        for name, text in tables_of(experiment, self.load(experiment, preset)).items():
            write_atomically(self.root / preset / name, text.encode(), mode=0o644)

    def _read(self, path: Path) -> Result:
        try:
            record = json.loads(path.read_text())
            return Result(
                record["experiment"],
                record["preset"],
                cell_from(record["cell"], "its cell"),
                dict(record["code"]),
                record["parameters"],
                {**record["metrics"]},
                [dict(point) for point in record["history"]],
                float(record["seconds"]),
                float(record["cpu_seconds"]),
            )
        except (ValueError, KeyError, TypeError, SettingsError) as error:
            raise DecodeError(f"{path} is not the result of a cell ({error}); remove it and run the experiment again.") from error


def tables_of(experiment: str, results: Iterable[Result]) -> dict[str, str]:
    """`EXPERIMENT.csv` with one row per cell, and `EXPERIMENT-history.csv` with one per evaluation."""
    cells, history = [], []
    for result in results:
        key = {"key": result.cell.key()}
        settings = {name: _flat(value) for name, value in result.cell.plain().items()}
        code = {f"code_{name}": value for name, value in result.code.items()}
        times = {"seconds": result.seconds, "cpu_seconds": result.cpu_seconds, "parameters": result.parameters}
        cells.append({**key, **settings, **{f"result_{name}": v for name, v in result.metrics.items()}, **times, **code})
        history += [{**key, **point} for point in result.history]
    named = {f"{experiment}.csv": cells, f"{experiment}-history.csv": history}
    return {name: to_csv(rows) for name, rows in named.items() if rows}


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
