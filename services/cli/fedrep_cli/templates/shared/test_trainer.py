"""The trainer keeps what a trainer promises, and learns. Run with: python -m pytest"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from trainer import build

from fedrep_trainers import Trainer, TrainerSettings, check_trainer

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    table = tomllib.loads((FOLDER / "client.toml").read_text())["trainer"]
    return build(TrainerSettings(**table, user_code_dir=FOLDER, shard_index=1, shard_count=10))


def test_the_trainer_keeps_its_promises(trainer: Trainer) -> None:
    assert [finding for finding in check_trainer(trainer) if not finding.passed] == []


def test_training_lowers_the_loss(trainer: Trainer) -> None:
    model = trainer.initial()
    before = trainer.evaluate(model)
    for round_number in range(15):
        model = trainer.train(model, round_number).model
    assert trainer.evaluate(model).loss < before.loss
