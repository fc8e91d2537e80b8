"""The attacks that need no search: fixed functions of the honest updates."""

# ruff: noqa: ARG001  every attack takes a generator, whether it draws or not
from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from fedrep.attacks.honest import Vectors, centred_gram, checked, deviation_of, mean_of, needed, repeat, tiles
from fedrep.errors import InvalidInputError

HUGE: Final = 1e30


def bitflip(
    honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, own: ArrayLike | None = None
) -> Vectors:
    """Each sends minus the update it would have sent honestly; without `own`, minus an honest silo's."""
    vectors = checked(honest, byzantine_count)
    if own is None:
        return -vectors[np.arange(byzantine_count) % len(vectors)]
    mine = np.asarray(own, dtype=vectors.dtype)
    if mine.shape != (byzantine_count, vectors.shape[1]):
        raise InvalidInputError(
            f"own updates of shape {mine.shape} do not fit {byzantine_count} attackers and d = {vectors.shape[1]}."
        )
    return -mine


def signflip(honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, scale: float = 1.0) -> Vectors:
    """Minus the mean of the honest updates."""
    vectors = checked(honest, byzantine_count)
    return repeat(-scale * mean_of(vectors), byzantine_count, vectors)


def alie_z(silos: int, byzantine_count: int) -> float:
    """The largest shift, in standard deviations, that still has a majority behind it (Baruch et al., 2019)."""
    supporters = silos // 2 + 1 - byzantine_count
    if silos < 3 or supporters < 1:
        raise InvalidInputError(
            f"ALIE's formula needs at least 3 silos with an honest majority, not {silos} with {byzantine_count} "
            "Byzantine; give z instead."
        )
    honest = silos - byzantine_count
    return NormalDist().inv_cdf((honest - supporters) / honest)


def alie(
    honest: ArrayLike,
    byzantine_count: int,
    rng: np.random.Generator | None = None,
    *,
    z: float | None = None,
    sign: int = -1,
) -> Vectors:
    """A Little Is Enough: the mean shifted by z standard deviations per coordinate, down or (sign = 1) up."""
    vectors = checked(honest, byzantine_count)
    if sign not in (-1, 1):
        raise InvalidInputError(f"sign is {sign}; choose -1 (below the mean) or 1 (above it).")
    shift = alie_z(len(vectors) + byzantine_count, byzantine_count) if z is None else z
    mean, deviation = mean_of(vectors), deviation_of(vectors)
    return repeat(mean + sign * shift * deviation, byzantine_count, vectors)


def foe(honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, epsilon: float = 0.5) -> Vectors:
    """Fall of Empires (inner-product manipulation, Xie et al., 2020): -epsilon times the mean."""
    vectors = checked(honest, byzantine_count)
    return repeat(-epsilon * mean_of(vectors), byzantine_count, vectors)


def mimic(
    honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, target: int | None = None
) -> Vectors:
    """All copy one honest silo, so that it is over-represented (Karimireddy et al., 2022).

    By default the one furthest along the direction in which honest updates differ most. Pass `target` to keep to the same
    silo over rounds, which is what makes the attack strong.
    """
    vectors = checked(honest, byzantine_count)
    if target is None:
        gram = centred_gram(vectors)
        _, directions = np.linalg.eigh(gram)
        target = int(np.argmax(np.abs(gram @ directions[:, -1])))
    if not 0 <= target < len(vectors):
        raise InvalidInputError(f"silo {target} cannot be mimicked; there are {len(vectors)} honest ones, from 0.")
    return repeat(vectors[target], byzantine_count, vectors)


def gaussian(honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, scale: float = 10.0) -> Vectors:
    """Independent noise, `scale` times as large as a typical entry of an honest update."""
    vectors = checked(honest, byzantine_count)
    typical = math.sqrt(sum(float(np.sum(tile * tile)) for tile in tiles(vectors)) / vectors.size)
    noise = needed(rng, "gaussian").normal(size=(byzantine_count, vectors.shape[1]))
    return (scale * typical * noise).astype(vectors.dtype)


def nonfinite(honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, kind: str = "nan") -> Vectors:
    """What broken or hostile training yields: nan, inf, or 1e30 ("huge")."""
    vectors = checked(honest, byzantine_count)
    values = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": HUGE}
    if kind not in values:
        raise InvalidInputError(f"kind is {kind!r}; choose one of {', '.join(values)}.")
    return np.full((byzantine_count, vectors.shape[1]), values[kind], dtype=vectors.dtype)
