"""A process that has loaded everything once and forks the others: ten silos start in the time in which one imports torch.

Forking copies a process with one thread only, and gRPC, event loops and torch's pools of threads do not survive it. So the
nursery is forked off before any of them exists, and does nothing but fork. A process that has a second thread gets none, nor a
system on which a fork without exec is not safe: there everybody is a plain new process. What must differ between the children,
keys and seeds, comes from the operating system's randomness in each of them; generators for statistics are seeded anew.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from fedrep.errors import FedrepError
from fedrep_cli.parent_death import end_with_parent

Main = Callable[[Sequence[str]], int]
LARGEST_MESSAGE = 1 << 17


class Nursery:
    """The parent's end. Its methods are for one thread."""

    def __init__(self, preload: Sequence[str], main: Main) -> None:
        """`main` is what a child does with its arguments; `preload` are modules that the nursery loads once it is forked."""
        if not can_fork():
            raise FedrepError("this process cannot be copied; start others by their command")
        self._line, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended: dict[int, int] = {}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the copy would say it again
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _leave_after(lambda: _Forking(end, main).serve(parent, preload))
        end.close()

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Grown:
        """A new process that writes to the end of the log."""
        self._say({"arguments": list(arguments), "log": str(log), "environment": dict(environment)})
        while True:
            message = self._hear(None)
            if message is not None and "started" in message:
                return Grown(self, int(message["started"]))

    def signal(self, pid: int, number: int) -> None:
        """The nursery sends it, which knows whether the number still is that process."""
        with contextlib.suppress(FedrepError):
            self._say({"signal": [pid, int(number)]})

    def code(self, pid: int, timeout: float | None = 0.0) -> int | None:
        """What the process ended with, as `subprocess` counts; None if it has not ended within the time."""
        limit = None if timeout is None else time.monotonic() + timeout
        while pid not in self._ended:
            left = None if limit is None else max(limit - time.monotonic(), 0.0)
            try:
                heard = self._hear(left)
            except FedrepError:  # and its children have ended with it
                return -int(signal.SIGKILL)
            if heard is None:
                return None
        return self._ended[pid]

    def close(self) -> None:
        """At once, and with it whoever is left of its children."""
        self._line.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _say(self, message: Mapping[str, Any]) -> None:
        try:
            self._line.send(json.dumps(message).encode())
        except OSError as error:
            raise _gone() from error

    def _hear(self, timeout: float | None) -> Mapping[str, Any] | None:
        if not wait([self._line], timeout):
            return None
        try:
            packet = self._line.recv(LARGEST_MESSAGE)
        except ConnectionError:
            packet = b""
        if not packet:
            raise _gone()
        message: dict[str, Any] = json.loads(packet)
        if "ended" in message:
            self._ended[int(message["ended"])] = int(message["code"])
        return message


class Grown:
    """A child of the nursery, with the methods of `subprocess.Popen` that its parent uses."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._nursery.code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def terminate(self) -> None:
        self._nursery.signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        self._nursery.signal(self.pid, signal.SIGKILL)


def can_fork() -> bool:
    """Linux alone: on other systems the frameworks beneath torch start threads of which Python knows nothing."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


class _Forking:
    """The nursery itself: one thread that waits for requests and for children that end."""

    def __init__(self, line: socket.socket, main: Main) -> None:
        self._line = line
        self._main = main
        self._children: set[int] = set()

    def serve(self, parent: int, preload: Sequence[str]) -> int:
        end_with_parent(parent)
        os.setsid()  # Ctrl-C and a closed terminal are the parent's to hear
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(silence, number)
        for module in preload:
            with contextlib.suppress(ImportError):  # whoever needs it will say what is missing
                import_module(module)
        gc.collect()
        gc.freeze()  # what all share stays shared: no collection in a child touches it
        ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready = wait([self._line, ended])
            if ended in ready:
                os.read(ended, 4096)
                self._report_ended()
            if self._line in ready and not self._take():
                return 0  # the children end with this process

    def _take(self) -> bool:
        packet = self._line.recv(LARGEST_MESSAGE)
        if not packet:
            return False
        request: dict[str, Any] = json.loads(packet)
        if "signal" in request:
            pid, number = request["signal"]
            if pid in self._children:
                os.kill(pid, number)
            return True
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            _leave_after(lambda: self._grow_up(nursery, request))
        self._children.add(pid)
        self._tell({"started": pid})
        return True

    def _report_ended(self) -> None:
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._children.remove(pid)
                self._tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._line.send(json.dumps(message).encode())

    def _grow_up(self, nursery: int, request: Mapping[str, Any]) -> int:
        """In the child: nothing of the nursery is left but what it has loaded."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._line.close()
        end_with_parent(nursery)
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        os.environ.update(request["environment"])
        _seed_anew()
        sys.argv = ["fedrep", *request["arguments"]]
        return self._main(request["arguments"])


def _seed_anew() -> None:
    """Python seeds its own generator after a fork by itself; OpenSSL and `secrets` need nothing."""
    for module, name in (("numpy.random", "seed"), ("torch", "seed")):
        if module in sys.modules:
            getattr(sys.modules[module], name)()


def _leave_after(work: Callable[[], int]) -> NoReturn:
    """Without a step back into the code that forked, whatever happens."""
    code = 70
    try:
        code = work()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _gone() -> FedrepError:
    return FedrepError("the process from which the others are forked has ended, and they with it; start the command again")
