"""A stored model as a safetensors file with the parameters' own names and shapes."""

from __future__ import annotations

import json
import math

import numpy as np
from safetensors.numpy import save

from fedrep.errors import InvalidInputError
from fedrep.protocol.manifests import RunManifest
from fedrep_server.rounds.model_store import StoredModel


def check_layout(layout: str, parameters: int) -> None:
    """At creation, or every later export would fail."""
    if not layout:
        return
    try:
        entries = json.loads(layout)
        names = [name for name, _ in entries]
        sides = [side for _, shape in entries for side in shape]
        fits = all(isinstance(name, str) for name in names) and all(isinstance(side, int) and side > 0 for side in sides)
        fits = fits and len(set(names)) == len(names) and sum(math.prod(shape) for _, shape in entries) == parameters
    except (ValueError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise InvalidInputError(
            f"the layout is not a JSON list of [name, shape] with distinct names that covers the model's {parameters} parameters",
            reason="BAD_LAYOUT",
        )


def model_file(stored: StoredModel, layout: str, run: RunManifest, last_round: int | None = None) -> bytes:
    """`layout` is the JSON list of [name, shape] given at creation; without one the flat vector is the only tensor.
    `last_round` is known of the latest version only.
    """
    metadata = {
        "fedrep.run": run.name,
        "fedrep.version": str(stored.version),
        "fedrep.hash": stored.hash.hex(),
        "fedrep.layout_hash": run.layout_hash.hex(),
    }
    if last_round is not None:
        metadata["fedrep.round"] = str(last_round)
    if not layout:
        return save({"model": stored.vector}, metadata)
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    start = 0
    entries = json.loads(layout)
    for name, shape in entries:
        size = math.prod(shape)
        tensors[name] = stored.vector[start : start + size].reshape(shape)
        start += size
    metadata["fedrep.layout"] = layout
    metadata["fedrep.order"] = json.dumps([name for name, _ in entries])
    return save(tensors, metadata)
