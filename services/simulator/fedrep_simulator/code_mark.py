"""Which code makes the trainers, as far as it can be seen: rounds of two codes are not mixed."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedrep_simulator.engines import Build
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.user_code import load_function, user_trainer


def user_build(reference: str) -> Build:
    return partial(user_trainer, reference)


def code_mark(build: Build, settings: TrainerSettings) -> str:
    """A hash of the file that the function stands in, or of the function where there is none, as in a notebook; else empty."""
    function: Callable[..., Any] = build
    if isinstance(build, partial):
        named = build.func is user_trainer
        function = load_function(build.args[0], settings.user_code_dir) if named else build.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function)
    try:
        file = Path(inspect.getsourcefile(function) or "")
        source = file.read_bytes() if file.is_file() else inspect.getsource(function).encode()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source).hexdigest()
