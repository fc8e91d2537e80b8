"""Whose values are sent, where the largest entries of g would be noise: coordinates that everybody can name before training.

What is public already decides: the coordinates on which the model has moved furthest since it was made, and as many drawn by lot
from the round's seed. No silo proposes, so nothing is revealed, and silos with record-level privacy cut and noise their
gradients on these coordinates alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import SettingsError
from fedrep.sparsify import Coordinates, top_k
from fedrep_lab.methods.interface import METHOD, Setting, Vector

PROPOSED = ("top_k", "momentum")
PUBLIC = ("moved", "random")
_DRAWN = {"moved": 0.5, "random": 1.0}  # the share that is drawn by lot


class PublicCoordinates:
    def __init__(self, setting: Setting) -> None:
        cell = setting.cell
        if cell.selection not in PUBLIC:
            names = ", ".join([*PROPOSED, *PUBLIC])
            raise SettingsError(f"There is no selection {cell.selection!r}; choose from {names}.")
        self._setting = setting
        self._size = min(setting.parameters, max(1, round(cell.ratio * setting.parameters)))
        self._drawn = float(cell.method_settings.get("drawn", _DRAWN[cell.selection]))
        self._start: Vector | None = None
        self.agreed: Coordinates = np.empty(0, dtype=np.int64)

    def choose(self, round_number: int, model: Vector) -> Coordinates:
        if self._start is None:
            self._start = model.copy()
        moved = np.abs(model - self._start)
        furthest = min(self._size - round(self._drawn * self._size), int(np.count_nonzero(moved)))
        known = top_k(moved, furthest) if furthest else np.empty(0, dtype=np.int64)
        self.agreed = np.sort(np.concatenate([known, self._lot(known, round_number)]))
        return self.agreed

    def _lot(self, known: Coordinates, round_number: int) -> Coordinates:
        free: NDArray[np.bool_] = np.ones(self._setting.parameters, dtype=np.bool_)
        free[known] = False
        rng = self._setting.rng(METHOD, round_number, 1)
        drawn: Coordinates = rng.choice(np.flatnonzero(free), self._size - known.size, replace=False, shuffle=False)
        return drawn
