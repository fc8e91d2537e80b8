"""The images, built and started as the chart's pods: their command, arguments and settings, non-root, on a read-only root."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Identity, Role
from tests.deploy.chart import HELM, Manifest, one, pods, render
from tests.deploy.release_script import release_script
from tests.images.compose import Federation, make_database, playing
from tests.images.containers import BASE, Builder, Container, end, own_network, why_not
from tests.images.registry import PROGRAM, layers, push, serving

reason = why_not()
pytestmark = [pytest.mark.skipif(reason is not None, reason=reason or ""), pytest.mark.timeout(7200)]

PAGE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:{}', timeout=5).read().decode())"
PAGE_6 = PAGE.replace("127.0.0.1", "[::1]")
VALUES: Manifest = {
    "silo": {
        "enabled": True,
        "run": "lungs",
        "identity": {"existingSecret": "silo-identity"},
        "server": "localhost:8550",
        "settings": {"give_up_after": 5},
    },
    "dashboard": {"settings": {"server": "localhost:8550"}},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Identities, settings and empty volumes, owned as a cluster would: readable, and writable only where data go."""
    folder = tmp_path_factory.mktemp("home")
    authority = CertificateAuthority.create(folder / "ca", "lungs", "a passphrase for tests")
    server = Identity("main", Role.SERVER, "lungs")
    issue_credentials(authority, folder / "server-identity", server, ("localhost", "fed-fedrep-server"), ("127.0.0.1",))
    issue_credentials(authority, folder / "dashboard-identity", Identity("dashboard", Role.VIEWER, "lungs"))
    issue_credentials(authority, folder / "silo-identity", Identity("silo-1", Role.SILO, "lungs"))
    for config in (item for item in render(VALUES) if item["kind"] == "ConfigMap"):
        (folder / config["metadata"]["name"]).mkdir()
        for name, text in config["data"].items():
            (folder / config["metadata"]["name"] / name).write_text(text)
    for part in ("server", "silo"):
        (folder / f"{part}-data").mkdir()
        os.chown(folder / f"{part}-data", 10001, 0)
    for path in (*folder.glob("*-identity/*"), *folder.parents, folder):
        if path.is_file():
            os.chown(path, 0, 0)
            path.chmod(0o440)  # as a Secret's files are with this chart
        elif path.is_relative_to(Path(tempfile.gettempdir())):
            path.chmod(path.stat().st_mode | 0o055)
    for path in folder.glob("*-identity"):
        path.chmod(0o755)
    return folder


def pod_container(name: str, kind: str) -> Manifest:
    (container,) = one(render(VALUES), kind, name)["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def container_of(builder: Builder, tag: str, mounts: dict[str, Path], network: int | None = None) -> Container:
    environment = dict(entry.split("=", 1) for entry in builder.config(tag)["Env"])
    return Container(builder.unpack(tag), environment, mounts, network)


@contextmanager
def started(container: Container, spec: Manifest, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        command = container.command([*spec["command"], *spec["args"]], variables)
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        end(process)


def until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    limit = time.monotonic() + seconds
    while not answers():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.3)


def answered(container: Container, words: list[str]) -> bool:
    return container.run(*words).returncode == 0


def check_image(builder: Builder, tag: str, part: str) -> None:
    config: dict[str, Any] = builder.config(tag)
    assert config["User"] == "10001:0"
    assert config["Healthcheck"]["Test"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == f"fedrep-{part}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    container = container_of(builder, tag, {})
    assert container.run("fedrep", "--version").stdout.startswith("fedrep ")
    for tool in ("pip", "pip3", "gcc", "cc", "make"):
        assert container.run("sh", "-c", f"command -v {tool}").returncode != 0, tool
    assert container.run("sh", "-c", "echo x > /opt/fedrep/x").returncode != 0
    assert container.run("sh", "-c", "echo x > /var/lib/fedrep/x").returncode != 0, "the root must be read-only"
    assert container.run("id", "-u").stdout.strip() == "10001"
    listed = json.loads(container.run("cat", "/opt/fedrep/sbom.json").stdout)
    assert "pkg:pypi/fedrep" in {component["purl"].split("@")[0] for component in listed["components"]}


def test_the_server_image_is_slim_and_starts_as_the_charts_pod(
    builder: Builder, server: str, home: Path, network: int, tmp_path: Path
) -> None:
    check_image(builder, server, "server")
    mounts = {
        "/etc/fedrep/config": home / "fed-fedrep-server",
        "/etc/fedrep/identity": home / "server-identity",
        "/var/lib/fedrep": home / "server-data",
    }
    container = container_of(builder, server, mounts, network)
    assert container.run("python3", "-c", "import torch").returncode != 0
    spec, log = pod_container("fed-fedrep-server", "StatefulSet"), tmp_path / "server.log"
    with started(container, spec, log, POD_NAME="fed-fedrep-server-0", POD_IP="127.0.0.1") as process:
        probe = ["fedrep", "server", "health", "--config", "/etc/fedrep/config/server.toml"]
        until(lambda: container.run(*probe).returncode == 0, process, log)
    assert (home / "server-data" / "fedrep.sqlite3").stat().st_uid == 10001


def test_the_dashboard_image_starts_as_the_charts_pod(
    builder: Builder, dashboard: str, home: Path, network: int, tmp_path: Path
) -> None:
    check_image(builder, dashboard, "dashboard")
    mounts = {"/etc/fedrep/config": home / "fed-fedrep-dashboard", "/etc/fedrep/identity": home / "dashboard-identity"}
    container = container_of(builder, dashboard, mounts, network)
    assert container.run("python3", "-c", "import torch").returncode != 0
    tokens = {f"FEDREP_DASHBOARD__{name}": name * 10 for name in ("ADMIN_TOKEN", "VIEWER_TOKEN", "SESSION_SECRET")}
    spec, log = pod_container("fed-fedrep-dashboard", "Deployment"), tmp_path / "dashboard.log"
    with started(container, spec, log, **tokens) as process:
        until(lambda: "<script" in container.run("python3", "-c", PAGE.format("8080/")).stdout, process, log)


def test_pods_serve_a_network_that_has_ipv6_alone(
    builder: Builder, server: str, dashboard: str, home: Path, tmp_path: Path
) -> None:
    images = {"server": (server, "StatefulSet"), "dashboard": (dashboard, "Deployment")}
    asked = {
        "server": [["fedrep", "server", "health", "--address", "[::1]:8553"], ["python3", "-c", PAGE_6.format("8554/metrics")]],
        "dashboard": [["python3", "-c", PAGE_6.format("8080/")], ["python3", "-c", PAGE_6.format("8554/metrics")]],
    }
    tokens = {f"FEDREP_DASHBOARD__{name}": name * 10 for name in ("ADMIN_TOKEN", "VIEWER_TOKEN", "SESSION_SECRET")}
    with own_network("ipv6") as network:
        for part, (tag, kind) in images.items():
            mounts = {"/etc/fedrep/config": home / f"fed-fedrep-{part}", "/etc/fedrep/identity": home / f"{part}-identity"}
            mounts |= {"/var/lib/fedrep": home / "server-data"} if part == "server" else {}
            container, log = container_of(builder, tag, mounts, network), tmp_path / f"{part}.log"
            assert container.run("python3", "-c", PAGE.format("1/")).stderr.endswith("Network is unreachable>\n")
            spec = pod_container(f"fed-fedrep-{part}", kind)
            with started(container, spec, log, **tokens) as process:
                for words in asked[part]:
                    until(partial(answered, container, words), process, log)


def test_the_client_image_starts_as_the_charts_pod(
    builder: Builder, client: str, home: Path, network: int, tmp_path: Path
) -> None:
    check_image(builder, client, "client")
    mounts = {
        "/etc/fedrep/config": home / "fed-fedrep-silo",
        "/etc/fedrep/identity": home / "silo-identity",
        "/var/lib/fedrep": home / "silo-data",
    }
    container = container_of(builder, client, mounts, network)
    spec, log = pod_container("fed-fedrep-silo", "StatefulSet"), tmp_path / "silo.log"
    with started(container, spec, log) as process:
        until(lambda: (home / "silo-data" / "state" / ".lock").exists(), process, log)
        until(lambda: "server_away" in log.read_text(), process, log)


def test_compose_plays_a_federation_from_these_images(
    builder: Builder, server: str, dashboard: str, client: str, network: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """PostgreSQL, authority, server and dashboard first, without a silo's image; then three silos and rounds that are applied."""
    make_database(builder)
    images = {"server": server, "dashboard": dashboard, "client": client, "database": "localhost/fedrep-test-database"}
    folder = tmp_path_factory.mktemp("compose")
    with playing(Federation(builder, folder, network, images)) as plain:
        for name in ("ca", "server", "dashboard"):
            plain.until_healthy(name, 300)
        assert {5432, 8550, 8551, 8552, 8080} <= plain.listening()
        assert "<script" in plain.container("dashboard").run("python3", "-c", PAGE.format("8080/")).stdout
    assert plain.listening() == set(), "nothing may go on without the others"

    with playing(Federation(builder, folder, network, images, frozenset({"demo"}))) as whole:
        admin, limit = whole.container("run"), time.monotonic() + 600
        ask = ["fedrep", "run", "show", "demo", "--server", "server:8550", "--identity", "/etc/fedrep/identity", "--json"]
        applied = 0
        while not applied:
            for silo in ("silo-1", "silo-2", "silo-3", "server"):
                assert whole.running[silo].poll() is None, whole.log(silo)
            assert time.monotonic() < limit, whole.log("server")
            told = json.loads(admin.run(*ask).stdout or "{}")
            applied = told.get("summary", {}).get("rounds_applied", 0)
        metrics = whole.container("server").run("python3", "-c", PAGE.format("8554/metrics")).stdout
        assert "fedrep_revocation_lists 1.0" in metrics, "the server asks the authority"
    assert whole.listening() == set()


def test_the_contents_of_an_image_can_be_had_without_it(builder: Builder) -> None:
    tag = builder.build("sbom", "--build-arg", "PART=dashboard")
    assert BASE not in tag
    listed = json.loads((builder.unpack(tag) / "sbom.json").read_text())
    names = {component["name"] for component in listed["components"]}
    assert {"fedrep", "fastapi"} <= names
    assert "torch" not in names


@pytest.mark.skipif(PROGRAM is None, reason="Debian's docker-registry is missing; make test-images fetches it.")
def test_a_chart_that_is_pulled_names_images_that_can_be_pulled(
    builder: Builder, server: str, dashboard: str, tmp_path: Path
) -> None:
    """Pushed by the release's own steps; what signs is noted, since there is nobody to sign for."""
    signed: list[str] = []

    def run(*command: str | Path, errors_too: bool = False) -> str:
        words = [str(word) for word in command]
        if words[0] == "cosign":
            signed.append(words[-1])
            return ""
        return str(script.shell(*words, *(["--plain-http"] if words[1] == "push" else []), errors_too=errors_too))

    script = release_script()
    with serving(tmp_path) as address:
        made = script.Release("0.1.0", f"{address}/fedrep", False, tmp_path / "dist", run)
        made.out.mkdir()
        for part, tag in (("server", server), ("dashboard", dashboard)):
            made.digests[part] = push(builder, tag, f"{made.registry}/{part}:0.1.0")
        script.chart(made)
        assert len(signed) == 1
        assert signed[0].startswith(f"{made.registry}/charts/fedrep@sha256:")
        place = ["--plain-http", "--version", "0.1.0", "--destination", str(tmp_path)]
        subprocess.run([HELM, "pull", f"oci://{made.registry}/charts/fedrep", *place], check=True, timeout=120)
        manifests = render({}, chart=tmp_path / "fedrep-0.1.0.tgz")
        named = {item["image"] for pod in pods(manifests) for item in pod["spec"]["containers"]}
        assert named == {f"{made.registry}/{part}@{made.digests[part]}" for part in ("server", "dashboard")}
        first, second = (layers(builder, image) for image in sorted(named))
    assert len(set(first) & set(second)) >= 3, "the base, what is done to it, and FedREP itself are pulled once"
