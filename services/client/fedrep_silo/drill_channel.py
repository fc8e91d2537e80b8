"""Where the attackers of a drill tell each other what they would send: a folder they share, one file per round and silo.

The server has no part in it. A file appears whole or not at all, and whoever is late or dead is missing: nobody waits.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from fedrep.protocol.manifests import SiloName
from fedrep_runtime.files import write_atomically

log = structlog.get_logger(__name__)

Vector = NDArray[np.float32]
# Of the rounds before this one nobody asks any more: a round is played to its end before the next.
KEPT_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Channel:
    folder: Path

    def tell(self, run: str, round_number: int, silo: SiloName, g: Vector) -> None:
        """A channel that cannot be written to leaves this attacker alone, and costs the silo nothing."""
        try:
            write_atomically(self._place(run, round_number) / silo, g.astype("<f4").tobytes())
            self._forget(run, round_number - KEPT_ROUNDS)
        except OSError as error:
            log.warning("drill_channel", text=f"the other attackers are not told: {error}", folder=str(self.folder))

    def heard(self, run: str, round_number: int, silos: Collection[SiloName], size: int) -> dict[SiloName, Vector]:
        """From the silos of the run; what is no update of this size is passed over."""
        found: dict[SiloName, Vector] = {}
        for silo in silos:
            try:
                data = (self._place(run, round_number) / silo).read_bytes()
            except OSError:
                continue  # plays no attacker, or is late
            g = np.frombuffer(data, dtype="<f4").astype(np.float32) if len(data) == 4 * size else None
            if g is None or not np.isfinite(g).all():
                log.warning("drill_channel", text=f"what {silo} left for round {round_number} is no update of {size} values")
                continue
            found[silo] = g
        return found

    def _place(self, run: str, round_number: int) -> Path:
        return self.folder / run / f"{round_number:08d}"

    def _forget(self, run: str, last: int) -> None:
        for old in sorted((self.folder / run).iterdir()):
            if old.name.isdigit() and int(old.name) <= last:
                shutil.rmtree(old, ignore_errors=True)
