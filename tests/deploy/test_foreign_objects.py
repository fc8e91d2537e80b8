"""Objects of cert-manager, the Prometheus operator and the Gateway API, judged by what those say about them themselves."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path

import pytest

from tests.deploy.chart import MATRIX, OPERATORS, REPOSITORY, Manifest, case, render

FOLDER = REPOSITORY / ".bench" / "crds"
GROUPS = ("cert-manager.io/", "monitoring.coreos.com/", "gateway.networking.k8s.io/")
pytestmark = pytest.mark.skipif(
    not (FOLDER / "node_modules").exists(), reason="The operators' definitions are fetched by `make crds`."
)


def complaints(objects: list[Manifest]) -> list[str]:
    done = subprocess.run(
        ["node", Path(__file__).parent / "foreign.mjs"],
        input=json.dumps(objects), capture_output=True, text=True, timeout=120, cwd=FOLDER,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def foreign(manifests: list[Manifest]) -> list[Manifest]:
    return [item for item in manifests if item["apiVersion"].startswith(GROUPS)]


def test_the_operators_accept_every_object_of_theirs() -> None:
    found = [item for name in MATRIX for item in foreign(case(name))]
    for version in ("v1alpha3", "v1"):
        newer = ("--api-versions", f"gateway.networking.k8s.io/{version}/TLSRoute")
        found += foreign(render(MATRIX["authority"], apis=(*OPERATORS, *newer)))
    assert {item["kind"] for item in found} == {"Certificate", "ServiceMonitor", "PrometheusRule", "TLSRoute"}
    assert complaints(found) == []


@pytest.mark.parametrize(
    ("kind", "part", "wrong"),
    [
        ("Certificate", "duration", 5),
        ("ServiceMonitor", "endpoints", "all"),
        ("PrometheusRule", "groups", 1),
        ("TLSRoute", "rules", 1),
    ],
)
def test_what_an_operator_would_refuse_is_noticed(kind: str, part: str, wrong: object) -> None:
    names = {"Certificate": "cert-manager", "TLSRoute": "authority"}
    (first, *_) = [item for item in case(names.get(kind, "high-availability")) if item["kind"] == kind]
    broken = copy.deepcopy(first)
    broken["spec"][part] = wrong
    assert len(complaints([first, broken])) == 1
