"""A child that ends with its parent, even when the parent is killed without a chance to clean up: Linux sees to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: between fork and exec is no place for it

CAN_END_WITH_PARENT = _LIBC is not None


def end_with_parent(parent: int) -> None:
    """Called in the child; `parent` is the number that the parent had when it forked."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # not SIGTERM: a silo would wait long for a server that is gone too
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
