"""May A reach B on port p? Answered from rendered network policies, by the rules of the Kubernetes API.

A pod that no policy selects for a direction may do everything in it. One that policies select may do what any of them allows.
A rule without peers means everybody, one without ports every port. An ipBlock means addresses outside the cluster here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.deploy.chart import Manifest, pods

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Pod:
    labels: Labels
    namespace: str = "fedrep"
    namespace_labels: Labels = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outside:
    """An address that is no pod's: a silo's network, a load balancer's client, a managed database."""

    address: str


End = Pod | Outside


def pod_of(manifests: list[Manifest], component: str) -> Pod:
    (found,) = [pod for pod in pods(manifests) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component]
    named = {
        port["name"]: port["containerPort"] for container in found["spec"]["containers"] for port in container.get("ports", [])
    }
    own = {"kubernetes.io/metadata.name": "fedrep"}
    return Pod(found["metadata"]["labels"], namespace_labels=own, ports=named)


def may_reach(manifests: list[Manifest], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    policies = [item for item in manifests if item["kind"] == "NetworkPolicy"]
    out = _allowed(policies, "egress", source, target, target, port, protocol)
    return out and _allowed(policies, "ingress", target, source, target, port, protocol)


def _allowed(policies: list[Manifest], way: str, subject: End, peer: End, listener: End, port: int, protocol: str) -> bool:
    if isinstance(subject, Outside):
        return True
    selecting = [
        policy["spec"]
        for policy in policies
        if way.capitalize() in policy["spec"]["policyTypes"]
        and policy["metadata"]["namespace"] == subject.namespace
        and _selects(policy["spec"]["podSelector"], subject.labels)
    ]
    if not selecting:
        return True
    rules = [rule for spec in selecting for rule in spec.get(way) or []]
    peers = "to" if way == "egress" else "from"
    return any(
        _port_fits(rule.get("ports"), listener, port, protocol) and _peer_fits(rule.get(peers), peer, subject.namespace)
        for rule in rules
    )


def _port_fits(ports: list[Manifest] | None, listener: End, port: int, protocol: str) -> bool:
    if not ports:
        return True
    for entry in ports:
        wanted: Any = entry.get("port")
        if isinstance(wanted, str):
            wanted = listener.ports.get(wanted) if isinstance(listener, Pod) else None
            if wanted is None:
                continue
        if entry.get("protocol", "TCP") == protocol and (wanted is None or wanted <= port <= entry.get("endPort", wanted)):
            return True
    return False


def _peer_fits(peers: list[Manifest] | None, other: End, home: str) -> bool:
    if not peers:
        return True
    return any(_one_peer_fits(peer, other, home) for peer in peers)


def _one_peer_fits(peer: Manifest, other: End, home: str) -> bool:
    if "ipBlock" in peer:
        if isinstance(other, Pod):
            return False
        address, block = ipaddress.ip_address(other.address), peer["ipBlock"]
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in ipaddress.ip_network(hole) for hole in block.get("except", []))
    if isinstance(other, Outside):
        return False
    if "namespaceSelector" in peer:
        if not _selects(peer["namespaceSelector"], other.namespace_labels):
            return False
    elif other.namespace != home:
        return False
    return _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    if selector.get("matchExpressions"):
        raise NotImplementedError("the chart writes no expressions")
    wanted: Labels = selector.get("matchLabels") or {}
    return wanted.items() <= labels.items()
