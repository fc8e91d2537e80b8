"""What Byzantine silos send: pure functions of the honest updates, for experiments and tests.

`attack(honest, byzantine_count, rng, **settings)` takes the (h, d) honest updates and returns the (f, d) Byzantine ones.
Attackers are omniscient, as the paper assumes for ALIE and FoE, and all send the same vector unless said otherwise.
Attacks on coordinates (appendix C.2) are called as `attack(update or updates, k, rng)` and return k coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedrep.attacks.coordinates import random_coordinates, same_coordinates, smallest_coordinates
from fedrep.attacks.honest import Vectors
from fedrep.attacks.plain import alie, alie_z, bitflip, foe, gaussian, mimic, nonfinite, signflip
from fedrep.attacks.tailored import fang, minmax, minsum, opt_alie, opt_foe
from fedrep.sparsify import Coordinates

ATTACKS: Final[dict[str, Callable[..., Vectors]]] = {
    "bitflip": bitflip,
    "signflip": signflip,
    "alie": alie,
    "foe": foe,
    "opt_alie": opt_alie,
    "opt_foe": opt_foe,
    "mimic": mimic,
    "minmax": minmax,
    "minsum": minsum,
    "fang": fang,
    "gaussian": gaussian,
    "nonfinite": nonfinite,
}

COORDINATE_ATTACKS: Final[dict[str, Callable[..., Coordinates]]] = {
    "min": smallest_coordinates,
    "random": random_coordinates,
    "same": same_coordinates,
}

__all__ = ["ATTACKS", "COORDINATE_ATTACKS", "alie_z"]
