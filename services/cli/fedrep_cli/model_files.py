"""A model in the form that somebody wants to use it in: named safetensors, a torch state dict, ONNX, or a folder of adapters."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from fedrep.errors import SettingsError
from fedrep.protocol.model_state import model_hash
from fedrep_runtime.model_files import read_model
from fedrep_trainers.layout import ModelLayout, Vector, layout_metadata, write_tensors
from fedrep_trainers.trainer import ModelExporter, Trainer

if TYPE_CHECKING:
    from fedrep_trainers.torch_trainer import TorchTrainer


class Form(StrEnum):
    SAFETENSORS = "safetensors"
    TORCH = "torch"
    ONNX = "onnx"
    ADAPTER = "adapter"


def downloaded_model(data: bytes, trainer: Trainer, where: Path) -> tuple[Vector, dict[str, str]]:
    """The vector of a server's model file, if it is the model of this trainer, and what the file says about itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        file.write_bytes(data)
        layout, vector = read_model(file)
        with safe_open(file, "np") as opened:
            metadata = dict(opened.metadata() or {})
    difference = trainer.layout.difference(ModelLayout(layout.parameters, trainer.layout.frozen))
    if difference is None and metadata.get("fedrep.layout_hash", trainer.layout.digest) != trainer.layout.digest:
        difference = "the frozen weights are not those of the run: load the same base model"
    if difference is not None:
        raise SettingsError(f"The trainer in {where} makes another model than the run's: {difference}.")
    return vector, {name: text for name, text in metadata.items() if name.startswith("fedrep.")}


def write_form(trainer: Trainer, vector: Vector, target: Path, form: Form, metadata: dict[str, str]) -> None:
    """`metadata` goes into a safetensors file; the other forms have no place for it."""
    match form:
        case Form.SAFETENSORS:
            if not isinstance(trainer, ModelExporter):
                raise SettingsError("This trainer cannot export a model: it has no method `export`.")
            notes = metadata | layout_metadata(trainer.layout) | described(trainer.layout, vector)
            write_tensors(target, trainer.export(vector), notes)
        case Form.TORCH:
            from fedrep_trainers.torch_files import write_state_dict

            if not isinstance(trainer, ModelExporter):
                raise SettingsError("This trainer cannot export a model: it has no method `export`.")
            write_state_dict(trainer.export(vector), target)
        case Form.ONNX:
            from fedrep_trainers.torch_files import write_onnx

            write_onnx(_torch_trainer(trainer, form), vector, target)
        case Form.ADAPTER:
            from fedrep_trainers.huggingface import save_adapter

            save_adapter(_torch_trainer(trainer, form), vector, target)


def described(layout: ModelLayout, vector: Vector) -> dict[str, str]:
    """What identifies a model, wherever the file ends up."""
    return {
        "fedrep.layout": layout.described,
        "fedrep.layout_hash": layout.digest,
        "fedrep.hash": model_hash(vector).hex(),
    }


def shown(result: Any) -> str:
    """What to do with the file, as a line of Python. A trainer that has not loaded torch has no use for its tensors."""
    by_name = "load_state_dict(safetensors.torch.load_file({}))" if "torch" in sys.modules else "safetensors.numpy.load_file({})"
    use = {
        Form.SAFETENSORS: by_name,
        Form.TORCH: "load_state_dict(torch.load({}, weights_only=True))",
        Form.ONNX: "onnxruntime.InferenceSession({})",
        Form.ADAPTER: "PeftModel.from_pretrained(base, {})",
    }[Form(result["format"])]
    return use.format(json.dumps(result["file"]))


def _torch_trainer(trainer: Trainer, form: Form) -> TorchTrainer:
    from fedrep_trainers.torch_trainer import TorchTrainer

    if not isinstance(trainer, TorchTrainer):
        raise SettingsError(f"--format {form.value} is for models of TorchTrainer; this trainer is a {type(trainer).__name__}.")
    return trainer
