"""Importing torchvision, also beside a torch build without its compiled operators.

Next to a CPU-only torch wheel, `import torchvision` stops because the schemas of two detection operators are missing.
Declaring just these lets models, datasets and transforms work; detection itself would still fail, loudly, when called.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from fedrep.errors import SettingsError

_MISSING = "operator torchvision::nms does not exist"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # operators vanish with the object that declared them


def import_torchvision() -> Any:
    """The torchvision module; typed Any, since torchvision ships no types."""
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise SettingsError(f"this needs torchvision, which cannot be imported here: {error}") from error
    except RuntimeError as error:
        # Only this very error: any other one deserves to be seen.
        if _MISSING not in str(error) or _declared:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch.library has no types
    for name in ("nms", "qnms"):
        library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]  # likewise
    _declared.append(library)
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]
    return importlib.import_module("torchvision")
