"""Training records that can be drawn one by one, as DP-SGD needs them: no record's batch depends on another record.

A DataLoader's order is left aside; its data set and `collate_fn` are used, and `collate_fn` sees one record at a time and makes
one row of it, so that neither padding nor mixing can carry something of one record into another, and none is clipped as several.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from fedrep.errors import SettingsError


@runtime_checkable
class RecordSource(Protocol):
    """`ImageBatches` is one; a DataLoader is made one by `LoaderRecords`."""

    @property
    def records(self) -> int:
        """How many there are; public."""
        ...

    @property
    def batch_size(self) -> int:
        """How many a step sees on average."""
        ...

    def pieces(self, positions: NDArray[np.int64], number: int, at_once: int) -> Iterator[Any]:
        """The records at these positions as batches of at most `at_once`, for local step `number`."""
        ...


class LoaderRecords:
    """The data set of a user's DataLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        dataset = loader.dataset
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise SettingsError(
                "[privacy] draws every record by itself, and the training DataLoader's data set gives them as it likes; "
                "use a map-style Dataset, with __getitem__ and __len__"
            )
        if loader.batch_size is None or not _takes_all(loader.sampler, len(dataset)):
            raise SettingsError(
                "[privacy] draws every record of the data set with the same probability, and the training DataLoader brings a "
                "sampler of its own; leave it out (a torch.utils.data.Subset chooses among records) and give a batch_size"
            )
        if len(dataset) == 0:
            raise SettingsError("the training data set is empty")
        self._dataset: Any = dataset
        self._collate = loader.collate_fn
        self.records = len(dataset)
        self.batch_size = min(loader.batch_size, self.records)

    def pieces(self, positions: NDArray[np.int64], number: int, at_once: int) -> Iterator[Any]:  # noqa: ARG002  no draw depends on it
        for start in range(0, positions.size, at_once):
            alone = [self._collate([self._dataset[int(place)]]) for place in positions[start : start + at_once]]
            alike: dict[Any, list[Any]] = {}
            for record in alone:
                _require_one_row(record)
                alike.setdefault(_form(record), []).append(record)
            yield from map(_joined, alike.values())


def record_source(train: Any) -> RecordSource:
    if isinstance(train, DataLoader):
        return LoaderRecords(train)
    if isinstance(train, RecordSource):
        return train
    raise SettingsError(
        f"[privacy] draws every record by itself, and a {type(train).__name__} only gives whole batches; train on a DataLoader "
        "over a map-style Dataset, or on a source with the members of fedrep_trainers.records.RecordSource"
    )


def _takes_all(sampler: Any, records: int) -> bool:
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == records
    return isinstance(sampler, SequentialSampler)


def _require_one_row(batch: Any) -> None:
    """Each row's gradient is cut by itself: a record of eight rows would count eight times."""
    if isinstance(batch, Tensor) and (batch.dim() == 0 or len(batch) != 1):
        raise SettingsError(
            f"the training DataLoader's collate_fn makes a tensor of shape {tuple(batch.shape)} of one record; with [privacy] a "
            "record is one row, so every tensor must begin with a dimension of 1. Let the data set give windows or views as "
            "records of their own, or let module and loss take all of them as one row"
        )
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list):
        for part in batch:
            _require_one_row(part)


def _form(batch: Any) -> Any:
    """What two records must share to lie in one batch: places, shapes and types of tensors, and everything else as it is."""
    if isinstance(batch, Tensor):
        return (tuple(batch.shape), batch.dtype)
    if isinstance(batch, Mapping):
        return tuple((name, _form(value)) for name, value in batch.items())
    if isinstance(batch, tuple | list):
        return tuple(_form(value) for value in batch)
    return (type(batch), batch if isinstance(batch, Hashable) else id(batch))


def _joined(batches: Sequence[Any]) -> Any:
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {name: _joined([batch[name] for batch in batches]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(parts) for parts in zip(*batches, strict=True))
    return first
