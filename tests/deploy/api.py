"""As much of a Kubernetes API as Helm's `lookup` asks, and the chart rendered by a Helm that talks to it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

from tests.deploy.chart import CHART, HELM, Manifest, Refused

KINDS = {"secrets": "Secret", "persistentvolumeclaims": "PersistentVolumeClaim"}
RESOURCES = [{"name": name, "namespaced": True, "kind": kind, "verbs": ["get"]} for name, kind in KINDS.items()]
# What is in the namespace, by kind and name: more of an object than these two, or None where there is no such object.
Objects = Callable[[str, str], Manifest | None]


@contextmanager
def cluster(objects: Objects) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body: Manifest = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": RESOURCES}
            status = 200
            *_, resource, name = self.path.split("/")
            if resource in KINDS:
                found = objects(KINDS[resource], name)
                status = 404 if found is None else 200
                body = {"apiVersion": "v1", "kind": KINDS[resource], **(found or {})}
                if found is None:
                    body = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            self.send_response(status)
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


def render_in(objects: Objects, values: Manifest) -> list[Manifest]:
    with cluster(objects) as address:
        asked = ["template", "fed", str(CHART), "--namespace", "fedrep", "--dry-run=server", "--kube-apiserver", address]
        done = subprocess.run(
            [str(HELM), *asked, "--values", "-"], input=json.dumps(values), capture_output=True, text=True, timeout=60
        )
    if done.returncode:
        raise Refused(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]
