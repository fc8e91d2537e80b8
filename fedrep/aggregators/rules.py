"""The catalogue of rules by name, and what a run's settings need: a rule built from them, and the conditions it sets."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from fedrep.aggregators.coordinatewise import meamed, mean, median, trimmed_mean
from fedrep.aggregators.distances import centered_clipping, geometric_median, krum, multi_krum
from fedrep.aggregators.filters import dnc, filter_l2
from fedrep.aggregators.outcome import Aggregate, AggregatorWarning
from fedrep.aggregators.prepare import PRE_STEPS, PreStep
from fedrep.errors import SettingsError

AGGREGATORS: dict[str, Callable[..., Aggregate]] = {
    "mean": mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
    "centered_clipping": centered_clipping,
    "krum": krum,
    "multi_krum": multi_krum,
    "meamed": meamed,
    "filter_l2": filter_l2,
    "dnc": dnc,
}

KRUM = ("krum", "multi_krum")
_FEW = 8  # rows on which any rule can be tried
_MANY = 512  # no run has more buffers

# Passed with each round's rows, never fixed in a run's settings.
_PER_ROUND = {"vectors", "byzantine_count", "pre", "rng", "weights"}


@dataclass(frozen=True)
class ConfiguredRule:
    """A rule with its settings. `weights` reach only a rule that takes them (the mean): for a robust rule a weight
    would be a lever for an attacker."""

    name: str
    settings: Mapping[str, object]
    pre: tuple[PreStep, ...] = ()

    def __call__(
        self,
        vectors: ArrayLike,
        *,
        byzantine_count: int,
        weights: ArrayLike | None = None,
        rng: np.random.Generator | None = None,
    ) -> Aggregate:
        extra = {"weights": weights} if self.name == "mean" else {}
        return AGGREGATORS[self.name](vectors, byzantine_count=byzantine_count, pre=self.pre, rng=rng, **self.settings, **extra)

    def rows_after(self, n: int) -> int:
        """What its pre-steps leave of n rows."""
        for step in self.pre:
            n = step.rows_after(n)
        return n


def build_rule(
    name: str, settings: Mapping[str, object] | None = None, pre: Sequence[Mapping[str, object] | str] = ()
) -> ConfiguredRule:
    """Every mistake in the settings shows here, when the run is created, and not in its first round; whether they go with the
    number of rows is what `conditions` says."""
    settings = dict(settings or {})
    _check_names(f"The rule {name}", _rule_named(name), settings)
    rule = ConfiguredRule(name, settings, tuple(_build_pre_step(step) for step in pre))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AggregatorWarning)
        try:
            rule(np.eye(_trial_rows(rule), 3, dtype=np.float32), byzantine_count=0)
        except TypeError as error:
            raise SettingsError(f"The rule {name} cannot use the settings {settings}: {error}.") from error
    return rule


def conditions(
    name: str,
    n: int,
    f: int,
    settings: Mapping[str, object] | None = None,
    pre: Sequence[Mapping[str, object] | str] = (),
) -> list[str]:
    """What keeps the rule from withstanding f Byzantine rows of n, one sentence each; empty if nothing.

    Krum is stricter here than when it is called: below 2f + 3 rows it runs and notes that it guarantees nothing.
    """
    rule = build_rule(name, settings, pre)
    n = rule.rows_after(n)
    if n < 1 or f < 0:
        return [f"{name} needs at least one row and no negative number of Byzantine rows; these are {n} and {f}."]
    needed = rows_needed(name, f)
    problems = []
    if n < needed:
        problems.append(f"{name} needs at least {needed} rows to stand {f} Byzantine ones, but there would be {n}.")
    if name == "trimmed_mean" and rule.settings.get("fraction") is not None:
        trimmed = int(np.floor(n * _as_float(rule.settings["fraction"]) + 1e-9))
        if trimmed < f:
            problems.append(
                f"trimmed_mean with fraction {rule.settings['fraction']} is to remove {trimmed} of {n} rows on each side, "
                f"fewer than the {f} that may be Byzantine."
            )
    selected = rule.settings.get("selected")
    if isinstance(selected, int) and selected > n - f:
        problems.append(f"multi_krum is to select {selected} of {n} rows, of which {f} may be Byzantine: {n - f} are the most.")
    return problems


def tolerated(
    name: str,
    n: int,
    settings: Mapping[str, object] | None = None,
    pre: Sequence[Mapping[str, object] | str] = (),
) -> int:
    """The largest number of Byzantine rows the rule withstands on n rows; -1 if it cannot run at all."""
    return max((f for f in range(n) if not conditions(name, n, f, settings, pre)), default=-1)


def rows_needed(name: str, f: int) -> int:
    """Rows, after pre-steps, with which the rule withstands f Byzantine ones."""
    if name == "mean":
        return f + 1  # it defends against nothing, at any n
    if name in KRUM:
        return 2 * f + 3  # Blanchard et al. (2017); with fewer, f equal rows may be each other's nearest, and get chosen
    return 2 * f + 1


def _trial_rows(rule: ConfiguredRule) -> int:
    """So many that pre-steps leave a few."""
    n = _FEW
    while rule.rows_after(n) < _FEW and n < _MANY:
        n *= 2
    return n


def _rule_named(name: str) -> Callable[..., Aggregate]:
    if name not in AGGREGATORS:
        raise SettingsError(f"There is no rule {name!r}; choose from {', '.join(AGGREGATORS)}.")
    return AGGREGATORS[name]


def _build_pre_step(given: Mapping[str, object] | str) -> PreStep:
    settings = {"name": given} if isinstance(given, str) else dict(given)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in PRE_STEPS:
        raise SettingsError(f"There is no pre-step {name!r}; choose from {', '.join(PRE_STEPS)}.")
    _check_names(f"The pre-step {name}", PRE_STEPS[name], settings)
    try:
        return PRE_STEPS[name](**settings)
    except TypeError as error:
        raise SettingsError(f"The pre-step {name} cannot use the settings {settings}: {error}.") from error


def _check_names(what: str, function: Callable[..., object], settings: Mapping[str, object]) -> None:
    known = [key for key in inspect.signature(function).parameters if key not in _PER_ROUND]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        choice = f"it takes {', '.join(known)}" if known else "it takes none"
        raise SettingsError(f"{what} has no setting {', '.join(unknown)}: {choice}.")


def _as_float(fraction: object) -> float:
    return float(Fraction(str(fraction)))
