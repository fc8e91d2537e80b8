"""Where training batches come from. Every source can be entered at any step, so nothing but a step number is saved."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from fedrep.errors import SettingsError
from fedrep_trainers.images import Images, Preparation

Batch = Any  # a tensor, a tuple whose last entry holds the targets, or a dict: see `forward`


class BatchSource(Protocol):
    def batch(self, number: int) -> Batch:
        """The batch of local step `number`, counted from 0 over all rounds; the same at every call."""
        ...


class ImageBatches:
    """Shuffled epochs over one shard, laid end to end and cut into batches of equal size."""

    def __init__(self, images: Images, indices: NDArray[np.int64], preparation: Preparation, batch_size: int, seed: int) -> None:
        if indices.size == 0:
            raise SettingsError("this silo's shard of the data is empty; use fewer shards or another split")
        self._images = images
        self._indices = indices
        self._preparation = preparation
        self.records = indices.size
        self.batch_size = min(batch_size, indices.size)
        self._seed = seed
        self._shuffled: tuple[int, NDArray[np.int64]] = (-1, indices)

    def batch(self, number: int) -> Batch:
        rng = np.random.default_rng([self._seed, 1, number])
        return self._preparation.batch(self._images, self.places(number), rng)

    def places(self, number: int) -> NDArray[np.int64]:
        """Which images make up the batch of local step `number`."""
        chosen: list[NDArray[np.int64]] = []
        position, missing = number * self.batch_size, self.batch_size
        while missing:
            epoch, offset = divmod(position, self._indices.size)
            piece = self._epoch(epoch)[offset : offset + missing]
            chosen.append(piece)
            position, missing = position + piece.size, missing - piece.size
        return np.concatenate(chosen)

    def pieces(self, positions: NDArray[np.int64], number: int, at_once: int) -> Iterator[Batch]:  # noqa: ARG002  no draw depends on it
        """Records drawn by position, as `records.RecordSource` has it.

        Crops are lots that nobody knows: by a known seed another record's crop would tell whether one before it was drawn.
        """
        rng = np.random.default_rng(secrets.randbits(256))
        for start in range(0, positions.size, at_once):
            yield self._preparation.batch(self._images, self._indices[positions[start : start + at_once]], rng)

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        if self._shuffled[0] != epoch:
            rng = np.random.default_rng([self._seed, 0, epoch])
            self._shuffled = (epoch, rng.permutation(self._indices))
        return self._shuffled[1]


class OrderedImages:
    """All images of a split once, in order: what evaluation and calibration iterate over."""

    def __init__(self, images: Images, indices: NDArray[np.int64], preparation: Preparation, batch_size: int) -> None:
        self._images = images
        self._indices = indices
        self._preparation = preparation
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self._indices.size, self._batch_size):
            yield self._preparation.batch(self._images, self._indices[start : start + self._batch_size], None)


class LoaderBatches:
    """A user's DataLoader, epoch after epoch. The shuffle of epoch e depends on the seed and e alone.

    Entering in mid-epoch, after a restart, means passing over the batches before it once.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        try:
            length = len(loader)
        except TypeError:
            raise SettingsError(
                "the training DataLoader has no length, so a restarted silo could not find its place in it; "
                "use a map-style Dataset, or a trainer of your own"
            ) from None
        if length == 0:
            raise SettingsError("the training DataLoader has no batch; with drop_last, is there less than one?")
        self._loader = loader
        self._length = length
        self._seed = seed
        self._next = 0
        self._iterator: Iterator[Any] = iter(())

    def batch(self, number: int) -> Batch:
        epoch, offset = divmod(number, self._length)
        batch = next(self._iterator) if number == self._next and offset else self._enter(epoch, offset)
        self._next = number + 1
        return batch

    def _enter(self, epoch: int, offset: int) -> Any:
        seed = derived_seed(self._seed, epoch)
        state = torch.random.get_rng_state()
        torch.default_generator.manual_seed(seed)
        if self._loader.generator is not None:
            self._loader.generator.manual_seed(seed)
        self._iterator = iter(self._loader)
        # The shuffle is drawn with the first batch, so that one is fetched while the epoch's seed is in force.
        batch = next(self._iterator)
        torch.random.set_rng_state(state)
        for _ in range(offset):
            batch = next(self._iterator)
        return batch


def derived_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers, without the collisions of adding them."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
