"""Models as files of torch's own kinds: a state dict, or an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrep.errors import SettingsError
from fedrep_trainers.layout import Vector
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.whole_files import replacing


def write_state_dict(tensors: Mapping[str, NDArray[np.generic]], target: Path) -> None:
    """Tensors alone, so that `torch.load(target, weights_only=True)` takes it."""
    state = {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}
    with replacing(target) as file:
        torch.save(state, file)


def write_onnx(trainer: TorchTrainer, model: Vector, target: Path) -> None:
    """The module in evaluation mode, with a free number of samples; its inputs are shaped like those it is evaluated on."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise SettingsError(f"ONNX needs {' and '.join(missing)}, not installed here: pip install 'fedrep[onnx]'")
    inputs = trainer.example_inputs()
    by_name = inputs if isinstance(inputs, dict) else {}
    in_order = () if by_name else inputs if isinstance(inputs, tuple) else (inputs,)
    free = {0: torch.export.Dim("samples", min=1)}
    shapes: Any = dict.fromkeys(by_name, free) or tuple(free for _ in in_order)
    export: Any = torch.onnx.export  # its keywords differ from release to release, and so do their types
    with trainer.module_at(model) as module:
        try:
            export(
                module,
                in_order,
                str(target),
                kwargs=by_name or None,
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # torch raises whatever the module's own code led it to
            first = (str(error).strip().splitlines() or [""])[0]
            raise SettingsError(f"torch cannot write this model as ONNX: {type(error).__name__}: {first}") from error
