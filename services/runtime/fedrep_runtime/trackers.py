"""Figures where people already look: MLflow, TensorBoard, Weights & Biases. Each an extra of its own, imported when it is used.

A tracker is a convenience: one that fails is left with a line in the log, and whoever measures goes on.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import structlog
from pydantic import BaseModel, ConfigDict, Field

from fedrep.errors import SettingsError

log = structlog.get_logger(__name__)

RUN_TAG = "fedrep.run"


class TrackingSettings(BaseModel):
    """The table `[tracking]`; what is not named is not used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mlflow: str = Field(default="", description="MLflow's tracking URI, for example http://host:5000 or file:mlruns")
    experiment: str = Field(default="fedrep", description="MLflow's experiment, and Weights & Biases' project")
    tensorboard: Path | None = Field(default=None, description="folder for TensorBoard's event files")
    wandb: Literal["", "offline", "online"] = Field(default="", description="Weights & Biases: offline or online")
    wandb_dir: Path = Field(default=Path(), description="folder in which Weights & Biases makes its own, wandb")


class Tracker(Protocol):
    def log(self, figures: Mapping[str, float], step: int) -> None: ...
    def close(self) -> None: ...


class MlflowTracker:
    """One MLflow run for each of ours: a restart goes on in it."""

    def __init__(self, settings: TrackingSettings, run: str, parameters: Mapping[str, Any]) -> None:
        if settings.mlflow.startswith("file:") or "://" not in settings.mlflow:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 wants to be told that a folder is meant
        tracking = _package("mlflow.tracking", "mlflow")
        self._client = tracking.MlflowClient(tracking_uri=settings.mlflow)
        found = self._client.get_experiment_by_name(settings.experiment)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(settings.experiment)
        known = [one for one in self._client.search_runs([experiment]) if one.data.tags.get(RUN_TAG) == run]
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(experiment, run_name=run, tags={RUN_TAG: run}).info.run_id
        for name, value in parameters.items():
            self._client.log_param(self._run, _plain(name), value)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._client.log_metric(self._run, _plain(name), value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class TensorboardTracker:
    """Event files, a folder for each run. Written by TensorBoard's own writer, so without torch."""

    def __init__(self, settings: TrackingSettings, run: str, parameters: Mapping[str, Any]) -> None:  # noqa: ARG002  as the others
        assert settings.tensorboard is not None
        self._writer = _package("tensorboard.summary.writer.event_file_writer", "tensorboard").EventFileWriter(
            str(settings.tensorboard / _plain(run))
        )
        self._event = _package("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _package("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary

    def log(self, figures: Mapping[str, float], step: int) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    def __init__(self, settings: TrackingSettings, run: str, parameters: Mapping[str, Any]) -> None:
        wandb = _package("wandb", "wandb")
        settings.wandb_dir.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=settings.experiment,
            name=run,
            id=re.sub(r"[^A-Za-z0-9_-]", "-", run),
            resume="allow",
            mode=settings.wandb,
            dir=str(settings.wandb_dir),
            config=dict(parameters),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackers:
    """All that the settings name, opened at the first figures. Blocking: call it in a thread where that matters."""

    def __init__(self, settings: TrackingSettings, run: str, parameters: Mapping[str, Any] | None = None) -> None:
        self._settings = settings
        self._run = run
        self._parameters = parameters or {}
        self._open: dict[str, Tracker] | None = None

    def log(self, figures: Mapping[str, float | None], step: int) -> None:
        """What is not a number, or is none, is left out."""
        known = {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}
        for name, tracker in list(self._trackers().items()):
            self._try(name, lambda tracker=tracker: tracker.log(known, step))  # type: ignore[misc]  # bound now, not later

    def close(self) -> None:
        for name, tracker in list((self._open or {}).items()):
            self._try(name, tracker.close)
        self._open = {}

    def _trackers(self) -> dict[str, Tracker]:
        if self._open is None:
            self._open = {}
            for name, kind in wanted_trackers(self._settings).items():
                self._try(name, lambda name=name, kind=kind: self._begin(name, kind))  # type: ignore[misc]
        return self._open

    def _begin(self, name: str, kind: Callable[..., Tracker]) -> None:
        assert self._open is not None
        self._open[name] = kind(self._settings, self._run, self._parameters)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # a tracker may raise anything, and is no reason to stop
            log.error("tracker_left", tracker=name, why=f"{type(error).__name__}: {error}")
            if self._open is not None:
                self._open.pop(name, None)


def wanted_trackers(settings: TrackingSettings) -> dict[str, Callable[..., Tracker]]:
    kinds: dict[str, tuple[object, Callable[..., Tracker]]] = {
        "mlflow": (settings.mlflow, MlflowTracker),
        "tensorboard": (settings.tensorboard, TensorboardTracker),
        "wandb": (settings.wandb, WandbTracker),
    }
    return {name: kind for name, (wanted, kind) in kinds.items() if wanted}


def check_trackers(settings: TrackingSettings) -> None:
    """Before anything starts: a tracker whose package is missing is a mistake in the settings."""
    for name in wanted_trackers(settings):
        _package(name, name)


def _package(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(f"[tracking] names {extra}, which is not installed here: pip install 'fedrep[{extra}]'") from error


def _plain(name: str) -> str:
    """MLflow takes few characters in names, and a folder's name must lead nowhere else."""
    return re.sub(r"[^A-Za-z0-9_ -]", "_", name)
