"""The Helm chart as a strict platform team would check it: lint, schemas of two Kubernetes versions, security, wiring."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from fedrep_cli.client import LEAVE_SECONDS
from fedrep_cli.main import FAILED, USAGE
from fedrep_silo.config import SiloSettings
from tests.deploy.chart import CHART, HELM, IDENTITIES, MATRIX, REPOSITORY, SILO, Manifest, Refused, case, one, pods, render
from tests.deploy.pod_security import violations

# From the oldest that the chart's documents claim to the newest that the validator knows.
KUBERNETES = tuple(f"1.{minor}" for minor in range(29, int(kubernetes_validate.latest_version().split(".")[1]) + 1))
FOREIGN = {"ServiceMonitor", "PrometheusRule", "Certificate", "TLSRoute"}  # of operators; kubernetes-validate does not know them


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Manifest]]:
    return {name: case(name) for name in MATRIX}


def test_helm_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(IDENTITIES))
    done = subprocess.run([HELM, "lint", "--strict", CHART, "--values", values], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_every_object(
    rendered: dict[str, list[Manifest]], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that are the same in several renderings are judged once, and a version's schemas are read once."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
    different = {json.dumps(item, sort_keys=True) for manifests in rendered.values() for item in manifests}
    judged = [item for item in map(json.loads, different) if item["kind"] not in FOREIGN]
    assert len(judged) > 50
    for manifest in judged:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_readme_and_schema_are_up_to_date() -> None:
    generator = REPOSITORY / "deploy" / "helm" / "generate.py"
    done = subprocess.run([sys.executable, generator, "--check"], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"server": {"replica": 2}}, "replica"),
        ({"servr": {}}, "servr"),
        ({"server": {"replicas": "two"}}, "integer"),
        ({"server": {"database": {"kind": "mysql"}}}, "sqlite"),
        ({"server": {"settings": {"gather_secnds": 1}}}, "gather_secnds"),
        ({"server": {"settings": {"port": 1}}}, "port"),
        ({"server": {"settings": {"retention": {"model": 1}}}}, "model"),
        ({"silo": {"settings": {"trainer": {"datset": "x"}}}}, "datset"),
        ({"dashboard": {"settings": {"admin_token": "in the open"}}}, "admin_token"),
        ({"server": {"replicas": 2}}, "server.replicas is more than 1 with SQLite"),
        ({"server": {"database": {"kind": "postgresql"}}}, "server.database.existingSecret is empty"),
        ({"server": {"database": {"existingSecret": "db"}}}, "server.database.kind is sqlite, which does not read it"),
        (
            {"server": {"webhook": {"existingSecret": "hook"}, "settings": {"alerts": {"webhook": "https://example.org/hook"}}}},
            "server.webhook.existingSecret and server.settings.alerts.webhook both say where alerts go",
        ),
        ({"server": {"settings": {"grace_seconds": 90}}}, "terminationGracePeriodSeconds must be larger"),
        ({"silo": {"enabled": True}}, "silo.run is empty"),
        ({"silo": {"enabled": True, "run": "*", "kind": "Job"}}, "silo.kind=Job is for one run"),
        ({"server": {"identity": {"existingSecret": ""}}}, "server.identity.existingSecret is empty"),
        ({"server": {"ingress": {"enabled": True}}}, "server.ingress.host is empty"),
        ({"dashboard": {"ingress": {"enabled": True}}}, "dashboard.ingress.host is empty"),
        ({"server": {"enabled": False}}, "dashboard.settings.server is empty"),
        ({"dashboard": {"settings": {"server": "elsewhere:8550"}}}, "dashboard.settings.server is set and this release runs"),
    ],
)
def test_bad_values_are_refused_with_a_sentence_that_names_them(values: Manifest, words: str) -> None:
    with pytest.raises(Refused, match=words):
        render(values)


@pytest.mark.parametrize("name", MATRIX)
def test_every_pod_meets_the_restricted_standard(rendered: dict[str, list[Manifest]], name: str) -> None:
    for pod in pods(rendered[name]):
        assert violations(pod["spec"]) == []
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]["memory"]
            assert container["resources"]["limits"]["memory"]


def test_user_ids_are_left_to_the_cluster_when_asked(rendered: dict[str, list[Manifest]]) -> None:
    for pod in pods(rendered["existing-secrets"]):
        assert not {"runAsUser", "fsGroup", "runAsGroup"} & pod["spec"]["securityContext"].keys()
    for pod in pods(rendered["sqlite"]):
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001


def test_probes_ask_the_plaintext_port_and_pods_know_their_own_address(rendered: dict[str, list[Manifest]]) -> None:
    server = one(rendered["high-availability"], "Deployment", "fed-fedrep-server")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["grpc"] == {"port": 8553, "service": "live"}
    assert container["startupProbe"]["grpc"] == {"port": 8553, "service": "live"}
    assert container["readinessProbe"]["grpc"] == {"port": 8553, "service": ""}
    assert {"name": "FEDREP_SERVER__ADVERTISE", "value": "[$(POD_IP)]:8550"} in container["env"]
    assert [entry["name"] for entry in container["env"]].index("POD_IP") == 0, "what is used must come before its use"


def test_servers_that_share_a_database_keep_nothing_on_their_pods_and_one_is_always_there(
    rendered: dict[str, list[Manifest]],
) -> None:
    manifests = rendered["high-availability"]
    assert not [item for item in manifests if item["kind"] in ("StatefulSet", "PersistentVolumeClaim")]
    server = one(manifests, "Deployment", "fed-fedrep-server")
    assert server["spec"]["replicas"] == 2
    assert server["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    keys = [item["topologyKey"] for item in server["spec"]["template"]["spec"]["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert {"name": "FEDREP_SERVER__DATABASE", "valueFrom": {"secretKeyRef": {"name": "database", "key": "url"}}} in container[
        "env"
    ]
    volumes = {volume["name"]: volume for volume in server["spec"]["template"]["spec"]["volumes"]}
    assert "emptyDir" in volumes["data"]


def test_a_server_on_sqlite_has_a_volume(rendered: dict[str, list[Manifest]]) -> None:
    server = one(rendered["sqlite"], "StatefulSet", "fed-fedrep-server")
    assert [claim["metadata"]["name"] for claim in server["spec"]["volumeClaimTemplates"]] == ["data"]
    assert server["spec"]["replicas"] == 1


def test_disruption_budgets_never_block_a_drain(rendered: dict[str, list[Manifest]]) -> None:
    for manifests in rendered.values():
        for budget in (item for item in manifests if item["kind"] == "PodDisruptionBudget"):
            assert budget["spec"]["maxUnavailable"] == 1
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    for part in ("server", "dashboard"):
        assert one(rendered["high-availability"], "PodDisruptionBudget", f"fed-fedrep-{part}")
    assert not [item for item in rendered["sqlite"] if item["kind"] == "PodDisruptionBudget"]


@pytest.mark.parametrize("database", [{"kind": "sqlite"}, {"kind": "postgresql", "existingSecret": "db"}])
def test_a_release_can_be_put_to_sleep(database: Manifest) -> None:
    asleep = render({"server": {"replicas": 0, "database": database}, "dashboard": {"replicas": 0}})
    counts = [item["spec"]["replicas"] for item in asleep if item["kind"] in ("StatefulSet", "Deployment")]
    assert counts == [0, 0]


def test_network_policies_are_on_by_default_and_cover_every_pod(rendered: dict[str, list[Manifest]]) -> None:
    for name in ("sqlite", "high-availability", "silo-with-gpu", "existing-secrets"):
        selected = [item["spec"]["podSelector"]["matchLabels"] for item in rendered[name] if item["kind"] == "NetworkPolicy"]
        for pod in pods(rendered[name]):
            labels = pod["metadata"]["labels"]
            assert any(wanted.items() <= labels.items() for wanted in selected), labels
    silo = one(rendered["silo-with-gpu"], "NetworkPolicy", "fed-fedrep-silo")
    assert silo["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in silo["spec"]
    assert [rule["ports"] for rule in silo["spec"]["egress"]][-1] == [{"port": 8550, "protocol": "TCP"}]


def test_a_gpu_silo_asks_for_its_gpus_and_finds_its_data(rendered: dict[str, list[Manifest]]) -> None:
    spec = one(rendered["silo-with-gpu"], "StatefulSet", "fed-fedrep-silo")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {
        "limits": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": 2},
        "requests": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": 2},
    }
    assert spec["nodeSelector"] == {"accelerator": "a100"}
    assert spec["runtimeClassName"] == "nvidia"
    assert {"name": "training-data", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]


def test_a_finished_silo_stays_idle_and_a_job_ends_with_its_run(rendered: dict[str, list[Manifest]]) -> None:
    config = one(rendered["silo-with-gpu"], "ConfigMap", "fed-fedrep-silo")["data"]["client.toml"]
    assert 'when_done = "wait"' in config, "a StatefulSet starts whatever ends"
    manifests = rendered["silo-job"]
    (job,) = [item for item in manifests if item["kind"] == "Job"]
    assert "when_done" not in one(manifests, "ConfigMap", "fed-fedrep-silo")["data"]["client.toml"]
    assert not [item for item in manifests if item["kind"] == "StatefulSet"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    first = job["spec"]["podFailurePolicy"]["rules"][0]
    assert (first["action"], first["onExitCodes"]["values"]) == ("FailJob", [FAILED, USAGE])
    claim = one(manifests, "PersistentVolumeClaim", "fed-fedrep-silo-state")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (volume,) = [item for item in job["spec"]["template"]["spec"]["volumes"] if item["name"] == "state"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


@pytest.mark.parametrize("name", ["silo-with-gpu", "silo-job"])
@pytest.mark.parametrize(("settings", "seconds"), [({}, 60), ({"grace_seconds": 0}, 60), ({"grace_seconds": 299.5}, 330)])
def test_a_silo_has_time_to_finish_a_promised_round_and_leave(name: str, settings: Manifest, seconds: int) -> None:
    values = MATRIX[name] | {"silo": MATRIX[name]["silo"] | {"settings": settings}}
    (pod,) = pods(render(values))
    assert pod["spec"]["terminationGracePeriodSeconds"] == seconds > SiloSettings(**settings).grace_seconds + LEAVE_SECONDS


def test_another_run_is_another_job_on_the_same_volume() -> None:
    def names(run: str) -> list[str]:
        silo = MATRIX["silo-job"] | {"silo": MATRIX["silo-job"]["silo"] | {"run": run}}
        return [item["metadata"]["name"] for item in render(silo) if item["kind"] in ("Job", "PersistentVolumeClaim")]

    first, second = names("lungs"), names("hearts")
    assert first == names("lungs")
    assert len(set(first) & set(second)) == 1


@pytest.mark.parametrize(("component", "kind"), [("server", "StatefulSet"), ("dashboard", "Deployment"), ("silo", "StatefulSet")])
def test_what_an_operator_adds_to_a_pod_is_there(component: str, kind: str) -> None:
    scheduling = {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "tainted", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "important",
    }
    variable = {"name": "MORE", "value": "1"}
    volume, mount = {"name": "more", "emptyDir": {}}, {"name": "more", "mountPath": "/more"}
    added = scheduling | {
        "podAnnotations": {"team": "platform"},
        "podLabels": {"cost": "research"},
        "extraEnv": [variable],
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
        "resources": {"requests": {"cpu": "3", "memory": "3Gi"}, "limits": {"memory": "3Gi"}},
    }
    chosen = {"silo": SILO} | {component: (SILO if component == "silo" else {}) | added}
    template = one(render(chosen), kind, f"fed-fedrep-{component}")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert scheduling.items() <= template["spec"].items()
    assert (template["metadata"]["annotations"]["team"], template["metadata"]["labels"]["cost"]) == ("platform", "research")
    assert (variable in container["env"], volume in template["spec"]["volumes"]) == (True, True)
    assert mount in container["volumeMounts"]
    assert container["resources"]["requests"]["cpu"] == "3"


def test_silos_outside_reach_the_server_by_load_balancer_or_with_tls_passed_through(rendered: dict[str, list[Manifest]]) -> None:
    balanced = one(rendered["high-availability"], "Service", "fed-fedrep-server")["spec"]
    assert (balanced["type"], balanced["loadBalancerSourceRanges"]) == ("LoadBalancer", ["192.0.2.0/24"])
    ingress = one(rendered["existing-secrets"], "Ingress", "fed-fedrep-server")
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/ssl-passthrough"] == "true"
    assert "tls" not in ingress["spec"], "TLS that ended at the controller would lose the silo's certificate"
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["federation.example.org"]


def test_helm_test_asks_the_server_and_the_dashboard(rendered: dict[str, list[Manifest]]) -> None:
    (hook,) = [item for item in rendered["sqlite"] if item["kind"] == "Pod"]
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "test"
    asked = {container["name"]: container["args"][-1] for container in hook["spec"]["containers"]}
    services = {item["metadata"]["name"]: item["spec"]["ports"] for item in rendered["sqlite"] if item["kind"] == "Service"}
    assert asked["a-server-leads"] == "fed-fedrep-server-internal:8553"
    assert 8553 in [port["port"] for port in services["fed-fedrep-server-internal"]]
    assert "http://fed-fedrep-dashboard:80/readyz" in asked["the-dashboard-answers"]
    assert 80 in [port["port"] for port in services["fed-fedrep-dashboard"]]


def test_pods_restart_when_their_settings_change() -> None:
    def checksum(seconds: int) -> str:
        manifests = render({"server": {"settings": {"gather_seconds": seconds}}})
        server = one(manifests, "StatefulSet", "fed-fedrep-server")
        return str(server["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum(3) == checksum(3) != checksum(4)


def test_a_registry_replaces_where_every_image_comes_from(rendered: dict[str, list[Manifest]]) -> None:
    images = {container["image"] for pod in pods(rendered["existing-secrets"]) for container in pod["spec"]["containers"]}
    parts = {"server": "0.1.0", "dashboard": "0.1.0", "client": "0.1.0-cpu"}
    assert images == {f"mirror.example.org/library/fedrep/{part}:{tag}" for part, tag in parts.items()}
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "login"}] for pod in pods(rendered["existing-secrets"]))


def test_an_image_can_be_given_by_digest() -> None:
    server, cuda = "sha256:" + "0" * 64, "sha256:" + "1" * 64
    chosen = {"digests": {"server": server, "clientCuda": cuda}, "clientVariant": "cuda", "tag": "9"}
    manifests = render({"image": chosen, "silo": SILO})
    images = {container["image"] for pod in pods(manifests) for container in pod["spec"]["containers"]}
    assert images == {f"fedrep/server@{server}", "fedrep/dashboard:9", f"fedrep/client@{cuda}"}


def test_monitoring_is_left_out_where_the_cluster_cannot_read_it(rendered: dict[str, list[Manifest]]) -> None:
    kinds = {item["kind"] for item in rendered["high-availability"]}
    assert {"ServiceMonitor", "PrometheusRule"} <= kinds
    without = render(MATRIX["high-availability"], apis=())
    assert not {"ServiceMonitor", "PrometheusRule"} & {item["kind"] for item in without}
    assert one(without, "ConfigMap", "fed-fedrep-grafana")


def test_selectors_find_the_pods_they_mean(rendered: dict[str, list[Manifest]]) -> None:
    for manifests in rendered.values():
        labels = [pod["metadata"]["labels"] for pod in pods(manifests)]
        for service in (item for item in manifests if item["kind"] == "Service"):
            wanted = service["spec"]["selector"]
            assert [found for found in labels if wanted.items() <= found.items()], service["metadata"]["name"]


def test_everything_off_installs_nothing(rendered: dict[str, list[Manifest]]) -> None:
    assert rendered["everything-off"] == []


def test_certificates_carry_the_federation_identity(rendered: dict[str, list[Manifest]]) -> None:
    server = one(rendered["cert-manager"], "Certificate", "fed-fedrep-server")["spec"]
    assert server["uris"] == ["spiffe://lungs/server/main"]
    assert "fed-fedrep-server" in server["dnsNames"]
    pod = one(rendered["cert-manager"], "StatefulSet", "fed-fedrep-server")["spec"]["template"]["spec"]
    identity = next(volume for volume in pod["volumes"] if volume["name"] == "identity")
    assert identity["secret"]["secretName"] == server["secretName"]
    assert {item["path"] for item in identity["secret"]["items"]} == {"key.pem", "cert.pem", "root.pem"}


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("sqlite", ["helm test fed --namespace fedrep", "port-forward service/fed-fedrep-dashboard 8080:80"]),
        ("silo-with-gpu", ["exec statefulset/fed-fedrep-silo -- fedrep client check", "logs statefulset/fed-fedrep-silo"]),
        ("everything-off", ["get pods", "helm show values"]),
    ],
)
def test_the_notes_tell_the_next_two_commands(name: str, commands: list[str], tmp_path: Path) -> None:
    """`helm template` leaves the notes out, so a copy of the chart shows them as an object."""
    chart = tmp_path / "fedrep"
    shutil.copytree(CHART, chart)
    notes = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text('{{- define "fedrep.notes" }}' + notes + "{{- end }}")
    (chart / "templates" / "shown.yaml").write_text('kind: Notes\nnotes: |\n  {{- include "fedrep.notes" . | nindent 2 }}\n')
    (shown,) = [item for item in render(MATRIX[name], chart=chart) if item["kind"] == "Notes"]
    for command in commands:
        assert command in shown["notes"]
