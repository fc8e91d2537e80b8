"""Definition 1 of the paper, measured: E||e||^2 <= c * delta * rho^2 for the constant c stated here per rule.

rho^2 is the largest expected squared distance between two honest rows, delta = f / n, and e the error against the honest
mean. The inputs are random, heterogeneous and adversarial; every attack is tried in every situation, and the worst
ratio counts. No finite table proves a bound for all inputs: this one catches a rule that lost its robustness.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedrep.aggregators.outcome import AggregatorWarning, Doubles
from fedrep.aggregators.rules import AGGREGATORS, rows_needed

# For the sizes and attacks below and no others: constants grow as f nears n / 2, and a finer search finds larger ones.
# The mean has none: its error grows without bound.
STATED = {
    "median": 1.3,
    "trimmed_mean": 1.4,
    "geometric_median": 1.4,
    "centered_clipping": 1.4,
    "krum": 5.0,
    "multi_krum": 2.8,
    "meamed": 2.6,
    "filter_l2": 1.5,
    "dnc": 2.0,
    "nnm+median": 2.2,
    "nnm+trimmed_mean": 2.2,
    "nnm+geometric_median": 2.2,
    "nnm+centered_clipping": 2.2,
    "nnm+krum": 1.7,
}
SIZES = ((8, 1), (8, 3), (9, 3), (16, 6))
DRAWS = 3

Honest = Callable[[np.random.Generator, int], Doubles]
Attack = Callable[[np.random.Generator, Doubles], Doubles]


@dataclass(frozen=True)
class Worst:
    constant: float
    situation: str


def measured_constants(rules: tuple[str, ...] = tuple(STATED), seed: int = 1) -> dict[str, Worst]:
    """The smallest constant each rule passes with; a name like "nnm+median" puts pre-steps before the rule."""
    found = dict.fromkeys(rules, Worst(0.0, "none"))
    for n, f in SIZES:
        for situation, draws in _situations(np.random.default_rng([seed, n, f]), n, f):
            honest = np.stack([rows[f:] for rows in draws])
            apart = honest[:, :, None, :] - honest[:, None, :, :]
            rho_squared = float((apart**2).sum(axis=3).mean(axis=0).max())
            for rule in rules:
                if n < rows_needed(rule.split("+")[-1], f):
                    continue  # as Krum, which has no guarantee there, hence no constant
                errors = [_squared_error(rule, rows, f) for rows in draws]
                ratio = float(np.mean(errors)) / (f / n * rho_squared)
                if ratio > found[rule].constant:
                    found[rule] = Worst(ratio, f"n = {n}, f = {f}, {situation}")
    return found


def constants_table(found: dict[str, Worst]) -> str:
    lines = [f"{'rule':24}{'measured c':>12}{'stated c':>12}  worst case"]
    for rule, worst in found.items():
        stated = f"{STATED[rule]:.3g}" if rule in STATED else "none"
        lines.append(f"{rule:24}{worst.constant:12.3g}{stated:>12}  {worst.situation}")
    return "\n".join(lines)


def _squared_error(name: str, rows: Doubles, f: int) -> float:
    *pre, rule = name.split("+")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AggregatorWarning)  # Krum is measured below its guaranteed size too
        vector = AGGREGATORS[rule](rows, byzantine_count=f, pre=pre).vector
    return float(((vector - rows[f:].mean(axis=0)) ** 2).sum())


def _situations(rng: np.random.Generator, n: int, f: int) -> Iterator[tuple[str, list[Doubles]]]:
    for kind, honest in _HONEST.items():
        samples = [honest(rng, n - f) for _ in range(DRAWS)]
        for name, attack in _ATTACKS.items():
            yield f"{kind}, {name}", [np.vstack([np.tile(attack(rng, rows), (f, 1)), rows]) for rows in samples]


def _clusters(rng: np.random.Generator, count: int) -> Doubles:
    side = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)[:, None]
    return np.asarray(side * np.eye(1, 10) * 3.0 + rng.standard_normal((count, 10)))


def _skewed(rng: np.random.Generator, count: int) -> Doubles:
    """Each row has most of its weight on a coordinate of its own, like silos that hold one label each."""
    return np.asarray(5.0 * np.eye(count, 40) + 0.5 * rng.standard_normal((count, 40)))


_HONEST: dict[str, Honest] = {
    "random in 50 dimensions": lambda rng, count: rng.standard_normal((count, 50)),
    "random in 2 dimensions": lambda rng, count: rng.standard_normal((count, 2)),
    "far from the origin": lambda rng, count: 100.0 + rng.standard_normal((count, 20)),
    "two clusters": _clusters,
    "one label per silo": _skewed,
}


def _spread(rows: Doubles) -> float:
    return float(np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()))


def _widest(rows: Doubles) -> Doubles:
    return np.asarray(np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][0])


def _along(direction: Callable[[np.random.Generator, Doubles], Doubles], times: float) -> Attack:
    def attack(rng: np.random.Generator, rows: Doubles) -> Doubles:
        towards = direction(rng, rows)
        return np.asarray(rows.mean(axis=0) + times * _spread(rows) * towards / np.linalg.norm(towards))

    return attack


_DIRECTIONS: dict[str, Callable[[np.random.Generator, Doubles], Doubles]] = {
    "any direction": lambda rng, rows: rng.standard_normal(rows.shape[1:]),
    "widest direction": lambda _, rows: _widest(rows),
    "all signs": lambda _, rows: rows.std(axis=0),
}
_ATTACKS: dict[str, Attack] = {
    f"{times:g} spreads along {name}": _along(direction, times)
    for name, direction in _DIRECTIONS.items()
    for times in (0.6, 1.5, 2.0, 3.0, 1e6)
} | {
    "sign flip": lambda _, rows: -rows.mean(axis=0),
    "inner product": lambda _, rows: -0.5 * rows.mean(axis=0),
    "mimic the furthest": lambda _, rows: rows[int(np.argmax(((rows - rows.mean(axis=0)) ** 2).sum(axis=1)))],
}
