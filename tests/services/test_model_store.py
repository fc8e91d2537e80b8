"""Model files: what is put comes back bit for bit, and damage never does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedrep.errors import NotFoundError, StoreUnavailableError
from fedrep.protocol.model_state import ModelState
from services.server.model_store import FolderModelStore, ModelStore


@pytest.fixture
def models(tmp_path: Path) -> ModelStore:
    return FolderModelStore(tmp_path / "models")


def put(models: ModelStore, run: str = "run", version: int = 0, seed: int = 0, size: int = 1000) -> tuple[ModelState, np.ndarray]:
    rng = np.random.default_rng(seed)
    state = ModelState.initial(rng.standard_normal(size).astype(np.float32))
    residual = rng.standard_normal(size).astype(np.float32)
    assert models.put(run, version, state.vector, residual, state.hash, state.chain) >= 8 * size
    return state, residual


def test_a_model_comes_back_bit_for_bit(models: ModelStore) -> None:
    state, residual = put(models, version=7)
    found = models.get("run", 7)
    assert (found.version, found.hash, found.chain) == (7, state.hash, state.chain)
    assert found.vector.tobytes() == state.vector.tobytes()
    assert found.residual.tobytes() == residual.tobytes()
