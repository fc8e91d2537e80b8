"""Plain values as TOML, which the standard library reads and does not write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticUndefined


def toml_document(document: Mapping[str, Any]) -> str:
    """A mapping as TOML: plain values first, then one table per nested mapping."""
    lines = [f"{name} = {toml_value(value)}" for name, value in document.items() if not isinstance(value, Mapping)]
    for name, value in document.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {toml_value(item)}" for key, item in value.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    if value is PydanticUndefined:
        return '""'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    return json.dumps(str(value))
