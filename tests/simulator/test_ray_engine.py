"""Silos that train on Ray end where silos of this process do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrep.errors import FedrepError, SettingsError
from fedrep_runtime.ray_cluster import ray_cluster
from fedrep_simulator import simulate
from fedrep_simulator.ray_engine import workers_for
from fedrep_trainers.settings import TrainerSettings
from tests.simulator.problem import RUN


def test_a_cluster_gets_as_many_workers_as_it_has_room_for() -> None:
    assert workers_for({"CPU": 4.0}, 10, 0.0) == 4
    assert workers_for({"CPU": 16.0}, 10, 0.0) == 10
    assert workers_for({"CPU": 16.0, "GPU": 2.0}, 10, 0.5) == 4
    with pytest.raises(SettingsError, match=r"has 0 GPUs, and a silo is to have 0\.5"):
        workers_for({"CPU": 16.0}, 10, 0.5)


@pytest.mark.slow
def test_ray_and_this_process_end_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'fedrep[ray]' to test its engine.")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    code = "from tests.harness.federation import StubTrainer\n\ndef build(s):\n"
    code += "    if s.options.get('broken'):\n        raise OSError('no such disk')\n"
    code += "    return StubTrainer(s.shard_index if s.shard_count > 1 else 1000)\n"
    (tmp_path / "ray_user_code.py").write_text(code)
    settings = TrainerSettings(user_code_dir=tmp_path)
    name = "ray_user_code:build"
    here = simulate(name, settings=settings, run=RUN, rounds=4, byzantine=1, attack="foe", fast=True)
    with ray_cluster(2):
        there = simulate(name, settings=settings, run=RUN, rounds=4, byzantine=1, attack="foe", fast=True, engine="ray")
        broken = settings.model_copy(update={"options": {"broken": True}})
        with pytest.raises(FedrepError, match="no such disk"):
            simulate(name, settings=broken, run=RUN, rounds=4, engine="ray")
    assert np.array_equal(here.model["weight"], there.model["weight"])
    assert here.central == there.central
    assert [row["train_loss"] for row in here.history] == [row["train_loss"] for row in there.history]
