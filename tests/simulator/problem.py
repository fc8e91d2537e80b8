"""A small problem that simulations of tests train on: least squares with momentum, in microseconds."""

from __future__ import annotations

from typing import Any

from fedrep_trainers.settings import TrainerSettings
from tests.harness.federation import StubTrainer

RUN: dict[str, Any] = {"name": "run", "silos": [f"silo-{n}" for n in range(8)], "fraction": 0.2, "initial_range": 1.0}


def build(settings: TrainerSettings) -> StubTrainer:
    """A silo's data by its shard; the judge's, with all the data, are its own."""
    return StubTrainer(settings.shard_index if settings.shard_count > 1 else 1000)
