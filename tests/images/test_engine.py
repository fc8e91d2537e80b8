"""deploy/compose.yaml played by Docker's own engine with the images built here: its order, checks, volumes and networks."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.images.compose import DATABASE, make_database
from tests.images.containers import Builder, why_not
from tests.images.engine import MISSING, Engine, compose_file, engine

INSTALL = "Debian: apt-get install docker.io docker-compose"
reason = why_not() or (f"Docker's engine is not installed: {', '.join(MISSING)} missing ({INSTALL})." if MISSING else None)
pytestmark = [pytest.mark.skipif(reason is not None, reason=reason or ""), pytest.mark.timeout(7200)]

SECONDS = 900
REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
APPLIED = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8554/metrics', timeout=30).read().decode())"


def reaches(made: Engine, service: str, host: str, port: int) -> bool:
    return made.run_in(service, "python3", "-c", REACH, host, str(port)).returncode == 0


def test_docker_starts_the_federation_without_a_silo_and_then_plays_rounds(
    builder: Builder, server: str, dashboard: str, client: str, tmp_path: Path
) -> None:
    make_database(builder)
    file = compose_file(tmp_path, "fedrep/database:test")
    with engine() as made:
        made.load(builder, DATABASE, "fedrep/database:test")
        made.needs_containers("fedrep/database:test")
        made.load(builder, server, "fedrep/server:0.1.0")
        made.load(builder, dashboard, "fedrep/dashboard:0.1.0")
        made.compose(file, "up", "--detach", "--no-build")
        limit = time.monotonic() + SECONDS
        wanted = {"setup": "exited 0", "database": "healthy", "ca": "healthy", "server": "healthy", "dashboard": "healthy"}
        while made.states() != wanted:
            assert time.monotonic() < limit, made.states_text()
            time.sleep(2)
        assert reaches(made, "dashboard", "server", 8550)
        assert reaches(made, "server", "ca", 8552)
        assert not reaches(made, "dashboard", "database", 5432)
        assert not reaches(made, "ca", "database", 5432)
        assert made.run_in("dashboard", "cat", "/secrets/admin-token").stdout.strip()

        made.load(builder, client, "fedrep/client:0.1.0-cpu")
        made.compose(file, "--profile", "demo", "up", "--detach", "--no-build")
        limit = time.monotonic() + SECONDS
        while not re.search(
            r'rounds_total\{outcome="applied",run="demo"\} [1-9]', made.run_in("server", "python3", "-c", APPLIED).stdout
        ):
            assert time.monotonic() < limit, made.states_text()
            time.sleep(2)
        made.compose(file, "--profile", "demo", "down", "--volumes")
