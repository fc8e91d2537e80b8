"""Figures in MLflow's file store, TensorBoard's event files and Weights & Biases' offline runs, as their readers find them."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedrep.errors import SettingsError
from fedrep_runtime import trackers
from fedrep_runtime.trackers import Trackers, TrackingSettings, check_trackers


def tracked(settings: TrackingSettings) -> None:
    """Two sessions of one run, as after a restart."""
    for rounds in ((1, 2), (3,)):
        session = Trackers(settings, "spring/1", {"server": "here"})
        for number in rounds:
            session.log({"accuracy": number / 10, "auroc": number / 5, "absent": None, "broken": math.nan}, number)
        session.close()


@pytest.mark.skipif(find_spec("mlflow") is None, reason="the extra mlflow is not installed")
def test_mlflow_has_one_run_with_every_round_also_after_a_restart(tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'mlruns'}"
    tracked(TrackingSettings(mlflow=uri))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("fedrep").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == ("spring/1", "FINISHED", {"server": "here"})
    assert set(run.data.metrics) == {"accuracy", "auroc"}
    history = client.get_metric_history(run.info.run_id, "auroc")
    assert sorted((point.step, point.value) for point in history) == [(1, 0.2), (2, 0.4), (3, 0.6)]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="the extra tensorboard is not installed")
def test_tensorboard_reads_every_round_from_the_event_files(tmp_path: Path) -> None:
    tracked(TrackingSettings(tensorboard=tmp_path))
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    read.Reload()
    assert read.Runs()["spring_1"]["scalars"] == ["accuracy", "auroc"]
    found = {event.step: event.value for event in read.Scalars("spring_1", "auroc")}
    assert found == pytest.approx({1: 0.2, 2: 0.4, 3: 0.6})


@pytest.mark.skipif(find_spec("wandb") is None, reason="the extra wandb is not installed")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # wandb's own service
def test_weights_and_biases_writes_offline_runs(tmp_path: Path) -> None:
    tracked(TrackingSettings(wandb="offline", wandb_dir=tmp_path / "here"))
    files = [file for file in (tmp_path / "here" / "wandb").glob("offline-run-*/*.wandb") if file.is_file()]
    written = b"".join(file.read_bytes() for file in files)
    assert files
    assert b"auroc" in written
    assert b"absent" not in written


def test_a_tracker_that_fails_is_left_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __init__(self, *_: Any) -> None: ...

        def log(self, *_: Any) -> None:
            raise ConnectionError("the tracking server is away")

    seen: list[int] = []

    class Working(Failing):
        def log(self, _: Any, step: int) -> None:
            seen.append(step)

        def close(self) -> None: ...

    monkeypatch.setattr(trackers, "wanted_trackers", lambda _: {"failing": Failing, "working": Working})
    both = Trackers(TrackingSettings(), "spring")
    both.log({"loss": 1.0}, 1)
    both.log({"loss": 1.0}, 2)
    both.close()
    assert seen == [1, 2]


def test_a_tracker_that_is_not_installed_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("fedrep_runtime.trackers.importlib.import_module", missing)
    with pytest.raises(SettingsError, match=r"pip install 'fedrep\[mlflow\]'"):
        check_trackers(TrackingSettings(mlflow="http://localhost:5000"))
    check_trackers(TrackingSettings())
