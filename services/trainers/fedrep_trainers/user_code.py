"""A silo's own trainer, by `module:function` in its TOML. Code is only ever loaded from the silo's disk.

Imports no torch: a trainer of one's own may do without it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrep.errors import FedrepError, SettingsError
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Trainer
from fedrep_trainers.user_errors import explained

_MEMBERS = ("layout", "initial", "train", "evaluate", "state", "load_state")


def load_function(reference: str, folder: Path | None) -> Callable[..., Any]:
    """Import `module` with `folder` first on the path, as if started from there, and take `function` from it."""
    module_name, _, function_name = reference.partition(":")
    if not module_name or not function_name:
        raise SettingsError(f"user_code must look like 'module:function', not {reference!r}")
    if folder is not None:
        path = str(folder.resolve())
        if path not in sys.path:
            sys.path.insert(0, path)
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise SettingsError(f"user_code {reference!r} imports {error.name!r}, which is not installed") from error
        where = folder if folder is not None else "the Python path"
        raise SettingsError(f"user_code {reference!r}: there is no module {module_name!r} in {where}") from error
    except Exception as error:
        raise SettingsError(f"user_code {reference!r} failed while it was imported: {explained(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SettingsError(f"user_code {reference!r}: {module.__file__} has no function {function_name!r}")
    loaded: Callable[..., Any] = function
    return loaded


def user_trainer(reference: str, settings: TrainerSettings) -> Trainer:
    function = load_function(reference, settings.user_code_dir)
    try:
        trainer: Trainer = function(settings)
    except FedrepError:
        raise
    except Exception as error:
        raise SettingsError(f"user_code {reference!r} failed while it made the trainer: {explained(error)}") from error
    missing = [name for name in _MEMBERS if not hasattr(trainer, name)]
    if missing:
        raise SettingsError(
            f"user_code {reference!r} returned a {type(trainer).__name__}, which is no trainer: it lacks "
            f"{', '.join(missing)}. Return a TorchTrainer or an object with the members of fedrep_trainers.trainer"
        )
    return trainer
