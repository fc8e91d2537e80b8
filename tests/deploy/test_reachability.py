"""Who reaches whom in a cluster that enforces the chart's network policies: everybody who must, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.chart import MATRIX, SILO, Manifest, render
from tests.deploy.reachability import End, Outside, Pod, may_reach, pod_of

HOSPITAL, DATABASE, SOMEBODY = Outside("192.0.2.7"), Outside("10.3.2.1"), Outside("198.51.100.9")
PROMETHEUS = Pod({"app": "prometheus"}, "monitoring", {"kubernetes.io/metadata.name": "monitoring"})
STRANGER = Pod({"app": "stranger"}, "elsewhere", {"kubernetes.io/metadata.name": "elsewhere"})
DNS = Pod({"k8s-app": "kube-dns"}, "kube-system", {"kubernetes.io/metadata.name": "kube-system"})

POSTGRES: dict[str, Any] = {"kind": "postgresql", "existingSecret": "database"}


@pytest.fixture(scope="module")
def cluster() -> list[Manifest]:
    """Everything in one release: two servers on a database outside, dashboard, authority, a silo."""
    return render(
        {
            "federation": "lungs",
            "server": {"replicas": 2, "database": POSTGRES},
            "ca": MATRIX["authority"]["ca"],
            "silo": SILO,
            "networkPolicy": {"databaseTo": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]},
        }
    )


def end(cluster: list[Manifest], name: str) -> End:
    others: dict[str, End] = {"hospital": HOSPITAL, "database": DATABASE, "somebody": SOMEBODY}
    others |= {"prometheus": PROMETHEUS, "stranger": STRANGER, "dns": DNS}
    return others[name] if name in others else pod_of(cluster, name)


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        ("hospital", "server", 8550, True),
        ("silo", "server", 8550, True),
        ("dashboard", "server", 8550, True),
        ("server", "server", 8550, True),
        ("hospital", "server", 8553, False),
        ("hospital", "server", 8554, False),
        ("stranger", "server", 8554, False),
        ("prometheus", "server", 8554, True),
        ("test", "server", 8553, True),
        ("server", "database", 5432, True),
        ("server", "somebody", 5432, False),
        ("server", "somebody", 443, False),
        ("server", "ca", 8552, True),
        ("server", "ca", 8551, False),
        ("server", "dashboard", 8080, False),
        ("server", "silo", 22, False),
        ("dashboard", "database", 5432, False),
        ("silo", "database", 5432, False),
        ("silo", "somebody", 443, False),
        ("silo", "silo", 8550, False),
        ("stranger", "silo", 8550, False),
        ("prometheus", "silo", 8554, False),
        ("stranger", "dashboard", 8080, True),
        ("somebody", "dashboard", 8080, False),
        ("prometheus", "dashboard", 8554, True),
        ("stranger", "dashboard", 8554, False),
        ("somebody", "dashboard", 8554, False),
        ("test", "dashboard", 8080, True),
        ("hospital", "ca", 8551, True),
        ("hospital", "ca", 8552, True),
        ("hospital", "ca", 8554, False),
        ("prometheus", "ca", 8554, True),
        ("ca", "somebody", 443, False),
        ("ca", "server", 8550, False),
    ],
)
def test_who_reaches_whom(cluster: list[Manifest], source: str, target: str, port: int, may: bool) -> None:
    assert may_reach(cluster, end(cluster, source), end(cluster, target), port) is may


@pytest.mark.parametrize("component", ["server", "dashboard", "silo"])
def test_whoever_dials_a_name_can_ask_for_its_address(cluster: list[Manifest], component: str) -> None:
    assert may_reach(cluster, end(cluster, component), DNS, 53, "UDP")
    assert may_reach(cluster, end(cluster, component), DNS, 53, "TCP")


@pytest.mark.parametrize(("server", "port"), [("federation.example.org:8550", 8550), ("federation.example.org:443", 443)])
def test_a_silo_outside_reaches_the_port_it_is_told_and_no_other(server: str, port: int) -> None:
    manifests = render(MATRIX["silo-with-gpu"] | {"silo": SILO | {"server": server}})
    silo = pod_of(manifests, "silo")
    assert may_reach(manifests, silo, HOSPITAL, port)
    assert not may_reach(manifests, silo, HOSPITAL, port + 1)
    assert not may_reach(manifests, silo, HOSPITAL, 5432)


@pytest.mark.parametrize(("kind", "may"), [("ClusterIP", False), ("NodePort", True), ("LoadBalancer", True)])
def test_callers_from_outside_reach_the_dashboard_where_its_service_brings_them(kind: str, may: bool) -> None:
    manifests = render({"dashboard": {"service": {"type": kind}}})
    assert may_reach(manifests, SOMEBODY, pod_of(manifests, "dashboard"), 8080) is may


def test_who_may_see_the_dashboard_can_be_told_for_a_load_balancer_too() -> None:
    only = {"dashboardFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
    manifests = render({"dashboard": {"service": {"type": "LoadBalancer"}}, "networkPolicy": only})
    dashboard = pod_of(manifests, "dashboard")
    assert may_reach(manifests, HOSPITAL, dashboard, 8080)
    assert not may_reach(manifests, SOMEBODY, dashboard, 8080)
    assert may_reach(manifests, PROMETHEUS, dashboard, 8554)
    for somebody in (HOSPITAL, SOMEBODY, STRANGER):
        assert not may_reach(manifests, somebody, dashboard, 8554)


def test_silos_can_be_kept_to_their_networks() -> None:
    manifests = render({"networkPolicy": {"silosFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}, "silo": SILO})
    server = pod_of(manifests, "server")
    assert may_reach(manifests, HOSPITAL, server, 8550)
    assert not may_reach(manifests, SOMEBODY, server, 8550)
    assert may_reach(manifests, pod_of(manifests, "silo"), server, 8550)


@pytest.mark.parametrize(
    ("settings", "port"),
    [
        ({"alerts": {"webhook": "https://hooks.example.org/x"}}, 443),
        ({"alerts": {"webhook": "http://hooks.example.org:9000/x"}}, 9000),
        ({"telemetry": "http://collector.example.org:4317"}, 4317),
        ({"telemetry": "collector.example.org"}, 4317),
    ],
)
def test_a_server_reaches_what_its_settings_name(settings: dict[str, Any], port: int) -> None:
    silent = render({})
    assert not may_reach(silent, pod_of(silent, "server"), SOMEBODY, port)
    manifests = render({"server": {"settings": settings}})
    assert may_reach(manifests, pod_of(manifests, "server"), SOMEBODY, port)


@pytest.mark.parametrize(("webhook", "port"), [({}, 443), ({"port": 9000}, 9000)])
def test_a_server_reaches_a_webhook_whose_address_is_in_a_secret(webhook: dict[str, Any], port: int) -> None:
    manifests = render({"server": {"webhook": {"existingSecret": "hook"} | webhook}})
    assert may_reach(manifests, pod_of(manifests, "server"), SOMEBODY, port)
    assert not may_reach(manifests, pod_of(manifests, "server"), SOMEBODY, port + 1)


def test_a_dashboard_of_its_own_reaches_the_server_it_is_told() -> None:
    values = {"server": {"enabled": False}, "dashboard": {"settings": {"server": "federation.example.org:9443"}}}
    manifests = render(values)
    assert may_reach(manifests, pod_of(manifests, "dashboard"), SOMEBODY, 9443)
    assert not may_reach(manifests, pod_of(manifests, "dashboard"), SOMEBODY, 8550)


def test_backups_reach_the_database_and_their_store_and_nobody_reaches_them() -> None:
    manifests = render(MATRIX["authority"])
    backup = pod_of(manifests, "backup")
    assert may_reach(manifests, backup, DATABASE, 5432)
    assert may_reach(manifests, backup, SOMEBODY, 443)
    assert not may_reach(manifests, backup, SOMEBODY, 80)
    assert not may_reach(manifests, STRANGER, backup, 8550)
    assert not may_reach(manifests, backup, pod_of(manifests, "server"), 8550)


def test_a_server_reaches_an_authority_elsewhere_on_the_port_it_is_told() -> None:
    manifests = render({"server": {"revocations": {"authority": "ca.example.org:9552"}}})
    assert may_reach(manifests, pod_of(manifests, "server"), SOMEBODY, 9552)
    assert not may_reach(manifests, pod_of(manifests, "server"), SOMEBODY, 8552)
