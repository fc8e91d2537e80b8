"""What the state folder gives back is what it was given, for the trainers that ship with the daemon."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrep.protocol.error_memory import ErrorMemory
from fedrep_silo.state import StateFolder
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings


def test_a_built_in_trainer_goes_on_from_the_state_folder_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    settings = TrainerSettings(threads=1, shard_count=10, interval=2)
    trainer = build_trainer(settings)
    after = trainer.train(trainer.initial(), 1).model
    folder = StateFolder(tmp_path)
    folder.save_memory(ErrorMemory(np.zeros(trainer.layout.size, np.float32)), trainer.state())

    _, state = folder.memory(trainer.layout.size)
    restarted = build_trainer(settings)
    restarted.load_state(state)
    np.testing.assert_array_equal(restarted.train(after, 2).model, trainer.train(after, 2).model)
