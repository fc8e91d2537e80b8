"""From settings to a trainer: the silo's own code if it names some, else built-in data, split and model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedrep_trainers.batches import ImageBatches, OrderedImages, derived_seed
from fedrep_trainers.datasets import DATASETS, ImageDataset
from fedrep_trainers.devices import choose_device
from fedrep_trainers.images import Preparation
from fedrep_trainers.models import build_model
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.splits import dirichlet_split, iid_split
from fedrep_trainers.torch_trainer import TorchTrainer
from fedrep_trainers.trainer import Trainer
from fedrep_trainers.user_code import user_trainer


def build_trainer(settings: TrainerSettings) -> Trainer:
    if settings.user_code is not None:
        return user_trainer(settings.user_code, settings)
    return image_trainer(settings, DATASETS[settings.dataset](settings.data_dir, settings.cache_dir))


def image_trainer(settings: TrainerSettings, dataset: ImageDataset) -> TorchTrainer:
    """A trainer on one shard of images that are already loaded, so that many silos of one process can share them."""
    model = build_model(settings.model, dataset.input_shape, len(dataset.classes), settings.seed, settings.model_options)
    shard = shard_indices(settings, dataset)
    plain = Preparation(dataset.full_scale, dataset.mean, dataset.std, choose_device(settings.device))
    varied = Preparation(plain.full_scale, plain.mean, plain.std, plain.device, augment=settings.augments)
    order_seed = derived_seed(settings.seed, settings.shard_index, 3)
    parts = iid_split(len(dataset.test), settings.shard_count if settings.evaluation_shard else 1, settings.seed)
    tested = _some(parts[settings.shard_index % len(parts)], settings.evaluation_samples, settings.seed)
    calibrating = _some(shard, settings.calibration_samples, settings.seed)
    return TorchTrainer(
        model,
        train=ImageBatches(dataset.train, shard, varied, settings.batch_size, order_seed),
        evaluation=OrderedImages(dataset.test, tested, plain, settings.evaluation_batch_size),
        calibration=OrderedImages(dataset.train, calibrating, plain, settings.evaluation_batch_size)
        if settings.calibration_samples
        else None,
        loss=nn.CrossEntropyLoss(),
        settings=settings,
    )


def shard_indices(settings: TrainerSettings, dataset: ImageDataset) -> NDArray[np.int64]:
    if settings.split == "iid":
        shards = iid_split(len(dataset.train), settings.shard_count, settings.seed)
    else:
        shards = dirichlet_split(dataset.train.labels, settings.shard_count, settings.dirichlet_alpha, settings.seed)
    return shards[settings.shard_index]


def _some(indices: NDArray[np.int64], count: int | None, seed: int) -> NDArray[np.int64]:
    """A random choice in random order: image folders are sorted by class, and so would be their first thousand."""
    return np.random.default_rng([seed, 4]).permutation(indices)[:count]
