"""What a method is to the simulation: it takes everybody's local updates and gives the step of the global model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedrep.aggregators import Aggregate, ConfiguredRule, build_rule
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.seats import SEED_BYTES, seats
from fedrep.protocol.thresholds import expected_byzantine
from fedrep.sparsify import Coordinates
from fedrep_lab.adversary import Adversary
from fedrep_lab.cell import Cell

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]

# Streams of random numbers, apart by purpose, so that one cannot shift another.
PROPOSE, ORDER, ROUND_UP, DROP, ATTACK, METHOD, ABSENT = range(5, 12)


@dataclass(frozen=True)
class Setting:
    """What a method is built from."""

    cell: Cell
    parameters: int
    samples: NDArray[np.int64]
    adversary: Adversary

    def rng(self, *parts: int) -> np.random.Generator:
        return np.random.default_rng([self.cell.seed, *parts])


@dataclass(frozen=True)
class Step:
    """w <- w - G. `indices` is None where G is dense."""

    values: Vector
    indices: Coordinates | None = None
    transmitted: float = 0.0  # coordinates whose value one silo sends
    received: float = 0.0  # coordinates whose value comes back
    kept: float = 1.0  # mean over honest silos of |C(g)|^2 / |g|^2
    notes: tuple[str, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)
    skipped: bool = False  # the model stays, and everybody's update is proposed again: nobody trains


class Method(Protocol):
    """`view` says what the server sees of a silo's values, for the measured Table 1; `takes` names its `method_settings`."""

    view: ClassVar[str]
    takes: ClassVar[tuple[str, ...]]

    def __init__(self, setting: Setting) -> None: ...

    def step(self, updates: Matrix, round_number: int) -> Step:
        """`updates` may be changed in place, unless the round is skipped; rounds count from 1."""
        ...


@runtime_checkable
class ChoosesAhead(Protocol):
    """A method whose coordinates may be known before anybody trains; None where they are not."""

    def ahead(self, round_number: int, model: Vector) -> Coordinates | None: ...


def rule_of(cell: Cell) -> ConfiguredRule:
    return build_rule(cell.rule, dict(cell.rule_settings), list(cell.pre))


@dataclass(frozen=True)
class Seating:
    """What a run manifest of this cell would say about buffers."""

    silos: tuple[SiloName, ...]
    buffer_size: int
    reshuffle_every: int
    buffer_seed: bytes

    @classmethod
    def of(cls, cell: Cell, rng: np.random.Generator) -> Seating:
        names = tuple(SiloName(f"silo-{silo:02d}") for silo in range(cell.m))
        return cls(names, cell.s, cell.reshuffle_every or sys.maxsize, rng.bytes(SEED_BYTES))

    def groups(self, round_number: int) -> list[NDArray[np.int64]]:
        """The seats of this round's epoch, as positions of silos."""
        position = {name: number for number, name in enumerate(self.silos)}
        return [np.array([position[name] for name in seat]) for seat in seats(self, round_number)]


def buffer_groups(setting: Setting, round_number: int) -> list[NDArray[np.int64]]:
    """Who shares a buffer in this round, whoever takes part."""
    return Seating.of(setting.cell, setting.rng(ORDER)).groups(round_number)


def group_means(values: Matrix, groups: list[NDArray[np.int64]]) -> Matrix:
    return np.stack([values[group].mean(axis=0) for group in groups]).astype(np.float32, copy=False)


@dataclass(frozen=True)
class BufferedRule:
    """What the server does with everybody's values in one round: means over buffers, then the rule over the means."""

    rule: ConfiguredRule
    groups: list[NDArray[np.int64]]
    setting: Setting
    round_number: int

    def over_means(self, means: Matrix) -> Aggregate:
        f = expected_byzantine(self.setting.cell.f, len(self.groups))
        rng = self.setting.rng(METHOD, self.round_number)
        weights = [group.size for group in self.groups]  # taken by the mean only
        return self.rule(means, byzantine_count=f, weights=weights, rng=rng)

    def aggregate(self, values: Matrix) -> Aggregate:
        return self.over_means(group_means(values, self.groups))

    def vector(self, values: Matrix) -> Vector:
        return self.aggregate(values).vector

    def under_attack(self, values: Matrix) -> Aggregate:
        """With the attackers' rows replaced; they know the rule and the buffers of this round."""
        return self.aggregate(self.setting.adversary.forge(values, self.vector))


def energy_kept(full: Matrix, kept: Matrix, honest: int) -> float:
    """Mean over honest silos of |C(g)|^2 / |g|^2: d'-contraction asks for at least d'/d."""
    before, after = (squares(rows[:honest]) for rows in (full, kept))
    return float(np.mean(after / np.maximum(before, np.finfo(np.float64).tiny)))


def squares(rows: Matrix) -> NDArray[np.float64]:
    """|g|^2 of every row: a product each in its own precision, far faster than sums in float64, which are left for huge rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array([np.dot(row, row) for row in rows], dtype=np.float64)
        for row in np.flatnonzero(~np.isfinite(found)).tolist():
            found[row] = np.square(rows[row], dtype=np.float64).sum()
    return found
