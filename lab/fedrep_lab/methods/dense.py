"""Methods that send the whole vector: means as floors, SHARE and F2ed-Learning as rivals, central training as ceiling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrep_lab.methods.interface import BufferedRule, Matrix, Setting, Step, buffer_groups, rule_of


class DenseMean:
    """The plain mean of all silos, each of the same weight."""

    view: ClassVar[str] = "the sum over all silos"
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._weights: NDArray[Any] = np.ones(setting.cell.m)

    def step(self, updates: Matrix, round_number: int) -> Step:  # noqa: ARG002  every method is told the round
        weights = (self._weights / self._weights.sum()).astype(np.float32)
        forged = self._setting.adversary.forge(updates, lambda values: weights @ values)
        d = float(self._setting.parameters)
        return Step(weights @ forged, None, d, d)


class FedAvg(DenseMean):
    """McMahan et al., 2017: silos count by their samples; give it an interval above one."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._weights = setting.samples.astype(np.float64)


class Central:
    """One machine with all the data: what the federation would reach without silos, attackers or compression."""

    view: ClassVar[str] = "everything"
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting) -> None:
        pass

    def step(self, updates: Matrix, round_number: int) -> Step:  # noqa: ARG002
        return Step(updates[0])


class Share:
    """SHARE (Velicheti et al., 2021): secure sums in random clusters of s silos, a robust rule over the clusters."""

    view: ClassVar[str] = "sums over a cluster"
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rule = rule_of(setting.cell)

    def step(self, updates: Matrix, round_number: int) -> Step:
        groups = buffer_groups(self._setting, round_number)
        result = BufferedRule(self._rule, groups, self._setting, round_number).under_attack(updates)
        d = float(self._setting.parameters)
        return Step(result.vector, None, d, d, notes=result.notes)


class F2ed(Share):
    """F2ed-Learning (Wang et al., 2020): secure sums in shards, then FilterL2 over the shards."""

    view: ClassVar[str] = "sums over a shard"
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting) -> None:
        super().__init__(replace(setting, cell=replace(setting.cell, rule="filter_l2", rule_settings={}, pre=())))
