"""What ends a run by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """A run's figures after a round; `epsilon` is None where there is no guarantee."""

    rounds: int
    best_accuracy: float | None
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class Goals:
    """`accuracy` and `epsilon` are zero where nothing was set."""

    rounds: int
    accuracy: float = 0.0
    epsilon: float = 0.0

    def reached(self, totals: Totals, last_round: int) -> str | None:
        """Which one, in words."""
        if totals.rounds >= self.rounds:
            return f"all {self.rounds} rounds played"
        if last_round >= self.rounds:  # silos take part in none beyond what an admin signed
            return f"round {self.rounds} was the last; {totals.rounds} were played, the other numbers waited out penalties"
        if self.accuracy and totals.best_accuracy is not None and totals.best_accuracy >= self.accuracy:
            return f"target accuracy {self.accuracy:g} reached"
        if self.epsilon and (totals.epsilon is None or totals.epsilon >= self.epsilon):
            return f"the epsilon budget of {self.epsilon:g} is used up after round {last_round}"
        return None
