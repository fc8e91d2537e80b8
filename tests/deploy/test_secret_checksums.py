"""Pods restart when a Secret changes, and their annotations, which many may read, are nothing to guess Secrets against."""

from __future__ import annotations

import hashlib

import pytest

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


def test_a_seed_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(Refused, match=r"dashboard\.tokens\.seed: String length must be greater than or equal to 32"):
        render({"dashboard": {"tokens": {"seed": "x" * 31}}})
    assert render({"dashboard": {"tokens": {"seed": "x" * 32}}})
