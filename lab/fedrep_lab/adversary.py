"""The Byzantine silos of a cell: the last f of the m, omniscient, and acting together (section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.attacks import ATTACKS, COORDINATE_ATTACKS
from fedrep.errors import SettingsError
from fedrep.sparsify import Coordinates
from fedrep_lab.cell import Cell

Matrix = NDArray[np.float32]

# At the level of the data: the silos do what honest ones do, with wrong labels.
DATA_ATTACKS = ("labelflip",)


class Adversary:
    def __init__(self, cell: Cell, rng: np.random.Generator) -> None:
        known = ("none", *DATA_ATTACKS, *ATTACKS)
        if cell.attack not in known:
            raise SettingsError(f"There is no attack {cell.attack!r}; choose from {', '.join(known)}.")
        if cell.coordinate_attack not in ("none", *COORDINATE_ATTACKS):
            names = ", ".join(["none", *COORDINATE_ATTACKS])
            raise SettingsError(f"There is no attack on coordinates {cell.coordinate_attack!r}; choose from {names}.")
        self._cell = cell
        self._rng = rng
        self.count = cell.attackers

    @property
    def forges(self) -> bool:
        return self.count > 0 and self._cell.attack in ATTACKS

    def is_byzantine(self, silo: int) -> bool:
        return silo >= self._cell.honest

    def forge(self, values: Matrix, rule: Callable[[Matrix], NDArray[Any]]) -> Matrix:
        """What everybody sends, from what everybody would send honestly. `rule` is what the server does with it."""
        if not self.forges:
            return values
        honest, own = values[: -self.count], values[-self.count :]
        settings: dict[str, Any] = dict(self._cell.attack_settings)
        if self._cell.attack == "bitflip":
            settings["own"] = own
        elif self._cell.attack.startswith("opt_"):
            settings["rule"] = rule
        elif self._cell.attack == "fang" and self._cell.rule in ("krum", "multi_krum"):
            settings["against"] = "krum"
        forged = ATTACKS[self._cell.attack](honest, self.count, self._rng, **settings)
        return np.concatenate([honest, forged.astype(np.float32)])

    def coordinates(self, silo: int, updates: Matrix, k: int, honest: Coordinates) -> Coordinates:
        """What this silo proposes: the honest proposal, or the attack's."""
        if self._cell.coordinate_attack == "none" or not self.is_byzantine(silo):
            return honest
        attack = COORDINATE_ATTACKS[self._cell.coordinate_attack]
        source = updates[: -self.count] if self._cell.coordinate_attack == "same" else updates[silo]
        return attack(source, k, self._rng)
