"""An exported model made whole: the run's parameters with what never leaves a silo, estimated on the exporter's own data."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fedrep.errors import SettingsError
from fedrep_silo.config import load_silo_settings
from fedrep_trainers.build import build_trainer
from fedrep_trainers.layout import read_model
from fedrep_trainers.trainer import ModelExporter


def whole_model(parameters: bytes, config: Path, metadata: dict[str, str]) -> bytes:
    """A safetensors file of every tensor that the trainer's model has; refuses where the trainer cannot give them all."""
    trainer = build_trainer(load_silo_settings(config).trainer)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        file.write_bytes(parameters)
        layout, vector = read_model(file)
    difference = trainer.layout.difference(layout)
    if difference is not None:
        raise SettingsError(f"The trainer in {config} makes another model than the run's: {difference}.")
    if not isinstance(trainer, ModelExporter):
        raise SettingsError(f"The trainer in {config} cannot export a model: it has no method `export`.")
    return save({name: np.asarray(array, order="C") for name, array in trainer.export(vector).items()}, metadata)
