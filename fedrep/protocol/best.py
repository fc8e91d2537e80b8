"""Which model of a run is the best: the figure that decides, and whether more of it is better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedrep.errors import SettingsError

SMALLER_IS_BETTER = frozenset(
    {"loss", "perplexity", "mse", "rmse", "mae", "error", "error_rate", "brier", "ece", "log_loss", "nll", "wer"}
)


@dataclass(frozen=True, slots=True)
class Best:
    """`figure` is empty for the accuracy, or the loss where a task has no accuracy."""

    figure: str = ""
    smaller: bool = False

    @classmethod
    def named(cls, text: str) -> Best:
        """`auroc`: more is better. `-loss`, or one of the names above: less is better."""
        figure = text.removeprefix("-").strip()
        if text and not figure:
            raise SettingsError(f"best = {text!r} names no figure; use for example best = 'auroc' or best = '-loss'")
        return cls(figure, text.startswith("-") or figure.lower() in SMALLER_IS_BETTER)

    def score(self, accuracy: float | None, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """Larger is better; None where the figure is missing or is no number."""
        if not self.figure:
            value = accuracy if accuracy is not None else None if loss is None else -loss
        else:
            value = {"accuracy": accuracy, "loss": loss, **metrics}.get(self.figure)
            value = -value if value is not None and self.smaller else value
        return value if value is not None and math.isfinite(value) else None
