"""JSON from outside: whatever is wrong with it is a ValueError, brackets nested deeper than Python follows included."""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes | bytearray) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
