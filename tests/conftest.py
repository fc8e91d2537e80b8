"""What every test leaves as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from fedrep_runtime.ciphers import prefer_tls13

prefer_tls13()  # before any test imports grpc, as every program of ours does


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test calls in this process configures logging for the process: the next test must not see that."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configuration)
