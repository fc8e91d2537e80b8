"""Pods restart when a Secret changes, and their annotations, which many may read, are nothing to guess Secrets against."""

from __future__ import annotations

import base64
import hashlib
import json
import tomllib

import pytest

from fedrep_runtime.settings import load_settings
from fedrep_server.config import ServerSettings
from tests.deploy.api import render_in
from tests.deploy.chart import MATRIX, Manifest, Refused, one, pods, render

SEED = "correct horse battery staple, and some more"


def checksums(version: str, content: str) -> set[str]:
    """Of pods in a cluster where every Secret is there, with this version and content."""

    def objects(kind: str, name: str) -> Manifest:
        metadata = {"name": name, "namespace": "fedrep", "uid": "1", "resourceVersion": version}
        return {"metadata": metadata, "data": {"url": content}}

    server = MATRIX["postgresql"]["server"] | {"identity": {"existingSecret": "server-identity"}}
    manifests = render_in(objects, {"server": server, "dashboard": {"identity": {"existingSecret": "dashboard-identity"}}})
    found = [pod["metadata"].get("annotations", {}) for pod in pods(manifests)]
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


def webhook_of(values: Manifest) -> tuple[list[Manifest], Manifest, Manifest]:
    """What is rendered of a server with these values, its pod's annotations, and the Secret and key of its webhook."""
    manifests = render({"server": values})
    pod = one(manifests, "StatefulSet", "fed-fedrep-server")["spec"]["template"]
    environment = {entry["name"]: entry["valueFrom"] for entry in pod["spec"]["containers"][0]["env"]}
    return manifests, pod["metadata"]["annotations"], environment["FEDREP_SERVER__ALERTS__WEBHOOK"]["secretKeyRef"]


def test_a_webhook_is_in_a_secret_and_nowhere_else() -> None:
    url = "https://hooks.example.org/T0/B0/secret"
    manifests, annotations, key = webhook_of({"settings": {"alerts": {"webhook": url, "missing_after": 30}}})
    secret = one(manifests, "Secret", key["name"])
    given = {"FEDREP_SERVER__ALERTS__WEBHOOK": base64.b64decode(secret["data"][key["key"]]).decode()}
    assert load_settings(ServerSettings, None, "FEDREP_SERVER", given).alerts.webhook == url
    assert "hooks.example.org" not in json.dumps([item for item in manifests if item != secret])
    settings = tomllib.loads(one(manifests, "ConfigMap", "fed-fedrep-server")["data"]["server.toml"])
    assert settings["alerts"] == {"missing_after": 30}
    assert len(annotations["checksum/webhook"]) == 4, "too short to tell a right guess"


def test_a_pod_restarts_when_its_webhook_changes() -> None:
    first, second = (webhook_of({"settings": {"alerts": {"webhook": f"https://a.example.org/{end}"}}})[1] for end in "ab")
    assert first["checksum/webhook"] != second["checksum/webhook"]


def test_a_webhook_may_come_from_a_secret_that_is_there() -> None:
    manifests, annotations, key = webhook_of({"webhook": {"existingSecret": "hook", "secretKey": "address"}})
    assert key == {"name": "hook", "key": "address"}
    assert "checksum/secrets" in annotations
    assert not [item for item in manifests if item["kind"] == "Secret" and "webhook" in item["metadata"]["name"]]


def test_a_seed_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(Refused, match=r"dashboard\.tokens\.seed: String length must be greater than or equal to 32"):
        render({"dashboard": {"tokens": {"seed": "x" * 31}}})
    assert render({"dashboard": {"tokens": {"seed": "x" * 32}}})
