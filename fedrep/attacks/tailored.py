"""The attacks that look for their strength: in the rule in use, or in the distances between honest updates."""

# ruff: noqa: ARG001  every attack takes a generator, whether it draws or not
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.attacks.honest import (
    Vectors,
    centred_gram,
    checked,
    deviation_of,
    mean_of,
    needed,
    repeat,
    squared_distances,
)
from fedrep.attacks.plain import alie_z
from fedrep.errors import InvalidInputError

Rule = Callable[[Vectors], Any]

_HALVINGS: Final = 24


def opt_alie(
    honest: ArrayLike,
    byzantine_count: int,
    rng: np.random.Generator | None = None,
    *,
    rule: Rule | None = None,
    largest: float = 64.0,
) -> Vectors:
    """ALIE with the z, of either sign, that moves the rule in use furthest from the honest mean."""
    vectors = checked(honest, byzantine_count)
    mean, deviation = mean_of(vectors), deviation_of(vectors)
    trials = [sign * z for z in _doubling(largest) for sign in (-1.0, 1.0)]
    if byzantine_count <= (len(vectors) + byzantine_count) // 2 and len(vectors) + byzantine_count >= 3:
        trials.append(-alie_z(len(vectors) + byzantine_count, byzantine_count))  # never weaker than plain ALIE
    return _worst(vectors, byzantine_count, lambda z: mean + z * deviation, rule, trials)


def opt_foe(
    honest: ArrayLike,
    byzantine_count: int,
    rng: np.random.Generator | None = None,
    *,
    rule: Rule | None = None,
    largest: float = 128.0,
) -> Vectors:
    """FoE with the epsilon that moves the rule in use furthest from the honest mean."""
    vectors = checked(honest, byzantine_count)
    mean = mean_of(vectors)
    return _worst(vectors, byzantine_count, lambda epsilon: -epsilon * mean, rule, [0.5, *_doubling(largest)])


def minmax(honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, direction: str = "std") -> Vectors:
    """As far from the mean as keeps every distance to an honest update within the largest honest one.

    Shejwalkar & Houmansadr, 2021. Their search for the factor has a closed form: per honest update a quadratic in it.
    """
    vectors = checked(honest, byzantine_count)
    mean, push = mean_of(vectors), _push(vectors, direction)
    gram = centred_gram(vectors)
    to_mean = np.diag(gram)
    allowed = float(squared_distances(gram).max())
    along = np.array([float((mean - row) @ push) for row in vectors])
    square = float(push @ push)
    if square == 0.0:
        return repeat(mean, byzantine_count, vectors)
    room = np.maximum(allowed - to_mean, 0.0)
    factor = float(np.min((-along + np.sqrt(along**2 + square * room)) / square))
    return repeat(mean + factor * push, byzantine_count, vectors)


def minsum(honest: ArrayLike, byzantine_count: int, rng: np.random.Generator | None = None, *, direction: str = "std") -> Vectors:
    """As far from the mean as keeps the sum of squared distances to honest updates within the largest honest such sum."""
    vectors = checked(honest, byzantine_count)
    mean, push = mean_of(vectors), _push(vectors, direction)
    gram = centred_gram(vectors)
    to_mean = np.diag(gram)
    sums = squared_distances(gram).sum(axis=1)
    square = float(push @ push)
    if square == 0.0:
        return repeat(mean, byzantine_count, vectors)
    factor = math.sqrt(max(0.0, float(sums.max() - to_mean.sum())) / (len(vectors) * square))
    return repeat(mean + factor * push, byzantine_count, vectors)


def fang(
    honest: ArrayLike,
    byzantine_count: int,
    rng: np.random.Generator | None = None,
    *,
    against: str = "trimmed_mean",
    spread: float = 2.0,
    partial: bool = False,
) -> Vectors:
    """Directed deviation (Fang et al., 2020) against the trimmed mean (and median), or against Krum.

    `partial`: `honest` are the attackers' own updates, so that the edge of the honest ones is not known but guessed, three to
    four deviations from the mean (their section 4.3).
    """
    vectors = checked(honest, byzantine_count)
    if against == "krum":
        return repeat(_fang_krum(vectors, byzantine_count), byzantine_count, vectors)
    if against != "trimmed_mean":
        raise InvalidInputError(f"Fang's attack is against 'trimmed_mean' or 'krum', not {against!r}.")
    generator = needed(rng, "fang")
    rising = mean_of(vectors) > 0.0
    if partial:
        away = np.where(rising, -1.0, 1.0) * deviation_of(vectors)
        guessed: Vectors = mean_of(vectors) + away * (3.0 + generator.random((byzantine_count, vectors.shape[1])))
        return guessed.astype(vectors.dtype)
    # Where the honest mean rises the attackers stay below everyone, where it falls above: just outside, hard to trim.
    edge = np.where(rising, vectors.min(axis=0), vectors.max(axis=0)).astype(np.float64)
    outwards = np.where(rising, edge > 0.0, edge < 0.0)  # outside means nearer to zero
    far = np.where(outwards, edge / spread, edge * spread)
    drawn: Vectors = edge + (far - edge) * generator.random((byzantine_count, vectors.shape[1]))
    return drawn.astype(vectors.dtype)


def _push(vectors: Vectors, direction: str) -> NDArray[np.float64]:
    """The direction away from the honest mean that Min-Max and Min-Sum take."""
    mean = mean_of(vectors)
    if direction == "std":
        return -deviation_of(vectors)
    if direction == "unit":
        length = float(np.linalg.norm(mean))
        return -mean / length if length > 0.0 else mean
    if direction == "sign":
        return -np.sign(mean)
    raise InvalidInputError(f"direction is {direction!r}; choose 'std', 'unit' or 'sign'.")


def _fang_krum(vectors: Vectors, byzantine_count: int) -> NDArray[np.float64]:
    """-lambda sign(mean), lambda halved from Fang's upper bound until Krum would choose it.

    Where honest updates agree so well that Krum would not even choose zero, the same deviation starts from their mean.
    """
    h, d = vectors.shape
    mean = mean_of(vectors)
    sign = np.sign(mean)
    neighbours = h - 2  # n - f - 2 of all n = h + f silos
    if neighbours < 1 or byzantine_count < 1:
        return -mean
    distances = squared_distances(centred_gram(vectors))
    nearest = float(np.sort(np.sqrt(distances), axis=1)[:, 1 : neighbours + 1].sum(axis=1).min())
    for centre in (np.zeros(d), mean):
        norms = np.array([float(np.sum((row - centre) ** 2)) for row in vectors])
        along = np.array([float((row - centre) @ sign) for row in vectors])
        strength = nearest / max(1, h - byzantine_count - 1) / math.sqrt(d) + math.sqrt(norms.max() / d)
        for _ in range(_HALVINGS):
            to_honest = norms + 2.0 * strength * along + strength**2 * np.count_nonzero(sign)
            if _krum_chooses_attacker(distances, to_honest, byzantine_count, neighbours):
                return np.asarray(centre - strength * sign)
            strength /= 2.0
    return mean


def _krum_chooses_attacker(
    distances: NDArray[np.float64], to_honest: NDArray[np.float64], byzantine_count: int, neighbours: int
) -> bool:
    """Krum's scores when all attackers send one vector: among themselves they are at distance zero."""
    attacker = np.sort(np.concatenate((np.zeros(byzantine_count - 1), to_honest)))[:neighbours].sum()
    columns = np.repeat(to_honest[:, None], byzantine_count, axis=1)
    others = np.sort(np.concatenate((distances, columns), axis=1), axis=1)[:, 1 : neighbours + 1].sum(axis=1)
    return bool(attacker < others.min())


def _doubling(largest: float) -> list[float]:
    return [value for value in (2.0**power for power in range(-4, 64)) if value <= largest]


def _worst(
    vectors: Vectors,
    byzantine_count: int,
    craft: Callable[[float], NDArray[np.float64]],
    rule: Rule | None,
    trials: Sequence[float],
) -> Vectors:
    """The crafted vector for which the rule's result ends furthest from the honest mean.

    The damage may jump (Krum) or rise without end (mean), so no slope is followed: the two best trials are refined by
    factors that shrink towards one, and every step keeps the best seen.
    """
    apply = rule if rule is not None else coordinate_median
    mean = mean_of(vectors)
    everyone = np.empty((len(vectors) + byzantine_count, vectors.shape[1]), dtype=vectors.dtype)

    def damage(strength: float) -> float:
        everyone[: len(vectors)] = vectors  # again each time: a rule that works in place must not be rewarded
        everyone[len(vectors) :] = craft(strength)
        result = apply(everyone)
        moved = float(np.linalg.norm(np.asarray(getattr(result, "vector", result), dtype=np.float64) - mean))
        return moved if math.isfinite(moved) else -math.inf

    if byzantine_count == 0:
        return repeat(mean, 0, vectors)
    ranked = sorted(((damage(strength), strength) for strength in trials), reverse=True)
    most, best = ranked[0]
    for done, start in ranked[:2]:  # both signs, where they do about the same
        here, reached = start, done
        for power in range(1, 9):
            factor = 2.0 ** (2.0**-power)
            for strength in (here * factor, here / factor):
                done = damage(strength)
                if done > reached:
                    here, reached = strength, done
        if reached > most:
            best, most = here, reached
    return repeat(craft(best), byzantine_count, vectors)


def coordinate_median(vectors: Vectors) -> Vectors:
    """The stand-in for a rule the attacker does not know."""
    median: Vectors = np.median(vectors, axis=0)
    return median
