"""What every test leaves as it found it, the order in which tests come, and where they write."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from fedrep_runtime.ciphers import prefer_tls13

prefer_tls13()  # before any test imports grpc, as every program of ours does


MEMORY = Path("/dev/shm")
ROOM = 2 << 30


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would begin with the files of most tests, and so end with the longest ones
    write_in_memory()
    compile_once()
    take_any_time()
    mind_interrupts()


def mind_interrupts() -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and so would the processes that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def take_any_time() -> None:
    """Hypothesis fails an example that took longer than a fifth of a second: on a busy machine any may."""
    settings.register_profile("any time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any time")


def compile_once() -> None:
    """What Python compiles is kept even where PYTHONDONTWRITEBYTECODE is set: else hundreds of processes compile us again.

    Installed packages bring theirs along; this is about our own modules, and about the tests with their rewritten assertions.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def write_in_memory() -> None:
    """Where memory can be written to like a disk, tests do so unless TMPDIR says otherwise: thousands of syncs wait for no disk.

    No test shows what a power cut leaves of a disk; those of crashes kill a process, and nothing that it wrote is lost with it.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return
    space = os.statvfs(MEMORY)
    if space.f_bavail * space.f_frsize >= ROOM and not space.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)
        tempfile.tempdir = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests in each, in an order drawn from this seed")


# Files go to a worker whole: one that takes minutes must not be the last that a worker begins while the others have ended.
LONGEST_FIRST = (
    "tests/chaos/test_chaos.py",
    "tests/protocol/test_kill_anywhere.py",
    "tests/cli/test_demo.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first. With a seed, no test may need another one before it: files and the tests in each are shuffled.

    Files stay whole, so that what a file shares is still made once.
    """
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    files = list(by_file)
    seed = config.getoption("--shuffle")
    if seed is None:
        files.sort(key=lambda file: LONGEST_FIRST.index(file) if file in LONGEST_FIRST else len(LONGEST_FIRST))
    else:
        rng = random.Random(seed)
        for tests in by_file.values():
            rng.shuffle(tests)
        rng.shuffle(files)
    items[:] = [item for file in files for item in by_file[file]]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test calls in this process configures logging for the process: the next test must not see that."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configuration)
