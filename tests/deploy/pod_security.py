"""The Pod Security Standard "restricted", as Kubernetes writes it down, over a pod's spec: what it violates."""

from __future__ import annotations

from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SECCOMP = ("RuntimeDefault", "Localhost")
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def violations(spec: dict[str, Any]) -> list[str]:
    found = [f"{key} of the host" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    for volume in spec.get("volumes", []):
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - VOLUMES]
    pod = spec.get("securityContext", {})
    found += _options("pod", pod)
    if pod.get("sysctls"):
        found.append("pod: sysctls")
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(kind, []):
            found += _container(container, pod)
    return found


def _container(container: dict[str, Any], pod: dict[str, Any]) -> list[str]:
    name, own = container["name"], container.get("securityContext", {})
    found = _options(name, own)
    capabilities = own.get("capabilities", {})
    if own.get("privileged"):
        found.append(f"{name}: privileged")
    if own.get("allowPrivilegeEscalation") is not False:
        found.append(f"{name}: may gain rights")
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        found.append(f"{name}: capabilities {capabilities}")
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        found.append(f"{name}: may run as root")
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in SECCOMP:
        found.append(f"{name}: no seccomp profile")
    if own.get("procMount", "Default") != "Default":
        found.append(f"{name}: procMount")
    found += [f"{name}: host port" for port in container.get("ports", []) if port.get("hostPort")]
    return found


def _options(name: str, security: dict[str, Any]) -> list[str]:
    found = []
    if security.get("runAsUser") == 0:
        found.append(f"{name}: runs as root")
    selinux = security.get("seLinuxOptions", {})
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        found.append(f"{name}: SELinux {selinux}")
    if security.get("appArmorProfile", {}).get("type", "RuntimeDefault") == "Unconfined":
        found.append(f"{name}: AppArmor unconfined")
    if security.get("windowsOptions", {}).get("hostProcess"):
        found.append(f"{name}: host process")
    return found
