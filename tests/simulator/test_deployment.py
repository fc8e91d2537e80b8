"""The commands that a simulation prints at its end deploy the run that was simulated, typed as they are printed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrep_cli.main import CANNOT_CONNECT, main
from fedrep_cli.processes import free_ports
from fedrep_runtime.model_files import read_model
from fedrep_runtime.run_config import RunConfig
from fedrep_simulator.api import build_trainer_of, run_simulation
from fedrep_simulator.deployment import commands
from fedrep_simulator.terms import Wishes
from fedrep_trainers.settings import TrainerSettings

ROOT = Path(__file__).parents[2]
TRAINER = "from tests.harness.federation import StubTrainer\n\ndef build(settings):\n    return StubTrainer(**settings.options)\n"
SILOS = ("north", "east", "south")
FEDREP = [sys.executable, "-m", "fedrep_cli.main"]


class Machines:
    """One folder each. Only the ports are others than those printed, since this machine may use them."""

    def __init__(self, folder: Path, told: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._told = told
        self._running: list[subprocess.Popen[bytes]] = []
        server, enrolment, certificates = (str(port) for port in free_ports(3))
        self._ports = {"8550": server, "8551": enrolment, "8552": certificates}
        own = {"FEDREP_CA__ENROLMENT_PORT": enrolment, "FEDREP_CA__CERTIFICATE_PORT": certificates, "FEDREP_SERVER__PORT": server}
        quiet = {
            "FEDREP_SERVER__HEALTH_PORT": "0",
            "FEDREP_SERVER__METRICS_PORT": "0",
            "FEDREP_CA_PASSPHRASE": "a passphrase for tests",
        }
        self._own = {**own, **quiet}

    @property
    def address(self) -> str:
        return f"localhost:{self._ports['8550']}"

    def folder(self, machine: str) -> Path:
        made = self._folder / machine
        made.mkdir(exist_ok=True)
        return made

    def _arguments(self, line: str, token: str) -> tuple[dict[str, str], list[str]]:
        words = shlex.split(line.replace("TOKEN", token).replace(":8550", f":{self._ports['8550']}"), comments=True)
        said = dict(word.split("=", 1) for word in words if word.startswith("FEDREP_CLIENT__"))
        words = [word for word in words if not word.startswith("FEDREP_CLIENT__")]
        if words[:3] == ["fedrep", "ca", "init"]:
            words += ["--enrolment-port", self._ports["8551"], "--certificate-port", self._ports["8552"]]
        return said, [*(FEDREP if words[0] == "fedrep" else words[:1]), *words[1:]]

    def type(self, machine: str, line: str, token: str = "") -> Any:
        """Again while the other side is not up yet; its JSON. Commands that end are called in this process, which saves time."""
        said, arguments = self._arguments(line, token)
        if arguments[0] != FEDREP[0]:
            return subprocess.run(arguments, cwd=self.folder(machine), check=True)
        with pytest.MonkeyPatch.context() as there:
            there.chdir(self.folder(machine))
            for name, value in (self._own | said).items():
                there.setenv(name, value)
            while (code := main([*arguments[len(FEDREP) :], "--json"])) == CANNOT_CONNECT:
                time.sleep(0.2)
        told = self._told.readouterr()
        assert code == 0, f"{line}: {told.err}{told.out}"
        return json.loads(told.out)

    def leave_running(self, machine: str, line: str) -> subprocess.Popen[bytes]:
        said, arguments = self._arguments(line, "")
        with (self.folder(machine) / "log").open("ab") as log:
            process = subprocess.Popen(
                arguments,
                cwd=self.folder(machine),
                env={**os.environ, **self._own, **said, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()


@pytest.fixture
def machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Machines]:
    made = Machines(tmp_path, capsys)
    yield made
    made.end()


@pytest.mark.slow
def test_the_commands_at_the_end_deploy_the_run_as_printed(machines: Machines) -> None:
    admin = machines.folder("admin")
    (admin / "deployed_trainer.py").write_text(TRAINER)
    run = RunConfig(name="least-squares", silos=SILOS, rounds=2, fraction=0.2, initial_range=1.0)
    trainer = TrainerSettings(user_code="deployed_trainer:build", user_code_dir=admin)
    terms = Wishes(aggregator="mean", fast=True).terms(run, trainer)
    run_simulation(terms, build_trainer_of(trainer), central=False, out=admin / "simulation")

    (_, authority), (_, server), (_, creation), (_, silo) = commands(terms, Path("simulation"), "localhost", "localhost")
    machines.type("authority", authority[0])
    machines.leave_running("authority", authority[1])
    tokens = [machines.type("authority", line)["token"] for line in authority[2:]]
    machines.type("server", server[0], tokens[0])
    machines.leave_running("server", server[1])
    for line in creation:
        machines.type("admin", line, tokens[1])
    silos = []
    for name, token in zip(SILOS, tokens[2:], strict=True):
        (machines.folder(name) / "deployed_trainer.py").write_text(TRAINER)
        (machines.folder(name) / "client.toml").write_text(
            (admin / "client.toml").read_text().replace("federation.example.org:8550", machines.address)
        )
        machines.type(name, silo[0], token)
        silos.append(machines.leave_running(name, silo[2]))
    machines.type(SILOS[0], silo[1])
    assert [process.wait() for process in silos] == [0, 0, 0]
    address = creation[-1].split("--server ")[1]
    machines.type("admin", f"fedrep run export least-squares model.safetensors --server {address}")
    _, deployed = read_model(admin / "model.safetensors")
    assert deployed.any()
