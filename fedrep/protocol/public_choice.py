"""What silos with private training propose in a round: the same set for all of them, and each its part of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrep.protocol.manifests import RoundManifest, RunManifest, SiloName
from fedrep.protocol.model_state import ModelState
from fedrep.public_coordinates import own_part, public_coordinates
from fedrep.secagg.transcript import digest


@dataclass(frozen=True, slots=True)
class PublicChoice:
    """`together` is what all members that choose like this propose; the same while the model and the roster's size stay."""

    together: NDArray[np.int64]
    own: NDArray[np.int64]

    @classmethod
    def of(
        cls, run: RunManifest, manifest: RoundManifest, silo: SiloName, model: ModelState, start: NDArray[np.float32]
    ) -> PublicChoice:
        """`start` is the model before any training: what it has moved since, and the run's seed, are known to everybody."""
        seed = digest("fedrep/public-coordinates", run.buffer_seed, model.version)
        together = public_coordinates(model.vector - start, manifest.per_silo * len(manifest.roster), seed)
        return cls(together, own_part(together, manifest.names.index(silo), len(manifest.roster)))
