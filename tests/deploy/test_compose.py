"""compose.yaml: its wiring, its settings, and its federation played for real, without containers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from fedrep_cli.free_ports import free_port
from fedrep_dashboard.settings import DashboardSettings
from fedrep_identity.authority import CertificateAuthority
from fedrep_identity.certificates import Credentials
from fedrep_identity.names import Role
from fedrep_runtime.settings import load_settings
from fedrep_server.config import ServerSettings
from fedrep_silo.config import SiloSettings
from tests.deploy.chart import REPOSITORY
from tests.harness.processes import run_scenario, start_process

DEPLOY = REPOSITORY / "deploy"
SETTINGS: dict[str, type[BaseModel]] = {"server": ServerSettings, "dashboard": DashboardSettings, "client": SiloSettings}
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
SILOS = ("silo-1", "silo-2", "silo-3")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def named_volumes(service: Mapping[str, Any]) -> list[str]:
    return [volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")]


def test_without_a_profile_nothing_is_started_that_needs_torch(compose: dict[str, Any]) -> None:
    started = {name: service for name, service in compose["services"].items() if "profiles" not in service}
    assert set(started) == {"setup", "ca", "database", "server", "dashboard"}
    assert {service["build"]["target"] for service in started.values() if "build" in service} == {"server", "dashboard"}
    for service in started.values():
        assert set(service.get("depends_on", {})) <= set(started)


def test_who_waits_for_somebody_waits_for_something_that_can_happen(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            awaited = services[other]
            if wait["condition"] == "service_healthy":
                target = awaited.get("build", {}).get("target")
                stage = DOCKERFILE.split(f"FROM runtime AS {target}\n")[-1].split("\nFROM ")[0] if target else ""
                assert "test" in awaited.get("healthcheck", {}) or "HEALTHCHECK" in stage, (name, other)
            else:
                assert wait["condition"] == "service_completed_successfully"
                assert awaited["restart"] == "no", f"{other} would never count as completed"


def test_every_volume_is_declared_and_every_key_is_seen_by_its_owner_alone(compose: dict[str, Any]) -> None:
    used = Counter(
        volume for name, service in compose["services"].items() if name != "setup" for volume in named_volumes(service)
    )
    assert set(used) | set(named_volumes(compose["services"]["setup"])) == set(compose["volumes"])
    assert {volume for volume in used if volume.startswith("identity-")} == {
        volume for volume in compose["volumes"] if volume.startswith("identity-")
    }
    assert all(count == 1 for volume, count in used.items() if volume.startswith(("identity-", "state-")))
    assert used["ca"] == 1, "its key is the authority's alone"


def test_containers_cannot_write_their_root_nor_gain_rights(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["security_opt"] == ["no-new-privileges:true"]
        if name != "database":
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert [name for name, service in compose["services"].items() if "user" in service] == ["setup"]


def test_everything_mounted_from_the_repository_is_there_and_every_target_is_an_image(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            if volume.startswith("."):
                assert (DEPLOY / volume.split(":")[0]).is_file()
        if "build" in service:
            assert f" AS {service['build']['target']}\n" in DOCKERFILE
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()


def test_the_settings_are_read_by_their_programs(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source, _, target = volume.partition(":")
            part = Path(source).stem
            if "/etc/fedrep/config/" in target and part in SETTINGS:
                load_settings(SETTINGS[part], DEPLOY / source, f"FEDREP_{part}", service.get("environment", {}))


def set_up(home: Path) -> None:
    script = DEPLOY / "compose" / "setup.py"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, script, home], check=True, env=environment, timeout=60, capture_output=True)


def test_setting_up_twice_changes_nothing(tmp_path: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix in ("", ".pem")}

    set_up(tmp_path)
    first = contents()
    assert {"key.pem", "cert.pem", "root.pem"} <= {path.name for path in tmp_path.glob("identities/silo-3/*")}
    set_up(tmp_path)
    assert contents() == first


def test_set_up_killed_at_any_moment_is_finished_by_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("compose_setup", DEPLOY / "compose" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    people = {"server": Role.SERVER, "silo-1": Role.SILO}
    monkeypatch.setattr(script, "PEOPLE", people)
    monkeypatch.setattr(script, "_give", lambda _path: None)
    replace, left = os.replace, [0]

    def counted(source: Any, target: Any) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", counted)
    for moment in range(100):
        home, left[0] = tmp_path / str(moment), moment
        with contextlib.suppress(KeyboardInterrupt):
            script.set_up(home)
            break
        left[0] = -1
        script.set_up(home)
        for name, role in people.items():
            assert Credentials.load(home / "identities" / name).identity.role is role, f"killed at {moment}"
        passphrase = (home / "ca" / "passphrase").read_text()
        CertificateAuthority.open(home / "ca", passphrase)
    assert moment > 12, "every file that it writes was a moment"


@pytest.mark.slow
def test_the_federation_of_the_compose_file_plays_its_run(compose: dict[str, Any], tmp_path: Path) -> None:
    """Set-up, settings and commands are the file's own; addresses, folders and the number of rounds are moved."""
    set_up(tmp_path)
    port = free_port()
    config = DEPLOY / "compose"

    def moved(name: str) -> dict[str, str]:
        identity = str(tmp_path / "identities" / name)
        if name == "server":
            off = {"HEALTH_PORT": str(free_port()), "METRICS_PORT": str(free_port())}
            here = {"PORT": str(port), "DATA": str(tmp_path / "server"), "CREDENTIALS": identity, **off}
            return {f"FEDREP_SERVER__{key}": value for key, value in here.items()}
        own: dict[str, str] = compose["services"][name]["environment"]
        here = {"SERVER": f"localhost:{port}", "STATE": str(tmp_path / "state" / name), "CREDENTIALS": identity}
        here["LEDGER"] = str(tmp_path / "ledger" / name)
        return {f"FEDREP_CLIENT__{key}": value for key, value in here.items()} | own

    async def scenario() -> None:
        fedrep = ["-m", "fedrep_cli.main"]
        server = start_process(
            [*fedrep, "server", "--config", str(config / "server.toml")], tmp_path / "server.log", moved("server")
        )
        here = ["--server", f"localhost:{port}", "--identity", str(tmp_path / "identities" / "admin")]
        model = start_process(
            [*fedrep, "run", "model", str(tmp_path / "init"), "--config", str(config / "client.toml")], tmp_path / "run.log"
        )
        while model.poll() is None or not ready(tmp_path / "server.log"):
            assert server.poll() is None, (tmp_path / "server.log").read_text()
            await asyncio.sleep(0.1)
        create = ["run", "create", "--config", str(config / "run.toml"), "--model", str(tmp_path / "init"), *here]
        created = start_process([*fedrep, *create], tmp_path / "run.log", {"FEDREP_RUN__ROUNDS": "3"})
        assert await asyncio.to_thread(created.wait, 120) == 0, (tmp_path / "run.log").read_text()
        client = [*fedrep, "client", "--config", str(config / "client.toml")]
        silos = [start_process(client, tmp_path / f"{name}.log", moved(name)) for name in SILOS]
        for name, silo in zip(SILOS, silos, strict=True):
            assert await asyncio.to_thread(silo.wait, 200) == 0, (tmp_path / f"{name}.log").read_text()
        rounds = [line for line in (tmp_path / "server.log").read_text().splitlines() if '"event": "round"' in line]
        assert len(rounds) == 3
        assert '"applied"' in rounds[-1]

    def ready(log: Path) -> bool:
        return log.exists() and '"serving"' in log.read_text()

    run_scenario(scenario(), seconds=240)
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
