"""deploy/release.py as a module: it lies beside what it releases and in no package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.deploy.chart import REPOSITORY


def release_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", REPOSITORY / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
