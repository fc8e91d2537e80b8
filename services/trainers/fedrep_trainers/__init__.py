"""What a silo trains: the `Trainer` protocol, a trainer for PyTorch models, and a check of the promises a trainer makes.

    from fedrep_trainers import TorchTrainer, TrainerSettings

Importing this package imports no torch: `TorchTrainer` is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedrep.record_privacy import SampledGaussian, Stated
from fedrep_trainers.contract import check_trainer
from fedrep_trainers.layout import ModelLayout
from fedrep_trainers.predictions import Predictions
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.trainer import Allowance, Evaluation, PrivateTrainer, Trainer, TrainResult

if TYPE_CHECKING:
    from fedrep_trainers.torch_trainer import TorchTrainer

__all__ = [
    "Allowance",
    "Evaluation",
    "ModelLayout",
    "Predictions",
    "PrivateTrainer",
    "SampledGaussian",
    "Stated",
    "TorchTrainer",
    "TrainResult",
    "Trainer",
    "TrainerSettings",
    "check_trainer",
]


def __getattr__(name: str) -> Any:
    if name == "TorchTrainer":
        from fedrep_trainers.torch_trainer import TorchTrainer

        return TorchTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
