"""An attack that this silo plays on purpose, in runs whose manifest allows drills, to see whether the federation holds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.attacks import ATTACKS
from fedrep.errors import InvalidInputError, RefusedError, SettingsError
from fedrep.protocol.manifests import RunManifest
from fedrep_silo.config import DrillSettings


@dataclass(frozen=True, slots=True)
class Drill:
    """An empty `attack` is none."""

    attack: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: DrillSettings) -> Drill:
        """Tried out on a small vector, so that a misspelt option is found before the first round."""
        drill = cls(settings.attack, settings.options)
        if settings.attack and settings.attack not in ATTACKS:
            raise SettingsError(f"there is no attack {settings.attack!r} to drill; choose one of {', '.join(sorted(ATTACKS))}")
        try:
            drill.of_update(np.linspace(-1, 1, 8, dtype=np.float32))
        except (TypeError, InvalidInputError) as error:
            raise SettingsError(f"[drill] cannot play {settings.attack!r} with these options: {error}") from error
        return drill

    def check(self, run: RunManifest) -> None:
        if self.attack and not run.drills:
            raise RefusedError(
                f"run {run.name!r} does not allow attack drills; remove [drill] from the silo's settings, or use a run created "
                "with drills = true",
                reason="NO_DRILLS",
            )

    def of_update(self, g: NDArray[np.float32]) -> NDArray[np.float32]:
        """g, or what the attack makes of it; the attacker knows no update but its own."""
        if not self.attack:
            return g
        rng = np.random.default_rng(secrets.randbits(128))
        crafted: NDArray[np.float32] = ATTACKS[self.attack](g[None, :], 1, rng=rng, **self.options)[0].astype(np.float32)
        return crafted
