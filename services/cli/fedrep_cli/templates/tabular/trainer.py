"""A small network on a table: 30 measurements per patient, one finding (scikit-learn's breast cancer data).

Replace `patients` by a function that reads this silo's own files, and `network` by your model. The rest can stay.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedrep_trainers import Predictions, TorchTrainer, TrainerSettings


def patients(settings: TrainerSettings) -> tuple[TensorDataset, TensorDataset]:
    """What this silo trains on, and what it is judged by.

    Here all silos share one public table, of which each takes every `shard_count`-th row. A real silo loads its own:
    `np.load(settings.options["file"])`, for example, with `file` under [trainer.options] in client.toml.
    """
    table = load_breast_cancer()
    measured = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)  # agree on these numbers with the others
    order = np.random.default_rng(settings.seed).permutation(len(measured))
    held_out, known = order[:120], order[120:][settings.shard_index % settings.shard_count :: settings.shard_count]
    inputs = torch.tensor(measured, dtype=torch.float32)
    findings = torch.tensor(table.target, dtype=torch.int64)
    return TensorDataset(inputs[known], findings[known]), TensorDataset(inputs[held_out], findings[held_out])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


def metrics(predictions: Predictions) -> dict[str, float]:
    """Figures of your own, over all held-out rows; `best = "auroc"` in run.toml lets one of them choose the best model."""
    scores = predictions.outputs[:, 1] - predictions.outputs[:, 0]
    return {
        "auroc": float(roc_auc_score(predictions.targets, scores)),
        "f1": float(f1_score(predictions.targets, scores > 0)),
    }


def build(settings: TrainerSettings) -> TorchTrainer:
    """What client.toml names as user_code."""
    torch.manual_seed(settings.seed)  # every silo starts from the same model
    known, held_out = patients(settings)
    return TorchTrainer(
        network(),
        train=DataLoader(known, batch_size=settings.batch_size, shuffle=True),
        evaluation=DataLoader(held_out, batch_size=500),
        loss=nn.CrossEntropyLoss(),
        metrics=metrics,
        settings=settings,
    )
