"""What a platform team adds to the chart or expects of it: GitOps, Gateway API, an authority, backups, objects of its own."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest

from tests.deploy.chart import CA, MATRIX, OPERATORS, Manifest, Refused, case, one, pods, render


@pytest.fixture(scope="module")
def authority() -> list[Manifest]:
    return case("authority")


def test_rendering_twice_without_a_cluster_gives_the_same_when_tokens_have_a_seed_or_a_secret(authority: list[Manifest]) -> None:
    assert case("authority") == authority
    assert case("existing-secrets") == case("existing-secrets")
    tokens = one(authority, "Secret", "fed-fedrep-dashboard-tokens")["data"]
    assert len(set(tokens.values())) == 3
    other = render(MATRIX["authority"] | {"dashboard": {"tokens": {"seed": "another random text of as many characters"}}})
    changed = one(other, "Secret", "fed-fedrep-dashboard-tokens")["data"]
    assert not set(changed.values()) & set(tokens.values())

    def checksum(manifests: list[Manifest]) -> str:
        pod = one(manifests, "Deployment", "fed-fedrep-dashboard")["spec"]["template"]
        return str(pod["metadata"]["annotations"]["checksum/secrets"])

    assert checksum(other) != checksum(authority), "pods read their tokens at the start"


def test_a_tls_route_leads_to_the_servers_port_in_the_newest_version_the_cluster_has(authority: list[Manifest]) -> None:
    route = one(authority, "TLSRoute", "fed-fedrep-server")
    service = one(authority, "Service", "fed-fedrep-server")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1alpha2"
    assert route["spec"]["hostnames"] == ["federation.example.org"]
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["name"], backend["port"]) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    newer = render(MATRIX["authority"], apis=(*OPERATORS, "--api-versions", "gateway.networking.k8s.io/v1/TLSRoute"))
    assert one(newer, "TLSRoute", "fed-fedrep-server")["apiVersion"] == "gateway.networking.k8s.io/v1"


def test_objects_of_the_operators_own_are_filled_in_and_there(authority: list[Manifest]) -> None:
    assert one(authority, "ConfigMap", "fed-more")


def test_the_servers_ask_the_authority_of_their_release(authority: list[Manifest]) -> None:
    settings = one(authority, "ConfigMap", "fed-fedrep-server")["data"]["server.toml"]
    assert 'authority = "fed-fedrep-ca.fedrep.svc:8552"' in settings
    ports = {port["port"] for port in one(authority, "Service", "fed-fedrep-ca")["spec"]["ports"]}
    assert ports == {8551, 8552}
    assert one(authority, "ServiceMonitor", "fed-fedrep-ca")
    claim = one(authority, "StatefulSet", "fed-fedrep-ca")["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert set(claim.values()) == {"Retain"}


def test_a_silo_of_cert_manager_has_its_own_name_and_role() -> None:
    manifests = case("silo-of-cert-manager")
    wanted = one(manifests, "Certificate", "fed-fedrep-silo")["spec"]
    assert wanted["uris"] == ["spiffe://lungs/silo/hospital-a"]
    assert wanted["usages"] == ["digital signature", "client auth"]
    (pod,) = pods(manifests)
    (identity,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "identity"]
    assert identity["secret"]["secretName"] == wanted["secretName"]
    assert {item["path"] for item in identity["secret"]["items"]} == {"key.pem", "cert.pem", "root.pem"}


def container(manifests: list[Manifest], component: str) -> Manifest:
    (pod,) = [pod for pod in pods(manifests) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component]
    (found,) = pod["spec"]["containers"]
    return dict(found) | {"pod": pod["spec"]}


def test_backups_go_where_they_are_told_as_often_as_they_are_told(authority: list[Manifest]) -> None:
    schedule = one(authority, "CronJob", "fed-fedrep-backup")["spec"]
    assert (schedule["schedule"], schedule["concurrencyPolicy"]) == ("17 2 * * *", "Forbid")
    config = ["--config", "/etc/fedrep/config/server.toml"]
    assert container(authority, "backup")["args"] == ["server", "backup", "s3://bucket/fedrep/", "--keep", "14", *config]
    on_volume = container(case("backups-on-a-volume"), "backup")
    assert on_volume["args"][2] == "/backups/"
    assert {"name": "backups", "mountPath": "/backups"} in on_volume["volumeMounts"]
    shared = [volume for volume in on_volume["pod"]["volumes"] if volume["name"] == "data"]
    assert shared[0]["persistentVolumeClaim"]["claimName"] == "data-fed-fedrep-server-0"
    assert "podAffinity" in on_volume["pod"]["affinity"], "a volume of SQLite is on one node"


def test_a_backup_is_restored_while_no_server_runs() -> None:
    manifests = case("restoring")
    assert container(manifests, "restore")["args"][:3] == ["server", "restore", "/backups/a.tar"]
    assert one(manifests, "StatefulSet", "fed-fedrep-server")["spec"]["replicas"] == 0
    assert not [item for item in manifests if item["kind"] == "CronJob"], "nothing is there to be backed up yet"


def changed(name: str, **parts: Any) -> Manifest:
    values = copy.deepcopy(MATRIX[name])
    for part, update in parts.items():
        values.setdefault(part, {}).update(update)
    return values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (changed("restoring", server={"replicas": 1}), "server.restore.from is set while servers run"),
        ({"server": {"backup": {"enabled": True}}}, "server.backup has no place to write to"),
        ({"server": {"gateway": {"enabled": True, "hostnames": ["a"]}}}, "server.gateway.parentRefs is empty"),
        ({"server": {"gateway": {"enabled": True, "parentRefs": [{"name": "a"}]}}}, "server.gateway.hostnames is empty"),
        ({"ca": CA}, "federation is empty"),
        ({"federation": "lungs", "ca": CA | {"address": ""}}, "ca.address is empty"),
        ({"federation": "lungs", "ca": CA | {"server": ""}}, "ca.server is empty"),
        ({"federation": "lungs", "ca": CA | {"address": "ca.example.org:8551"}}, "ca.address has a port"),
        ({"federation": "lungs", "ca": CA | {"server": "federation.example.org"}}, "ca.server has no port"),
        ({"federation": "lungs", "ca": {"enabled": True}}, "ca.passphrase.existingSecret is empty"),
        (changed("silo-of-cert-manager") | {"federation": ""}, "federation is empty"),
        ({"networkPolicy": {"siloServerPort": 1}}, "siloServerPort"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(values: Manifest, words: str) -> None:
    with pytest.raises(Refused, match=words):
        render(values)


def test_every_service_has_the_families_that_the_values_name_and_none_by_itself() -> None:
    both = [item["spec"] for item in case("both-families") if item["kind"] == "Service"]
    assert len(both) == 6
    assert {(item["ipFamilyPolicy"], *item["ipFamilies"]) for item in both} == {("RequireDualStack", "IPv6", "IPv4")}
    assert not any("ipFam" in key for item in render({}) if item["kind"] == "Service" for key in item["spec"])
    with pytest.raises(Refused, match="ipFamilyPolicy"):
        render({"services": {"ipFamilyPolicy": "DualStack"}})


def test_whatever_serves_in_a_pod_listens_on_both_families() -> None:
    """Pods of IPv6-only clusters have no address of IPv4, and nothing but the loopback answers there."""
    manifests = case("both-families")
    server = tomllib.loads(one(manifests, "ConfigMap", "fed-fedrep-server")["data"]["server.toml"])
    dashboard = tomllib.loads(one(manifests, "ConfigMap", "fed-fedrep-dashboard")["data"]["dashboard.toml"])
    (authority,) = one(manifests, "StatefulSet", "fed-fedrep-ca")["spec"]["template"]["spec"]["containers"]
    given = {entry["name"]: entry.get("value") for entry in authority["env"]}
    hosts = {server[key] for key in ("host", "health_host", "metrics_host")} | {dashboard["host"], dashboard["metrics_host"]}
    assert hosts | {given["FEDREP_CA__HOST"], given["FEDREP_CA__METRICS_HOST"]} == {"::"}


def test_metrics_of_the_dashboard_are_on_no_service_that_leads_outside() -> None:
    manifests = render({"dashboard": {"service": {"type": "LoadBalancer"}}, "metrics": {"serviceMonitor": {"enabled": True}}})
    pages, internal = (one(manifests, "Service", f"fed-fedrep-dashboard{end}") for end in ("", "-internal"))
    assert [port["name"] for port in pages["spec"]["ports"]] == ["http"]
    assert internal["spec"]["clusterIP"] == "None"
    monitor = one(manifests, "ServiceMonitor", "fed-fedrep-dashboard")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= internal["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in internal["spec"]["ports"]}
