"""From nothing to a cluster: the script has at most eight commands, and each finds what the one before has made."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from fedrep_cli.free_ports import free_ports
from fedrep_identity.invitations import Invitation
from tests.deploy.chart import HELM, REPOSITORY

DEPLOY = REPOSITORY / "deploy"
SCRIPT = DEPLOY / "cluster.sh"
MOST = 8
PORTS = ("enrolment", "certificate", "health", "metrics", "dashboard")
# Notes what it is called with; `fedrep init` is the real one, and a Secret's files must be there.
STUB = """#!{python}
import json, os, pathlib, subprocess, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([name, *arguments]) + "\\n")
for argument in arguments:
    if argument.startswith("--from-file="):
        assert pathlib.Path(argument.removeprefix("--from-file=")).stat().st_size, argument
if name == "fedrep" and arguments[0] == "init":
    ports = os.environ["FREE_PORTS"].split()  # this machine may use those that it takes by itself
    sys.exit(subprocess.run([sys.executable, "-m", "fedrep_cli.main", *arguments, *ports]).returncode)
"""


def commands(text: str) -> list[str]:
    """Lines that start a program of ours or of the cluster's, continuation lines joined."""
    return [line for line in text.replace("\\\n", " ").splitlines() if re.match(r"(fedrep|kubectl|helm) ", line)]


@pytest.mark.parametrize("script", sorted(path.relative_to(DEPLOY) for path in DEPLOY.rglob("*.sh")), ids=str)
def test_shellcheck_finds_nothing_to_complain_about(script: Path) -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, DEPLOY / script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_takes_at_most_eight_commands_and_the_guide_shows_the_same() -> None:
    wanted = commands(SCRIPT.read_text())
    assert len(wanted) <= MOST
    guide = (REPOSITORY / "docs" / "operations.md").read_text().split("### On a cluster")[1].split("\n### ")[0]
    shown = commands(re.search(r"```\n(.*?)```", guide, re.DOTALL)[1])  # type: ignore[index]
    assert [shlex.split(line)[:2] for line in shown] == [shlex.split(line)[:2] for line in wanted]


def test_each_command_finds_what_the_one_before_has_made(tmp_path: Path) -> None:
    log, tools, work = tmp_path / "calls", tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    for name in ("fedrep", "kubectl", "helm"):
        (tools / name).write_text(STUB.format(python=sys.executable, log=str(log)))
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    environment |= {
        "HOST": "federation.example.org",
        "AUTHORITY": "ca.example.org",
        "DATABASE": "postgresql://u:p@db/f",
        "FEDREP_CA_PASSPHRASE": "of these tests",
        "FREE_PORTS": " ".join(f"--{name}-port {port}" for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)),
    }
    silos = [f"hospital-{letter}" for letter in "abcd"]
    done = subprocess.run(
        [SCRIPT, *silos, "--", "--set", "dashboard.replicas=2"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls: list[list[str]] = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(calls) <= MOST
    made = {call[call.index("generic") + 1] for call in calls if "secret" in call}
    (install,) = [call for call in calls if call[:2] == ["helm", "install"]]
    options = [part for part in install[4:] if part != "--wait"]
    rendered = subprocess.run([HELM, "template", install[2], install[3], *options], capture_output=True, text=True, timeout=60)
    assert rendered.returncode == 0, rendered.stderr
    manifests = [item for item in yaml.safe_load_all(rendered.stdout) if item]
    assert mentioned(manifests) - {"fedrep-dashboard-tokens"} == made
    (config,) = [item for item in manifests if item["kind"] == "ConfigMap" and "dashboard.toml" in item["data"]]
    certificate = x509.load_pem_x509_certificate((work / "server" / "identity" / "cert.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert re.search(r'server_name = "(.+)"', config["data"]["dashboard.toml"])[1] in names  # type: ignore[index]
    assert {path.stem for path in (work / "invitations").iterdir()} == set(silos)
    token = Invitation.from_token((work / "invitations" / "hospital-a.token").read_text())
    assert token.enrolment_address.startswith("ca.example.org:"), "silos enrol where the authority runs"
    assert token.server_address.startswith("federation.example.org:"), "and dial the cluster"
    (settings,) = [item for item in manifests if item["kind"] == "ConfigMap" and "server.toml" in item["data"]]
    assert 'authority = "ca.example.org:8552"' in settings["data"]["server.toml"]
    assert calls[-1] == ["fedrep", "ca", "serve", "--folder", "ca"]


def mentioned(node: Any) -> set[str]:
    """Names of the Secrets that pods ask for."""
    if isinstance(node, list):
        return set[str]().union(*map(mentioned, node))
    if not isinstance(node, dict):
        return set()
    own = {node["secretName"]} if "secretName" in node else set()
    own |= {node["secretKeyRef"]["name"]} if "secretKeyRef" in node else set()
    return own.union(*map(mentioned, node.values()))
