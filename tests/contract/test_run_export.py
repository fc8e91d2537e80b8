"""`fedrep run export` of a model with batch norm: its statistics come from the exporter's own data, or it says why not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from fedrep_cli.main import main
from fedrep_identity.certificates import Role
from tests.harness.live_server import SILOS, LiveServer

CODE = """
import torch
from torch import nn
from fedrep_trainers.torch_trainer import TorchTrainer

class Rows:
    def __init__(self, size):
        self.inputs = torch.arange(4.0 * size).reshape(size, 4)
        self.targets = torch.arange(size) % 3

    def batch(self, step):
        return self.inputs, self.targets

    def __iter__(self):
        return iter([self.batch(0)])

def build(settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, settings.options.get("classes", 3)))
    known = Rows(8)
    calibration = known if settings.options.get("calibrated", True) else None
    loss = nn.CrossEntropyLoss()
    return TorchTrainer(model, train=known, evaluation=known, loss=loss, settings=settings, calibration=calibration)
"""


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    (tmp_path / "normed_rows.py").write_text(CODE)
    return written(tmp_path, "client")


def written(folder: Path, name: str, **options: object) -> Path:
    path = folder / f"{name}.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    path.write_text("\n".join(['[trainer]\nuser_code = "normed_rows:build"\n[trainer.options]', *lines]) + "\n")
    return path


def test_an_exported_model_carries_statistics_or_export_says_why_not(
    server: LiveServer, silo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    who = ["--server", server.address, "--identity", str(server.people.folder / "admin")]
    initial, target = tmp_path / "init.safetensors", tmp_path / "model.safetensors"
    assert main(["run", "model", str(initial), "--config", str(silo)]) == 0
    config = tmp_path / "run.toml"
    config.write_text(f'name = "normed"\nsilos = {json.dumps(SILOS)}\nfraction = 0.4\n[aggregator]\nname = "mean"\n')
    assert main(["run", "create", "--config", str(config), "--model", str(initial), *who]) == 0
    export = ["run", "export", "normed", str(target), *who]

    assert main([*export, "--trainer", str(silo)]) == 0
    whole = load_file(target)
    rows = np.arange(32.0).reshape(8, 4)
    assert np.allclose(whole["0.running_mean"], rows.mean(axis=0))
    assert np.allclose(whole["0.running_var"], rows.var(axis=0, ddof=1))
    assert np.array_equal(whole["1.weight"], load_file(initial)["1.weight"])
    target.unlink()

    capsys.readouterr()
    for refused, sentence in (
        (written(tmp_path, "without", calibrated=False), "no calibration data"),
        (written(tmp_path, "other", classes=5), "another model than the run's"),
    ):
        assert main([*export, "--trainer", str(refused)]) == 1
        assert sentence in capsys.readouterr().err
        assert not target.exists()

    assert main(export) == 0
    assert "needs --trainer" in capsys.readouterr().out
    assert set(load_file(target)) == {"0.weight", "0.bias", "1.weight", "1.bias"}

    target.unlink()
    assert main([*export, "--format", "torch"]) == 1
    assert "--format torch needs --trainer" in capsys.readouterr().err
    listed = ["run", "export", "normed", str(target), "--server", server.address, "--identity"]
    assert main([*listed, str(server.people.folder / SILOS[0]), "--trainer", str(silo)]) == 0
    assert set(load_file(target)) > {"0.running_mean", "1.weight"}
    with safe_open(target, "np") as file:
        assert (file.metadata()["fedrep.run"], file.metadata()["fedrep.version"]) == ("normed", "0")
    target.unlink()
    server.people.issue("stranger", Role.SILO)
    assert main([*listed, str(server.people.folder / "stranger")]) == 1
    assert "does not list 'stranger'" in capsys.readouterr().err
    assert not target.exists()
