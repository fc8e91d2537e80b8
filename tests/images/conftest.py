"""Images that all tests of this folder share, each built when the first of them asks for it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.containers import Builder, own_network


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    """FEDREP_TEST_IMAGES_FOLDER keeps what was built, so that the next time only what has changed is built again."""
    kept = os.environ.get("FEDREP_TEST_IMAGES_FOLDER")
    made = Builder(Path(kept or tempfile.mkdtemp(prefix="fedrep-images-")), bool(kept))
    try:
        made.make_base()
        yield made
    finally:
        made.close()
        sys.stdout.write("\n".join(["", *made.said, ""]))


@pytest.fixture
def network() -> Iterator[int]:
    """A pod listens everywhere; the machine of a test must not."""
    with own_network() as holder:
        yield holder


@pytest.fixture(scope="session")
def server(builder: Builder) -> str:
    return builder.build("server")


@pytest.fixture(scope="session")
def dashboard(builder: Builder) -> str:
    return builder.build("dashboard")


@pytest.fixture(scope="session")
def client(builder: Builder) -> str:
    return builder.build_client()
