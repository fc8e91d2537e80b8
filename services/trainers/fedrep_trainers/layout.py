"""Model files as trainers write them: named tensors, and in which order they make up the flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from fedrep.model_layout import ModelLayout, Parameter, Vector, layout_metadata
from fedrep_trainers.whole_files import replacing

__all__ = ["ModelLayout", "Parameter", "Vector", "layout_metadata", "write_model", "write_tensors"]


def write_model(path: Path, layout: ModelLayout, vector: Vector) -> None:
    """Write a safetensors file that `read_model` and any other safetensors reader understand; atomically."""
    layout.require_vector(vector)
    write_tensors(path, layout.split(vector), layout_metadata(layout))


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.generic]], metadata: dict[str, str]) -> None:
    """Write named arrays as safetensors: temporary file, fsync, rename."""
    # A view's strides are not saved, hence the contiguous copies; ascontiguousarray alone would make scalars 1-d.
    content = save({n: np.ascontiguousarray(t).reshape(t.shape) for n, t in tensors.items()}, metadata=metadata)
    with replacing(path) as file:
        file.write(content)
