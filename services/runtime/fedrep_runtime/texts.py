"""Other people's texts, fit for a terminal: nothing in them moves the cursor, changes a title or turns what follows around.

Control characters (C0, DEL, C1), the line and paragraph separators and the marks that turn the direction of writing become
U+FFFD, so that a reader sees that something stood there.
"""

from __future__ import annotations

import re
from typing import Any

_SHOWN = "\N{REPLACEMENT CHARACTER}"
_UNSEEN = "\\x7f-\\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[\\x00-\\x08\\x0b-\\x1f{_UNSEEN}]")
_UNESCAPED_IN_JSON = re.compile(f"[{_UNSEEN}]")


def harmless(text: str) -> str:
    """New lines and tabs stay."""
    return _CONTROL.sub(_SHOWN, text)


def one_line(text: str) -> str:
    """Nor can it pass for several lines of a log."""
    return harmless(re.sub(r"\r\n|[\n\r\t]", " ", text))


def harmless_json(text: str) -> str:
    """JSON that means the same, with escapes for what a terminal might obey; JSON itself escapes only what is below a space."""
    return _UNESCAPED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def harmless_all(value: Any) -> Any:
    """Every text within a result."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {key: harmless_all(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [harmless_all(inner) for inner in value]
    return value
