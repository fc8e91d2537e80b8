"""The settings files that the chart renders, read by the programs they are for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from fedrep_cli.free_ports import free_port
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Identity, Role
from fedrep_identity.settings import ADDRESSES_FILE, PublicAddresses
from tests.deploy.chart import CA, MATRIX, REPOSITORY, Manifest, case, one, render

FEDREP = [sys.executable, "-m", "fedrep_cli.main"]


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders as the Secrets of the chart mount them."""
    folder = tmp_path_factory.mktemp("identities")
    authority = CertificateAuthority.create(folder / "ca", "lungs", "a passphrase for tests")
    issue_credentials(authority, folder / "server", Identity("main", Role.SERVER, "lungs"), ("fed-fedrep-server",), ())
    issue_credentials(authority, folder / "dashboard", Identity("dashboard", Role.VIEWER, "lungs"))
    return folder


def settings_file(manifests: list[Manifest], name: str, file: str, folder: Path) -> Path:
    path = folder / file
    path.write_text(one(manifests, "ConfigMap", name)["data"][file])
    return path


def run(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    return subprocess.run([*FEDREP, *arguments], capture_output=True, text=True, timeout=120, env=environment, cwd=REPOSITORY)


@pytest.mark.parametrize("name", ["sqlite", "high-availability"])
def test_the_rendered_settings_start_a_server(name: str, identities: Path, tmp_path: Path, request: Any) -> None:
    config = settings_file(case(name), "fed-fedrep-server", "server.toml", tmp_path)
    moved = {"FEDREP_SERVER__DATA": str(tmp_path / "data"), "FEDREP_SERVER__CREDENTIALS": str(identities / "server")}
    if name != "sqlite":
        moved["FEDREP_SERVER__DATABASE"] = request.getfixturevalue("new_postgres_url")()
    done = run(["server", "--check", "--config", str(config)], **moved)
    assert done.returncode == 0, done.stderr
    assert "identity: server main" in done.stdout


def test_numbers_lists_and_sections_arrive_as_they_were_written(tmp_path: Path) -> None:
    manifests = render(MATRIX["existing-secrets"])
    silo = tomllib.loads(one(manifests, "ConfigMap", "fed-fedrep-silo")["data"]["client.toml"])
    assert silo["give_up_after"] == 1000000
    assert silo["trainer"] == {"dataset": "digits", "learning_rate": 0.05, "milestones": [10, 20], "schedule": "step"}
    assert silo["policy"]["allowed_runs"] == ["lungs", 'a "quoted" name']
    assert silo["server"] == "fed-fedrep-server.fedrep.svc:8550"
    server = tomllib.loads(one(case("high-availability"), "ConfigMap", "fed-fedrep-server")["data"]["server.toml"])
    assert (server["gather_seconds"], server["retention"]) == (2.5, {"models": 5})


def test_what_the_chart_keeps_to_itself_cannot_be_changed_by_settings() -> None:
    text = one(case("sqlite"), "ConfigMap", "fed-fedrep-server")["data"]["server.toml"]
    assert tomllib.loads(text) == {
        "credentials": "/etc/fedrep/identity",
        "data": "/var/lib/fedrep",
        "health_host": "::",
        "health_port": 8553,
        "host": "::",
        "log_json": True,
        "metrics_host": "::",
        "metrics_port": 8554,
        "port": 8550,
    }


def test_the_rendered_settings_of_a_silo_are_read_by_the_silo(tmp_path: Path) -> None:
    config = settings_file(case("existing-secrets"), "fed-fedrep-silo", "client.toml", tmp_path)
    done = run(["client", "status", "--json", "--config", str(config)], FEDREP_CLIENT__STATE=str(tmp_path / "state"))
    assert done.returncode == 0, done.stderr


def start_of_an_authority(folder: Path, address: str, server: str) -> PublicAddresses:
    """Runs what its pod runs before the authority, and says what invitations tell then."""
    manifests = render({"federation": "lungs", "ca": CA | {"address": address, "server": server}})
    (first,) = one(manifests, "StatefulSet", "fed-fedrep-ca")["spec"]["template"]["spec"]["initContainers"]
    given = {"FEDREP_CA__FOLDER": str(folder), "FEDREP_CA_PASSPHRASE": "a passphrase for tests"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": path, **given}
    command = [*first["command"], *first["args"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return PublicAddresses.load(folder)


def test_an_authority_is_made_once_and_invites_to_where_the_values_say(tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    first = start_of_an_authority(folder, "ca.example.org", "federation.example.org:8550")
    assert first == PublicAddresses("ca.example.org:8551", "ca.example.org:8552", "federation.example.org:8550")
    key = (folder / "authority.key").read_bytes()
    moved = PublicAddresses("ca.example.com:8551", "ca.example.com:8552", "federation.example.com:443")
    assert start_of_an_authority(folder, "ca.example.com", "federation.example.com:443") == moved
    (folder / ADDRESSES_FILE).unlink()  # a first start that was interrupted
    assert start_of_an_authority(folder, "ca.example.com", "federation.example.com:443") == moved
    assert (folder / "authority.key").read_bytes() == key
    assert not list(folder.glob("*.new"))


def test_the_rendered_settings_start_a_dashboard(identities: Path, tmp_path: Path) -> None:
    config = settings_file(case("existing-secrets"), "fed-fedrep-dashboard", "dashboard.toml", tmp_path)
    port, metrics_port = free_port(), free_port()
    moved = {
        "FEDREP_DASHBOARD__METRICS_PORT": str(metrics_port),
        "FEDREP_DASHBOARD__PORT": str(port),
        "FEDREP_DASHBOARD__CREDENTIALS": str(identities / "dashboard"),
        "FEDREP_DASHBOARD__ADMIN_TOKEN": "a" * 40,
        "FEDREP_DASHBOARD__VIEWER_TOKEN": "b" * 40,
        "FEDREP_DASHBOARD__SESSION_SECRET": "c" * 40,
    }
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **moved}
    with (tmp_path / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            [*FEDREP, "dashboard", "--config", str(config)], env=environment, cwd=REPOSITORY, stdout=log, stderr=log
        )
    try:
        limit = time.monotonic() + 120
        while True:
            assert process.poll() is None, (tmp_path / "dashboard.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                assert time.monotonic() < limit, (tmp_path / "dashboard.log").read_text()
                time.sleep(0.2)
        for host in ("127.0.0.1", "127.0.0.2", *(["[::1]"] if socket.has_dualstack_ipv6() else [])):
            with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=30) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(f"http://{host}:{metrics_port}/metrics", timeout=30) as answer:
                assert "fedrep_dashboard_server_reachable 0.0" in answer.read().decode()
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)
    finally:
        process.terminate()
        process.wait(20)
