"""Simulations of tests start as in a fresh process: nobody has set up a log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
