"""Pods restart when a Secret changes, and their annotations, which many may read, are nothing to guess Secrets against."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.deploy.chart import CHART, HELM, MATRIX, Refused, one, pods, render

SEED = "correct horse battery staple, and some more"
KINDS = [{"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}]


@contextmanager
def cluster(version: str, content: str) -> Iterator[str]:
    """As much of a Kubernetes API as Helm's `lookup` asks: every Secret is there, with this version and content."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body: dict[str, object] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": KINDS}
            if "/secrets/" in self.path:
                name = self.path.rsplit("/", 1)[-1]
                metadata = {"name": name, "namespace": "fedrep", "uid": "1", "resourceVersion": version}
                body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"url": content}}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def checksums(version: str, content: str) -> set[str]:
    values = MATRIX["postgresql"]["server"] | {"identity": {"existingSecret": "server-identity"}}
    text = json.dumps({"server": values, "dashboard": {"identity": {"existingSecret": "dashboard-identity"}}})
    with cluster(version, content) as address:
        asked = ["template", "fed", str(CHART), "--namespace", "fedrep", "--dry-run=server", "--kube-apiserver", address]
        done = subprocess.run([str(HELM), *asked, "--values", "-"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = [pod["metadata"].get("annotations", {}) for pod in pods([m for m in yaml.safe_load_all(done.stdout) if m])]
    return {annotations["checksum/secrets"] for annotations in found if "checksum/secrets" in annotations}


def test_a_pod_restarts_when_its_secret_changes_and_shows_nothing_of_its_content() -> None:
    first = checksums("7", "b25l")
    assert first
    assert checksums("7", "dHdv") == first, "the content is not in it"
    assert not checksums("8", "b25l") & first


def test_the_annotation_of_seeded_tokens_is_too_short_to_tell_a_right_guess() -> None:
    pod = one(render({"dashboard": {"tokens": {"seed": SEED}}}), "Deployment", "fed-fedrep-dashboard")["spec"]["template"]
    shown = pod["metadata"]["annotations"]["checksum/secrets"]
    assert len(shown) == 4
    assert not hashlib.sha256(SEED.encode()).hexdigest().startswith(shown)


def test_a_seed_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(Refused, match=r"dashboard\.tokens\.seed: String length must be greater than or equal to 32"):
        render({"dashboard": {"tokens": {"seed": "x" * 31}}})
    assert render({"dashboard": {"tokens": {"seed": "x" * 32}}})
