"""The model that a simulation ends with, as people load it, and the central one that it is measured against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedrep_runtime.files import write_atomically
from fedrep_runtime.json_text import parsed
from fedrep_simulator.engines import Engine
from fedrep_simulator.folder import CENTRAL_FILE, MODEL_FILE, Row, readable
from fedrep_simulator.simulation import measured_row
from fedrep_trainers.layout import Vector, write_tensors
from fedrep_trainers.user_errors import explained


class Central(Protocol):
    def on_step(self, text: str, /) -> None: ...
    def on_central(self, done: int, rounds: int, /) -> None: ...


def state_dict(engine: Engine, model: Vector) -> tuple[dict[str, Any], str]:
    """Every tensor by name, torch's own where the trainer is a torch module's; and what is missing, if anything."""
    note = ""
    try:
        arrays = engine.export(model)
    except Exception as error:  # user code may raise anything
        arrays, note = dict(engine.layout.split(model)), f"the model holds its trainable parameters only: {explained(error)}"
    if not engine.makes_tensors:
        return dict(arrays), note
    import torch

    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, note


def write_model(root: Path, engine: Engine, arrays: dict[str, Any]) -> Path:
    """Named safetensors, which `load_state_dict(load_file(...))` takes."""
    write_tensors(
        root / MODEL_FILE, {name: np.asarray(array) for name, array in arrays.items()}, {"fedrep.layout": engine.layout.digest}
    )
    return root / MODEL_FILE


def kept_central(root: Path | None, engine: Engine, rounds: int, listeners: Central) -> tuple[Row | None, str]:
    """Trained once for a folder; or None, and why it could not be."""
    path = root / CENTRAL_FILE if root is not None else None
    if path is not None and path.exists():
        with readable(path.parent):
            kept = parsed(path.read_bytes())
            return {**kept, "accuracy": kept["accuracy"]}, ""
    listeners.on_step("training the central model, on all data in one place")
    try:
        row = measured_row(engine.central(rounds, lambda done: listeners.on_central(done, rounds)))
    except Exception as error:  # user code may raise anything
        return None, f"there is no central model to compare with: {explained(error)}"
    if path is not None:
        write_atomically(path, json.dumps(row, allow_nan=False).encode(), 0o644)
    return row, ""
