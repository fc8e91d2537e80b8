"""What a process has freed goes back to the system where that is much.

The C library keeps the room of vectors as long as I for the next ones, in pieces that others do not fit. With a model of 1e8
parameters that is half a model, which lies idle while a silo trains or the server waits for proposals. Getting it back costs
page faults in the next round, so smaller models keep it.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

WORTHWHILE = 1 << 28  # bytes of a model


def give_back(model_bytes: int) -> bool:
    """Whether this was tried: for models that are large enough, where the C library is one that can."""
    trim = _trim() if model_bytes >= WORTHWHILE else None
    if trim is not None:
        trim(0)
    return trim is not None


@lru_cache(maxsize=1)
def _trim() -> Any:
    """glibc's; others have none, and need none or know no way."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
