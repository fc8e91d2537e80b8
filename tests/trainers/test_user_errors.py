"""Errors of a silo's own code: what, and in which of its author's lines; one red row per cause."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from fedrep.errors import SettingsError
from fedrep_cli.client import make_trainer
from fedrep_cli.client_check import check_silo
from fedrep_silo.config import SiloSettings, load_silo_settings
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.user_errors import explained

SHAPES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from fedrep_trainers import TorchTrainer

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 8)

    def forward(self, inputs):
        return self.first(inputs)

def build(settings):
    data = DataLoader(TensorDataset(torch.ones(4, 30), torch.zeros(4, dtype=torch.int64)), batch_size=4)
    return TorchTrainer(Model(), train=data, evaluation=data, loss=nn.CrossEntropyLoss(), settings=settings)
"""


@pytest.fixture(autouse=True)
def path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def silo(folder: Path, name: str, source: str) -> SiloSettings:
    (folder / f"{name}.py").write_text(source)
    (folder / "client.toml").write_text(f'run = "first"\n[trainer]\nuser_code = "{name}:build"\nthreads = 1\nshard_index = 3\n')
    return load_silo_settings(folder / "client.toml")


@pytest.mark.parametrize(
    ("name", "source", "text"),
    [
        (
            "wrong_file",
            "import numpy as np\n\ndef read():\n    return np.load('cases.npz')\n\ndef build(settings):\n    return read()\n",
            r"FileNotFoundError: there is no file 'cases\.npz', looked for from .* \(wrong_file\.py, line 4, in read\)",
        ),
        (
            "wrong_key",
            "def build(settings):\n    return settings.options['folder']\n",
            r"no 'folder' \(wrong_key\.py, line 2, in build\)",
        ),
        ("wrong_import", "limit = 1 / 0\n", r"ZeroDivisionError: division by zero \(wrong_import\.py, line 1\)"),
        ("wrong_syntax", "\n\ndef build(:\n", r"SyntaxError: .* \(wrong_syntax\.py, line 3\)"),
    ],
)
def test_the_line_of_the_authors_own_code_is_named(tmp_path: Path, name: str, source: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        make_trainer(silo(tmp_path, name, source))


def test_a_shape_error_is_one_red_row_with_the_layers_name_and_both_shapes(tmp_path: Path) -> None:
    rows = {row["check"]: row for row in asyncio.run(check_silo(silo(tmp_path, "wrong_shape", SHAPES)))}
    about_the_trainer = {
        name: row["outcome"] for name, row in rows.items() if name == "one training" or name.startswith("trainer:")
    }
    assert [name for name, outcome in about_the_trainer.items() if outcome == "failed"] == ["one training"]
    text = rows["one training"]["text"]
    assert "in layer 'first' (Linear: weight [8, 20], bias [8]), which was given [4, 30]" in text
    assert text.endswith("(wrong_shape.py, line 13, in forward)")
    assert "for the reason at 'one training'" in rows["trainer: evaluation"]["text"]


def test_the_traceback_is_shown_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = silo(tmp_path, "wrong_shape_again", SHAPES)
    asyncio.run(check_silo(settings))
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("FEDREP_DEBUG", "1")
    asyncio.run(check_silo(settings))
    assert "Traceback" in capsys.readouterr().err


def test_our_own_sentences_stay_as_they_are() -> None:
    assert explained(SettingsError("the data is empty")) == "the data is empty"


def test_user_code_may_have_a_shard_without_a_count() -> None:
    assert TrainerSettings(user_code="trainer:build", shard_index=3).shard_index == 3
    with pytest.raises(ValueError, match="shard_index 3 must be below shard_count 1"):
        TrainerSettings(shard_index=3)
