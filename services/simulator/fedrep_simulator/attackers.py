"""The Byzantine silos of a simulation: one place where they tell each other what they would send, round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.collusion import Attack, sent_by_all
from fedrep.protocol.manifests import RunManifest, SiloName
from fedrep_silo.drill import Drill
from fedrep_simulator.seeds import generator

Vector = NDArray[np.float32]


class Coalition:
    """What the attackers of one run share, round by round."""

    def __init__(self, attack: Attack, members: tuple[SiloName, ...], run: RunManifest, seed: int) -> None:
        self.attack = attack
        self.members = members
        self._run = run
        self._seed = seed
        self._round = 0
        self._known: dict[SiloName, Vector] = {}
        self._crafted: dict[SiloName, Vector] = {}

    def share(self, silo: SiloName, round_number: int, g: Vector) -> None:
        """What this member would send; forgotten with the round."""
        if silo not in self.members:
            return
        if round_number != self._round:
            self._round, self._known = round_number, {}
        self._known[silo], self._crafted = g, {}

    def crafted(self, silo: SiloName, g: Vector) -> Vector:
        if silo not in self._known:
            self.share(silo, self._round, g)
        if not self._crafted:
            self._crafted = sent_by_all(self.attack, self._run, self._known, self._dice)
        return self._crafted[silo]

    def _dice(self, purpose: str) -> np.random.Generator:
        return generator(self._seed, purpose, self.attack.name, self._round)

    def drill(self, silo: SiloName) -> Drill | CoalitionDrill:
        return CoalitionDrill(self, silo) if silo in self.members else Drill()


@dataclass(frozen=True)
class CoalitionDrill:
    """One member's attack, as its machine plays a drill."""

    coalition: Coalition
    silo: SiloName

    @property
    def attack(self) -> str:
        return self.coalition.attack.name

    def check(self, run: RunManifest) -> None:
        """The run is the simulation's own, made for it."""

    def share(self, run: RunManifest, round_number: int, g: Vector) -> None:  # noqa: ARG002 - a coalition is of one run
        self.coalition.share(self.silo, round_number, g)

    def of_update(self, run: RunManifest, round_number: int, g: Vector) -> Vector:  # noqa: ARG002
        return self.coalition.crafted(self.silo, g)
