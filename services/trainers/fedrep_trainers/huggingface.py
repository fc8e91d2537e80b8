"""Adapters (LoRA) over a model of transformers: the adapters are the vector, the base stays on the silo and in the layout's hash.

Nothing is ever downloaded: a base is loaded from a folder of this machine, or built from its configuration. Needs the extra
`huggingface`.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedrep.errors import SettingsError
from fedrep_trainers.layout import Vector
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.torchvision_import import import_torchvision


def load_base(kind: str, folder: Path | str) -> nn.Module:
    """A model of `kind`, the name of a class of transformers such as AutoModelForSequenceClassification, as `folder` holds it."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise SettingsError(
            f"there is no model in {path}: a folder that save_pretrained() wrote holds a config.json. Weights are never "
            "downloaded; copy them to this machine first"
        )
    try:
        loaded: nn.Module = _class(kind).from_pretrained(str(path), local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(f"the model in {path} cannot be loaded: {error}") from error
    return loaded


def new_base(kind: str, config: dict[str, Any], *, seed: int = 0) -> nn.Module:
    """The same from a configuration with its `model_type`, with random weights that follow from the seed: to try things out."""
    transformers = _package("transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            built: nn.Module = _class(kind).from_config(transformers.AutoConfig.for_model(**config))
        except (TypeError, ValueError, KeyError) as error:
            raise SettingsError(f"transformers cannot build {kind} from this configuration: {error}") from error
    return built


def with_lora(base: nn.Module, *, seed: int = 0, **options: Any) -> nn.Module:
    """`base` with adapters, all else frozen. `options` are those of peft's LoraConfig; its first values follow from the seed."""
    peft = _package("peft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            adapted: nn.Module = peft.get_peft_model(base, peft.LoraConfig(**options))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"LoRA cannot be added to this model: {error}") from error
    return adapted


def save_adapter(trainer: TorchTrainer, model: Vector, folder: Path) -> None:
    """A folder that `PeftModel.from_pretrained(base, folder)` takes; the base's own weights are not in it."""
    with trainer.module_at(model) as module:
        if not is_adapted(module):
            raise SettingsError("this model has no adapters; export it as safetensors instead")
        module.save_pretrained(str(folder), safe_serialization=True)  # type: ignore[operator]  # a method of peft's models


def is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "peft_config") and hasattr(module, "save_pretrained")


def _class(kind: str) -> Any:
    found = getattr(_package("transformers"), kind, None)
    if not hasattr(found, "from_pretrained"):
        raise SettingsError(f"transformers has no model class {kind!r}; use for example AutoModelForSequenceClassification")
    return found


def _package(name: str) -> Any:
    """Both import torchvision, where there is one, which beside a CPU-only torch needs a hand."""
    with suppress(SettingsError):
        import_torchvision()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SettingsError(f"adapters need {error.name}, which is not installed: pip install 'fedrep[huggingface]'") from error
