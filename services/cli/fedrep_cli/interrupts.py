"""Ctrl-C that is heard, also where Python loses it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heard_interrupts() -> Iterator[Callable[[], None]]:
    """KeyboardInterrupt is raised as always; calling what this yields raises it again, once there was one.

    What a signal raises while Python runs a finalizer or a callback of its collector is printed and forgotten, and a training of
    hours would go on.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: None  # somebody else minds it, or nobody is meant to
        return
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.default_int_handler(number, frame)

    def look() -> None:
        if asked:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
