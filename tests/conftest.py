"""What every test leaves as it found it, and the order in which tests come."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest
import structlog

from fedrep_runtime.ciphers import prefer_tls13

prefer_tls13()  # before any test imports grpc, as every program of ours does


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests in each, in an order drawn from this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No test may need another one before it. Files stay whole, so that what a file shares is still made once."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    rng = random.Random(seed)
    for tests in by_file.values():
        rng.shuffle(tests)
    files = list(by_file)
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
