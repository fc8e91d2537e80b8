"""Model files as somebody hands them in: what is in them, checked. Needs no torch: runs are created where nobody trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from fedrep.errors import DecodeError, InvalidInputError, NonFiniteError
from fedrep.model_layout import FROZEN_KEY, ORDER_KEY, ModelLayout, Vector
from fedrep_runtime.json_text import parsed


def read_model(path: Path, called: str | None = None) -> tuple[ModelLayout, Vector]:
    """Layout and flat vector of a safetensors file. One without our order is taken in the order of its bytes.

    `called` is the file's name for people, where it lies under another.
    """
    name = called or str(path)
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            stored = list(file.offset_keys())
            arrays = {tensor: file.get_tensor(tensor) for tensor in stored}
    except FileNotFoundError:
        raise InvalidInputError(f"there is no model file at {name}") from None
    except (SafetensorError, OSError, TypeError) as error:
        raise DecodeError(f"{name} is not a safetensors model file: {error}") from error
    names = _order(name, metadata, stored)
    for tensor in names:
        if arrays[tensor].dtype != np.float32:
            raise InvalidInputError(
                f"{tensor} in {name} is {arrays[tensor].dtype}; a model file holds float32 trainable parameters only"
            )
    layout = ModelLayout.of(((tensor, arrays[tensor].shape) for tensor in names), metadata.get(FROZEN_KEY, ""))
    vector = layout.join(arrays)
    layout.require_vector(vector)
    return layout, vector


def read_flat_vector(path: Path, called: str) -> Vector:
    """The parameters in a .npy file, which has no names: whoever takes it must know the layout from elsewhere."""
    try:
        vector = np.load(path, mmap_mode="r", allow_pickle=False)  # a size that is claimed is not taken from memory
    except Exception as error:  # its header is read as Python, with all the errors of that
        raise DecodeError(f"{called} is not a .npy file of numbers: {error}") from error
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.ndim != 1 or not vector.size:
        kind = f"{vector.dtype} of shape {list(vector.shape)}" if isinstance(vector, np.ndarray) else "an archive"
        raise InvalidInputError(f"{called} holds {kind}; a .npy model is one flat float32 vector")
    if not (finite := np.isfinite(vector)).all():
        raise NonFiniteError(f"{called} is not finite at position {int(np.argmin(finite))}")
    return np.array(vector)


def _order(name: str, metadata: Mapping[str, str], stored: list[str]) -> list[str]:
    if ORDER_KEY not in metadata:
        return stored
    try:
        names = parsed(metadata[ORDER_KEY])
    except ValueError as error:
        raise DecodeError(f"the parameter order in {name} is not JSON: {error}") from error
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(stored):
        raise DecodeError(f"the parameter order in {name} does not name exactly its tensors")
    return [str(tensor) for tensor in names]
