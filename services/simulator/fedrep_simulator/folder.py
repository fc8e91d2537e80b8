"""A simulation's folder: where it stands, so that the same command goes on after Ctrl-C or a power cut, and its results.

simulation.json            what is simulated
current                    names the folder below, and is replaced whole
round-000012/              where everything stood after round 12: server, silos, rounds so far
plain-mean/                the same of --compare
central.json               the figures of the model that was trained on all data in one place
history.json, .csv, .parquet, result.json, model.safetensors     the results
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedrep.errors import FedrepError, SettingsError
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.model_state import ModelState, ServerModel
from fedrep.protocol.run_progress import RunProgress, RunState
from fedrep.protocol.silo_state import SiloState
from fedrep_runtime.files import write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_silo.state import StateFolder
from fedrep_simulator.playing import Standing
from fedrep_simulator.traffic import Traffic, TrafficBook

Row = dict[str, Any]
TERMS, CURRENT, SERVER, ROUNDS = "simulation.json", "current", "server.safetensors", "rounds.json"
MODEL_FILE, CENTRAL_FILE, RESULT_FILE, MEAN_FOLDER = "model.safetensors", "central.json", "result.json", "plain-mean"
CODE = "code"  # of the terms
EPSILONS, NO_GUARANTEE = ("epsilon", "record_epsilon"), "none"
HISTORY_FILES = ("history.json", "history.csv", "history.parquet")


@dataclass(frozen=True)
class Sitting:
    """Everything after a round: `traffic` is (up, down) of every silo since the beginning, `books` what its records have cost."""

    standing: Standing
    rows: tuple[Row, ...]
    traffic: Mapping[str, tuple[int, int]]
    books: Mapping[SiloName, Mapping[str, Any]] = field(default_factory=dict)

    def book(self) -> TrafficBook:
        return TrafficBook({name: Traffic(*pair) for name, pair in self.traffic.items()})


class SimulationFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, described: Mapping[str, Any], mark: str, *, again: bool = False) -> None:
        """This folder is for that simulation; another one's is refused if a round of it is kept, unless it may be replaced."""
        path = self.root / TERMS
        if path.exists() and self._current() is not None and not again:
            with readable(self.root):
                before = parsed(path.read_bytes())
                other = _difference(before["terms"], described) if before["fingerprint"] != mark else None
            if other is not None:
                raise SettingsError(
                    f"{self.root} holds another simulation ({other}): give --out another folder, or --again to begin anew here"
                )
            return
        for name in (CURRENT, CENTRAL_FILE, RESULT_FILE, MODEL_FILE, *HISTORY_FILES):
            (self.root / name).unlink(missing_ok=True)
        for old in (*self.root.glob("round-*"), self.root / MEAN_FOLDER):
            shutil.rmtree(old, ignore_errors=True)
        write_atomically(path, _json({"fingerprint": mark, "terms": described}, own=True), 0o644)

    def save(self, sitting: Sitting) -> None:
        progress = sitting.standing.progress
        name = f"round-{progress.last_round:06d}" + ("-end" if progress.state.is_over else "")
        if self._current() == name:
            return
        target = self.root / name
        shutil.rmtree(target, ignore_errors=True)
        for silo, state in sitting.standing.silos.items():
            folder = StateFolder(target / "silos" / silo, private=bool(sitting.books))
            folder.save_journal(state.journal)
            folder.save_memory(state.memory, state.trainer)
        write_atomically(target / SERVER, _server_bytes(progress))
        kept = {"rows": sitting.rows, "traffic": sitting.traffic, "books": sitting.books}
        write_atomically(target / ROUNDS, _json(kept, own=True))
        write_atomically(self.root / CURRENT, name.encode())
        for old in self.root.glob("round-*"):
            if old.name != name:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, silos: Sequence[SiloName], parameters: int) -> Sitting | None:
        if self._current() is None:
            return None
        with readable(self.root):
            return self._loaded(silos, parameters)

    def _loaded(self, silos: Sequence[SiloName], parameters: int) -> Sitting:
        source = self.root / (self._current() or "")
        progress = _progress(source / SERVER)
        kept = parsed((source / ROUNDS).read_bytes())
        states = {}
        for silo in silos:
            folder = StateFolder(source / "silos" / silo)
            memory, trainer = folder.memory(parameters)
            states[silo] = SiloState(folder.journal(), memory, trainer, progress.model.state)
        traffic = {silo: (up, down) for silo, (up, down) in kept["traffic"].items()}
        return Sitting(Standing(progress, states), tuple(kept["rows"]), traffic, kept["books"])

    def _current(self) -> str | None:
        path = self.root / CURRENT
        return path.read_text(errors="replace") if path.exists() else None


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Files that a full disk or an editor has spoiled are one sentence."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError, FedrepError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{root} cannot be read ({reason}): --again begins anew") from error


def _server_bytes(progress: RunProgress) -> bytes:
    state = progress.model.state
    notes = {
        "state": progress.state.value,
        "reason": progress.reason,
        "last_round": progress.last_round,
        "clip_range": asdict(progress.clip_range),
        "version": state.version,
        "hash": state.hash.hex(),
        "chain": state.chain.hex(),
    }
    arrays = {"model": state.vector, "residual": progress.model.residual}
    data: bytes = save(arrays, {"fedrep": json.dumps(notes)})
    return data


def _progress(path: Path) -> RunProgress:
    with safe_open(path, "np") as file:
        notes = json.loads(file.metadata()["fedrep"])
        vector, residual = file.get_tensor("model"), file.get_tensor("residual")
    state = ModelState(vector, notes["version"], bytes.fromhex(notes["hash"]), bytes.fromhex(notes["chain"]))
    return RunProgress(
        RunState(notes["state"]),
        notes["reason"],
        notes["last_round"],
        ServerModel(state, residual),
        Attendance(),
        ClipRange(**notes["clip_range"]),
    )


def told(rows: Iterable[Row]) -> list[Row]:
    """As others read them: no guarantee is the word "none", since a null is easily read as zero."""
    return [{name: NO_GUARANTEE if value is None and name in EPSILONS else value for name, value in row.items()} for row in rows]


def write_history(root: Path, rows: Sequence[Row]) -> None:
    """As JSON and CSV, and as Parquet where pyarrow is installed, whose columns of numbers hold a null for "none"."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(told(rows))
    as_json, as_csv, as_parquet = (root / name for name in HISTORY_FILES)
    write_atomically(as_json, _json(told(rows)), 0o644)
    write_atomically(as_csv, text.getvalue().encode(), 0o644)
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        return
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), sink)
    write_atomically(as_parquet, sink.getvalue().to_pybytes(), 0o644)


def write_result(root: Path, result: Mapping[str, Any]) -> None:
    write_atomically(root / RESULT_FILE, _json(result), 0o644)


def _json(value: object, *, own: bool = False) -> bytes:
    """Others may read no NaN, which is no JSON; what only a simulation reads may hold one, such as an option of a trainer."""
    return (json.dumps(value, indent=1, allow_nan=own) + "\n").encode()


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for name, value in now.items():
        if before.get(name) == value:
            continue
        if name == CODE:
            return "the file with the trainer's code was another"
        if isinstance(value, Mapping) and isinstance(before.get(name), Mapping):
            return _difference(before[name], value)
        return f"its {name} was {before.get(name)!r}, now it is {value!r}"
    return "its model was another"
