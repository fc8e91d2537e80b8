"""Whose values are sent, where the largest entries of g would be noise: coordinates that everybody can name before training.

The service's own choice (`fedrep/public_coordinates.py`): where the model has moved furthest since it began, and some drawn by
lot; or a lot alone, to compare with. No silo proposes, so nothing is revealed, and silos with record-level privacy cut and noise
their gradients on these coordinates alone.
"""

from __future__ import annotations

import numpy as np

from fedrep.errors import SettingsError
from fedrep.public_coordinates import DRAWN_SHARE, public_coordinates
from fedrep.sparsify import Coordinates
from fedrep_lab.methods.interface import METHOD, Setting, Vector

PROPOSED = ("top_k", "momentum")
PUBLIC = {"moved": DRAWN_SHARE, "random": 1.0}  # the share that is drawn by lot
_SEED_BYTES = 32


class PublicCoordinates:
    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        if cell.selection not in PUBLIC:
            names = ", ".join([*PROPOSED, *PUBLIC])
            raise SettingsError(f"There is no selection {cell.selection!r}; choose from {names}.")
        self._setting = setting
        self._size = min(setting.parameters, cell.m * cell.per_silo(setting.parameters))
        self._start: Vector | None = None
        self.agreed: Coordinates = np.empty(0, dtype=np.int64)

    def choose(self, round_number: int, model: Vector) -> Coordinates:
        if self._start is None:
            self._start = model.copy()
        seed = self._setting.rng(METHOD, round_number, 1).bytes(_SEED_BYTES)
        self.agreed = public_coordinates(model - self._start, self._size, seed, PUBLIC[self._setting.cell.selection])
        return self.agreed
