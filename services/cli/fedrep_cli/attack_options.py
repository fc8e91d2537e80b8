"""`--attack-option name=value`, as the demo and the simulation take it."""

from __future__ import annotations

import json
from typing import Any

from fedrep.errors import SettingsError


def attack_options(given: list[str]) -> dict[str, Any]:
    """name=value, the value as JSON where it is some."""
    options: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise SettingsError(f"--attack-option takes name=value, for example epsilon=10, not {text!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
