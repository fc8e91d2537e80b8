"""The commands that a simulation prints at its end deploy the run that was simulated, typed as they are printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedrep_cli.free_ports import free_ports
from fedrep_cli.main import CANNOT_CONNECT
from fedrep_runtime.model_files import read_model
from fedrep_runtime.run_config import RunConfig
from fedrep_simulator.api import build_trainer_of, run_simulation
from fedrep_simulator.deployment import commands
from fedrep_simulator.terms import Wishes, read_files
from fedrep_trainers.settings import TrainerSettings

ROOT = Path(__file__).parents[2]
TRAINER = "from tests.harness.federation import StubTrainer\n\ndef build(settings):\n    return StubTrainer(**settings.options)\n"
SILOS = ("north", "east", "south")
FEDREP = [sys.executable, "-m", "fedrep_cli.main"]


class Machines:
    """One folder each. Only the ports are others than those printed, since this machine may use them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        names = ("--port", "--enrolment-port", "--certificate-port", "--health-port", "--metrics-port", "--dashboard-port")
        self._ports = [word for name, port in zip(names, free_ports(len(names)), strict=True) for word in (name, str(port))]

    def folder(self, machine: str) -> Path:
        made = self._folder / machine
        made.mkdir(exist_ok=True)
        return made

    def start(self, machine: str, line: str, token: str = "") -> subprocess.Popen[bytes]:
        words = shlex.split(line.replace("TOKEN", token), comments=True)
        said = dict(word.split("=", 1) for word in words if word.startswith("FEDREP_CLIENT__"))
        words = [word for word in words if not word.startswith("FEDREP_CLIENT__")]
        words += self._ports if words[:2] == ["fedrep", "init"] else []
        with (self.folder(machine) / "log").open("ab") as log:
            process = subprocess.Popen(
                [*(FEDREP if words[0] == "fedrep" else words[:1]), *words[1:]],
                cwd=self.folder(machine),
                env={**os.environ, **said, "FEDREP_CA_PASSPHRASE": "a passphrase for tests", "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)
        return process

    def type(self, machine: str, line: str, token: str = "") -> None:
        """Again while the other side is not up yet."""
        while (code := self.start(machine, line, token).wait()) == CANNOT_CONNECT:
            time.sleep(0.2)
        assert code == 0, f"{line}: {(self.folder(machine) / 'log').read_text()}"

    def end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.end()


@pytest.mark.slow
def test_the_commands_at_the_end_deploy_the_run_as_printed(machines: Machines) -> None:
    consortium = machines.folder("consortium")
    (consortium / "deployed_trainer.py").write_text(TRAINER)
    run = RunConfig(name="least-squares", silos=SILOS, rounds=2, fraction=0.2, initial_range=1.0)
    trainer = TrainerSettings(user_code="deployed_trainer:build", user_code_dir=consortium)
    terms = Wishes(aggregator="mean", fast=True).terms(run, trainer)
    run_simulation(terms, build_trainer_of(trainer), central=False, out=consortium / "simulation")

    (_, (found, up, *creation)), (_, (join,)) = commands(terms, Path("simulation"), "localhost")
    machines.type("consortium", found)
    machines.start("consortium", up)
    for line in creation:
        machines.type("consortium", line)
    silos = []
    for name in SILOS:
        for file in ("deployed_trainer.py", "client.toml"):
            (machines.folder(name) / file).write_bytes((consortium / file).read_bytes())
        silos.append(machines.start(name, join, (consortium / "invitations" / f"{name}.token").read_text().strip()))
    assert [process.wait() for process in silos] == [0, 0, 0], (machines.folder(SILOS[0]) / "log").read_text()
    machines.type("consortium", "fedrep run export least-squares model.safetensors")
    _, deployed = read_model(consortium / "model.safetensors")
    assert deployed.any()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('run = "spring"\n', ""),
        ("[trainer]\n", "FEDREP_CLIENT__RUN=spring "),
        ('run = "*"\nserver = "elsewhere:1"\n', "FEDREP_CLIENT__RUN=spring FEDREP_CLIENT__SERVER=federation.example.org:8550 "),
    ],
)
def test_a_silo_whose_file_names_another_run_or_server_is_told_this_one(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "client.toml"
    file.write_text(text)
    terms = Wishes(aggregator="mean").terms(RunConfig(name="spring", silos=SILOS), TrainerSettings())
    assert commands(replace(terms, client_file=file), None)[-1][1] == [f"{said}fedrep join TOKEN"]


@pytest.mark.parametrize(
    ("trainer", "private", "rate", "settings"),
    [
        (None, False, "", "client.toml"),
        (None, True, "", "played.toml"),
        ("other:build", False, "", "played.toml"),
        (None, False, "0.5", "played.toml"),
    ],
)
def test_a_file_that_says_something_else_than_was_played_deploys_nothing_and_stays(
    trainer: str | None, private: bool, rate: str, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("client.toml").write_text('[trainer]\nuser_code = "mine:build"\n')
    if rate:
        monkeypatch.setenv("FEDREP_CLIENT__TRAINER__LEARNING_RATE", rate)
    terms = read_files(Wishes(aggregator="mean", private=private), trainer)
    (_, creation), (where, _) = commands(terms, Path("my results"))
    assert f"fedrep run model --config {settings}" in creation
    assert ("cp 'my results/client.toml' played.toml" in creation) == (settings == "played.toml")
    assert f"this {settings}" in where
    assert "fedrep run create --config 'my results/run.toml'" in creation
