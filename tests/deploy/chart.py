"""The chart, rendered: `render(**values)` gives Kubernetes objects, or raises Refused with Helm's own words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "fedrep"
HELM = Path(sys.executable).parent / "helm"
PROMTOOL_PATH = shutil.which("promtool", path=f"{os.environ['PATH']}{os.pathsep}{HELM.parent}") or ""
OPERATORS = ("--api-versions", "monitoring.coreos.com/v1", "--api-versions", "cert-manager.io/v1")
CA: dict[str, Any] = {
    "enabled": True,
    "address": "ca.example.org",
    "server": "federation.example.org:8550",
    "passphrase": {"existingSecret": "ca-passphrase"},
}

Manifest = dict[str, Any]
IDENTITIES: dict[str, Any] = {
    "server": {"identity": {"existingSecret": "server-identity"}},
    "dashboard": {"identity": {"existingSecret": "dashboard-identity"}},
}
SILO: dict[str, Any] = {
    "enabled": True,
    "run": "lungs",
    "identity": {"existingSecret": "silo-identity"},
    "settings": {
        "evaluate_every": 5,
        "give_up_after": 1000000,
        "trainer": {"dataset": "digits", "learning_rate": 0.05, "milestones": [10, 20], "schedule": "step"},
        "policy": {"least_alpha": 0.5, "allowed_runs": ["lungs", 'a "quoted" name']},
    },
}

MATRIX: dict[str, dict[str, Any]] = {
    "sqlite": IDENTITIES,
    "postgresql": {
        "server": {"database": {"kind": "postgresql", "existingSecret": "database"}},
        "networkPolicy": {"databaseTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "high-availability": {
        "server": {
            "replicas": 2,
            "database": {"kind": "postgresql", "existingSecret": "database"},
            "service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0/24"]},
            "settings": {"gather_seconds": 2.5, "retention": {"models": 5}, "alerts": {"webhook": "https://example.org/hook"}},
        },
        "dashboard": {"replicas": 2, "ingress": {"enabled": True, "host": "fedrep.example.org", "tlsSecret": "tls"}},
        "metrics": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "grafanaDashboard": {"enabled": True},
        },
    },
    "silo-with-gpu": {
        "server": {"enabled": False},
        "dashboard": {"enabled": False},
        "silo": {
            **SILO,
            "server": "federation.example.org:8550",
            "gpu": {"count": 2, "runtimeClassName": "nvidia"},
            "nodeSelector": {"accelerator": "a100"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "dataVolume": {"persistentVolumeClaim": {"claimName": "images", "readOnly": True}},
        },
    },
    "silo-job": {
        "server": {"enabled": False},
        "dashboard": {"enabled": False},
        "silo": {**SILO, "kind": "Job", "server": "federation.example.org:8550", "gpu": {"count": 1}},
    },
    "existing-secrets": {
        "dashboard": {
            "tokens": {"existingSecret": "tokens"},
            "settings": {"proxy": {"user_header": "X-User", "trusted": ["10.0.0.0/8"]}},
        },
        "server": {
            "revocations": {"existingConfigMap": "revocations"},
            "webhook": {"existingSecret": "webhook", "port": 8443},
            "ingress": {"enabled": True, "host": "federation.example.org"},
            "extraEnv": [{"name": "FEDREP_SERVER__WAIT_SECONDS", "value": "20"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        },
        "networkPolicy": {"silosFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "dashboardFrom": [{"namespaceSelector": {}}]},
        "image": {"registry": "mirror.example.org/library/", "pullSecrets": [{"name": "login"}]},
        "silo": SILO,
        "arbitraryUids": True,
    },
    "cert-manager": {
        "federation": "lungs",
        "server": {"identity": {"existingSecret": "", "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}},
        "dashboard": {"identity": {"existingSecret": "", "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}},
    },
    "authority": {
        "federation": "lungs",
        "ca": CA | {"service": {"type": "LoadBalancer"}},
        "server": {
            "database": {"kind": "postgresql", "existingSecret": "database"},
            "gateway": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["federation.example.org"]},
            "backup": {"enabled": True, "target": "s3://bucket/fedrep"},
        },
        "dashboard": {"service": {"type": "LoadBalancer"}, "tokens": {"seed": "a random text of more than 32 characters"}},
        "metrics": {"serviceMonitor": {"enabled": True}},
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "{{ .Release.Name }}-more", "namespace": "{{ .Release.Namespace }}"},
            }
        ],
    },
    "both-families": {
        "federation": "lungs",
        "ca": CA,
        "services": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
    },
    "backups-on-a-volume": {"server": {"backup": {"enabled": True, "existingClaim": "backups"}}},
    "restoring": {"server": {"replicas": 0, "restore": {"from": "/backups/a.tar"}, "backup": {"existingClaim": "backups"}}},
    "silo-of-cert-manager": {
        "federation": "lungs",
        "server": {"enabled": False},
        "dashboard": {"enabled": False},
        "silo": {
            **SILO,
            "server": "federation.example.org:443",
            "identity": {"certManager": {"enabled": True, "name": "hospital-a", "issuerRef": {"name": "ca"}}},
        },
    },
    "everything-off": {
        "server": {"enabled": False},
        "dashboard": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False},
    },
}


class Refused(Exception):  # noqa: N818 - it is Helm's answer, not an error of these tests
    """What Helm printed when it refused to render."""


def case(name: str) -> list[Manifest]:
    return render(MATRIX[name])


def render(values: Manifest, *, apis: tuple[str, ...] = OPERATORS, chart: Path = CHART) -> list[Manifest]:
    """Identities are named unless told otherwise, so that a test says only what it is about."""
    merged = _merged(IDENTITIES, values)
    arguments = [str(HELM), "template", "fed", str(chart), "--namespace", "fedrep", "--values", "-"]
    done = subprocess.run([*arguments, *apis], input=json.dumps(merged), capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise Refused(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def _merged(low: Manifest, high: Manifest) -> Manifest:
    both = {key: _merged(low[key], high[key]) for key in low.keys() & high.keys() if isinstance(low[key], dict)}
    return {**low, **high, **both}


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [item for item in manifests if item["kind"] == kind and item["metadata"]["name"] == name]
    return found


def pods(manifests: list[Manifest]) -> list[Manifest]:
    """Every pod spec, with its metadata."""
    found = [item for item in manifests if item["kind"] == "Pod"]
    found += [item["spec"]["jobTemplate"]["spec"]["template"] for item in manifests if item["kind"] == "CronJob"]
    return found + [item["spec"]["template"] for item in manifests if "template" in item.get("spec", {})]
