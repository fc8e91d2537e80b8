"""status.json, for `fedrep client status`: what a daemon is doing now. Nothing depends on it, so it must cost next to nothing.

It is written in place, as long as it was before. A rename over it would wait for the disk, and with it the whole daemon while
others sync; the price is that a reader may come in the middle of a write, and looks again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrep_runtime.json_text import parsed

PAGE = 4096
LOOKS, PAUSE_SECONDS = 5, 0.01


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    text = json.dumps(status).encode()
    padded = text.ljust(-(-len(text) // PAGE) * PAGE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.pwrite(descriptor, padded, 0)
        if written < len(text) or os.fstat(descriptor).st_size != written:  # short of room, or there was more before
            os.ftruncate(descriptor, written)
    finally:
        os.close(descriptor)


def note_server(status: dict[str, Any], why: str) -> None:
    """That the server is out of reach, since when and why; or, without a reason, that it is not."""
    if why:
        status |= {"server_away": why, "away_since": status.get("away_since", time.time())}
    else:
        status.pop("server_away", None)
        status.pop("away_since", None)


def read_status(path: Path) -> dict[str, Any]:
    """OSError if there is none, ValueError if it is no status however often one looks."""
    for _ in range(LOOKS - 1):
        try:
            return dict(parsed(path.read_bytes()))
        except (ValueError, TypeError):
            time.sleep(PAUSE_SECONDS)
    return dict(parsed(path.read_bytes()))
