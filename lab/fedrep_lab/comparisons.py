"""What a verdict is made of: comparisons of two sides over the same seeds, each with its interval and with what was claimed.

The difference of a seed is that of its two sides, which share data, batches and buffers; over seeds the differences give a mean
and a 95 % confidence interval (Student's t). A comparison holds if the whole interval is as claimed, does not hold if none of it
is, and is undecided otherwise, as it always is with one seed. "Little" and "almost no" are read as within two
points of accuracy, "comparable" to a rival as at most two points below it, "clearly better" and "falls" as by more than two
points, "better" as above zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import t as student

from fedrep_lab.results import Result
from fedrep_lab.scores import by_seed

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
UNTESTED = "not tested at this scale"
MARGIN = 0.02
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Verdict:
    status: str
    sentence: str
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Interval:
    """Where the mean lies, as far as so many seeds can tell."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, -math.inf, math.inf, len(values))
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
        return cls(mean, mean - half, mean + half, len(values))

    def within(self, lowest: float, highest: float) -> str:
        """Is the mean between the two?"""
        if lowest < self.low and self.high < highest:
            return HOLDS
        return FAILS if self.high <= lowest or self.low >= highest else UNDECIDED

    def shown(self) -> str:
        return "one seed" if math.isinf(self.low) else f"{self.low:.4f} to {self.high:.4f}"


_CLAIMS = {  # left minus right lies between; times the margin
    "similar": (-1.0, 1.0),
    "above": (1.0, math.inf),
    "higher": (0.0, math.inf),
    "not_below": (-1.0, math.inf),
}


@dataclass(frozen=True)
class Check:
    """One comparison: what was compared, the numbers, and whether it came out as claimed."""

    what: str
    left: float
    right: float
    difference: Interval
    claimed: str
    outcome: str

    def row(self) -> dict[str, Any]:
        return {
            "comparison": self.what,
            "left": round(self.left, 4),
            "right": round(self.right, 4),
            "difference": round(self.difference.mean, 4),
            "95 % interval": self.difference.shown(),
            "seeds": self.difference.seeds,
            "claimed": self.claimed,
            "outcome": self.outcome,
        }


def paired(
    results: Sequence[Result], left: dict[str, Any], right: dict[str, Any], metric: str
) -> list[tuple[float, float]] | None:
    """Both sides' figures of every seed that both have; None if there is none."""
    first, second = by_seed(results, metric, **left), by_seed(results, metric, **right)
    both = sorted(first.keys() & second.keys())
    return [(first[seed], second[seed]) for seed in both] or None


class Checks:
    """Comparisons over seeds; those whose cells have not been run are left out and counted."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results
        self.done: list[Check] = []
        self.missing = 0

    def compare(
        self,
        what: str,
        left: dict[str, Any],
        right: dict[str, Any],
        claim: str,
        metric: str = "best_accuracy",
        within: float = MARGIN,
    ) -> None:
        """`claim` is what left should be to right: similar, above, higher or not_below."""
        pairs = paired(self._results, left, right, metric)
        if pairs is None:
            self.missing += 1
            return
        difference = Interval.of([one - other for one, other in pairs])
        lowest, highest = (within * edge if edge else 0.0 for edge in _CLAIMS[claim])
        said = {
            "similar": f"within {within:g}",
            "above": f"above {within:g}",
            "higher": "above 0",
            "not_below": f"above -{within:g}",
        }
        one, other = (statistics.fmean(side) for side in zip(*pairs, strict=True))
        self.done.append(Check(what, one, other, difference, said[claim], difference.within(lowest, highest)))

    def verdict(self) -> Verdict:
        if not self.done:
            return Verdict(UNTESTED, "The cells that this claim needs have not been run.")
        return judged(
            [(check.what, check.outcome) for check in self.done],
            [check.row() for check in self.done],
            self.missing,
            seeds_of([check.difference.seeds for check in self.done]),
        )


def seeds_of(counts: Sequence[int]) -> str:
    """What comparisons rest on: so many seeds, or from the fewest to the most."""
    fewest, most = min(counts), max(counts)
    return f"{fewest} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"


def judged(outcomes: Sequence[tuple[str, str]], rows: list[dict[str, Any]], missing: int, basis: str) -> Verdict:
    """Holds if every part does, does not hold if one part does not, and is undecided otherwise."""
    failed = [what for what, outcome in outcomes if outcome == FAILS]
    open_ = [what for what, outcome in outcomes if outcome == UNDECIDED]
    basis = f"{len(outcomes)} comparison{'s' * (len(outcomes) > 1)}, {basis}"
    if missing:
        basis += f", {missing} more need cells that were not run"
    if failed:
        undecided = f", {len(open_)} undecided" if open_ else ""
        return Verdict(FAILS, f"{len(failed)} of {len(outcomes)} not as claimed{undecided} ({basis}): {_some(failed)}.", rows)
    if open_:
        return Verdict(
            UNDECIDED, f"{len(open_)} of {len(outcomes)} cannot be told from chance or margin ({basis}): {_some(open_)}.", rows
        )
    if missing:
        return Verdict(UNDECIDED, f"All as claimed, as far as it was run ({basis}).", rows)
    return Verdict(HOLDS, f"All as claimed ({basis}).", rows)


def _some(names: Sequence[str], most: int = 3) -> str:
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")
