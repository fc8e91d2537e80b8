"""Who shares a buffer, for a whole epoch, by a seed that the admin signed: nobody chooses, and everybody can compute it (N4).

The run's listed silos, in an order keyed by HMAC-SHA256(seed, epoch), are cut into floor(M/s) runs whose sizes differ by at most
one. These are the buffers, whoever proposes: a server that wants other groupings has to wait for the next epoch.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from fedrep.buffers import cut, sizes
from fedrep.protocol.manifests import SiloName

SEED_BYTES = 32


class Seating(Protocol):
    """What a run manifest says about buffers."""

    @property
    def silos(self) -> tuple[SiloName, ...]: ...
    @property
    def buffer_size(self) -> int: ...
    @property
    def reshuffle_every(self) -> int: ...
    @property
    def buffer_seed(self) -> bytes: ...


Seats = tuple[tuple[SiloName, ...], ...]


def epoch_of(round_number: int, reshuffle_every: int) -> int:
    return round_number // max(reshuffle_every, 1)


def seats(run: Seating, round_number: int) -> Seats:
    """Every buffer's members, in bytewise order."""
    return _seats(run.silos, run.buffer_size, run.buffer_seed, epoch_of(round_number, run.reshuffle_every))


def largest_seat(run: Seating) -> int:
    return sizes(len(run.silos), run.buffer_size)[0]


@lru_cache(maxsize=64)
def _seats(silos: tuple[SiloName, ...], buffer_size: int, seed: bytes, epoch: int) -> Seats:
    groups = cut(keyed_order(silos, seed, epoch), buffer_size)
    return tuple(tuple(sorted(group, key=str.encode)) for group in groups)


def keyed_order(silos: Sequence[SiloName], seed: bytes, epoch: int) -> tuple[SiloName, ...]:
    key = hmac.digest(seed, epoch.to_bytes(8, "big"), hashlib.sha256)
    return tuple(sorted(silos, key=lambda name: (hmac.digest(key, name.encode(), hashlib.sha256), name.encode())))
