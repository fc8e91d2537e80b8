"""Ports that stay free until the process that they are for listens on them.

The system hands the ports of its own range to whoever connects to anything, so that one of them that is free now may be taken a
moment later. These come from below that range, in blocks that belong to one process at a time, whoever else looks for ports.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

FIRST, BLOCK = 15_000, 100
_SYSTEM_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OTHERWISE = 32_768  # where the range begins on most systems

_own: deque[int] = deque()  # the least recently given one first
_locks: list[int] = []  # descriptors, open as long as this process lives
os.register_at_fork(after_in_child=_own.clear)  # a child shares its parent's locks, and takes blocks of its own


def free_ports(count: int) -> list[int]:
    """Different ones, all of which nobody uses now."""
    found: list[int] = []
    candidates = _candidates()
    while len(found) < count and (port := next(candidates, None)) is not None:
        if port not in found and _is_free(port):
            found.append(port)
    return found + _of_the_system(count - len(found))


def free_port() -> int:
    return free_ports(1)[0]


def _candidates() -> Iterator[int]:
    for _ in range(len(_own)):
        yield _next()
    for first in _blocks():
        _own.extendleft(reversed(range(first, first + BLOCK)))
        for _ in range(BLOCK):
            yield _next()


def _next() -> int:
    _own.rotate(-1)
    return _own[-1]


def _blocks() -> Iterator[int]:
    """Those that no other process has, each of them ours from now on."""
    folder = Path(tempfile.gettempdir()) / f"fedrep-ports-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    starts = list(range(FIRST, _end() - BLOCK, BLOCK))
    for first in random.sample(starts, len(starts)):
        with suppress(OSError):
            descriptor = os.open(folder / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            _locks.append(descriptor)
            yield first


def _end() -> int:
    try:
        return int(_SYSTEM_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _OTHERWISE


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _of_the_system(count: int) -> list[int]:
    """Where its range leaves no room below: all at once, or it might offer one of them twice."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
