"""Who shares a buffer (section 3.3): a random order of the silos, cut into floor(m/s) groups.

The paper takes m as a multiple of s. Here any m >= s works: group sizes differ by at most one, and none is below s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from fedrep.errors import InvalidInputError

Name = TypeVar("Name", bound=str)


def shuffle(names: Iterable[Name], rng: np.random.Generator) -> tuple[Name, ...]:
    """A uniformly random order that depends on the set of names and the generator only."""
    ordered = sorted(names, key=lambda name: name.encode())
    for name, following in pairwise(ordered):
        if name == following:
            raise InvalidInputError(f"The silo {name!r} is listed twice; a silo can be in one buffer only.")
    return tuple(ordered[position] for position in rng.permutation(len(ordered)))


def cut(ordered_names: Sequence[Name], buffer_size: int) -> tuple[tuple[Name, ...], ...]:
    """Consecutive groups of the given order; larger groups come first."""
    groups = []
    start = 0
    for size in sizes(len(ordered_names), buffer_size):
        groups.append(tuple(ordered_names[start : start + size]))
        start += size
    return tuple(groups)


def number_of_buffers(count: int, buffer_size: int) -> int:
    return count // buffer_size


def sizes(count: int, buffer_size: int) -> list[int]:
    """The sizes of the floor(count / buffer_size) buffers, largest first."""
    if buffer_size < 1:
        raise InvalidInputError(f"A buffer holds at least one silo, not {buffer_size}.")
    if count < buffer_size:
        raise InvalidInputError(f"{count} silos cannot fill one buffer of {buffer_size}; wait for more or lower the size.")
    number = number_of_buffers(count, buffer_size)
    smaller, extra = divmod(count, number)
    return [smaller + 1] * extra + [smaller] * (number - extra)


def largest_buffer(quorum: int, silos: int, buffer_size: int) -> int:
    """The largest buffer that any number of participants from the quorum to all silos can lead to."""
    if quorum > silos:
        raise InvalidInputError(f"The quorum of {quorum} exceeds the {silos} silos there are.")
    return max(sizes(count, buffer_size)[0] for count in range(quorum, silos + 1))
