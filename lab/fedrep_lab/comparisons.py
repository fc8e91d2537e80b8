"""What a verdict is made of: comparisons of scores, each with its numbers and with what was claimed.

"Comparable", "little" and "almost no" are read as within two points of accuracy, or within twice the spread over seeds
where that is more; "clearly better" and "falls" as more than two points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedrep_lab.results import Result
from fedrep_lab.scores import score, spread, values_of

HOLDS = "holds"
FAILS = "does not hold"
UNTESTED = "not tested at this scale"
MARGIN = 0.02


@dataclass(frozen=True)
class Verdict:
    status: str
    sentence: str
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """One comparison: what was compared, the numbers, and whether it came out as claimed."""

    what: str
    left: float
    right: float
    margin: float
    as_claimed: bool

    def row(self) -> dict[str, Any]:
        return {
            "comparison": self.what,
            "left": round(self.left, 4),
            "right": round(self.right, 4),
            "difference": round(self.left - self.right, 4),
            "margin": round(self.margin, 4),
            "as claimed": "yes" if self.as_claimed else "no",
        }


class Checks:
    """Comparisons of scores; those whose cells have not been run are left out and counted."""

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
        within: float | None = None,
    ) -> None:
        """`claim` is what left should be to right: similar, above, or not_below; `within` a margin that no spread widens."""
        first, second = score(self._results, metric, **left), score(self._results, metric, **right)
        if first is None or second is None:
            self.missing += 1
            return
        noise = 2 * max(spread(self._results, metric, **left), spread(self._results, metric, **right))
        margin = max(MARGIN, noise) if within is None else within
        outcome = {
            "similar": abs(first - second) <= margin,
            "above": first - second > margin,
            "higher": first > second,
            "not_below": second - first <= margin,
        }[claim]
        self.done.append(Check(what, first, second, 0.0 if claim == "higher" else margin, outcome))

    def verdict(self) -> Verdict:
        if not self.done:
            return Verdict(UNTESTED, "The cells that this claim needs have not been run.")
        failed = [check for check in self.done if not check.as_claimed]
        seeds = len(values_of(self._results, "seed"))
        basis = f"{len(self.done)} comparisons, {seeds} seed{'s' if seeds > 1 else ''}"
        if self.missing:
            basis += f", {self.missing} more need cells that were not run"
        rows = [check.row() for check in self.done]
        if not failed:
            return Verdict(HOLDS, f"All as claimed ({basis}).", rows)
        worst = max(failed, key=lambda check: abs(check.left - check.right))
        return Verdict(
            FAILS,
            f"{len(failed)} of {len(self.done)} not as claimed ({basis}); most of all {worst.what}: "
            f"{worst.left:.3f} against {worst.right:.3f}.",
            rows,
        )
