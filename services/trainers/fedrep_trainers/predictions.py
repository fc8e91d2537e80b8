"""All of an evaluation's outputs at once: AUROC and the like are no averages over batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import SettingsError


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a `metrics` function is given. The batches' arrays are joined when asked for, as some do not fit together."""

    loss: float
    output_batches: list[NDArray[Any]]
    target_batches: list[NDArray[Any]]

    @property
    def outputs(self) -> NDArray[Any]:
        """The model's logits, one row a sample."""
        return _joined(self.output_batches, "outputs")

    @property
    def targets(self) -> NDArray[Any]:
        return _joined(self.target_batches, "targets")


Metrics = Callable[[Predictions], Mapping[str, float]]


def _joined(batches: list[NDArray[Any]], what: str) -> NDArray[Any]:
    if not batches:
        raise SettingsError(f"the evaluation has no {what}: neither the model's outputs nor the batches show which they are")
    return np.concatenate(batches)


def checked(metrics: object) -> dict[str, float]:
    """A mapping of names to single numbers, or an error that names the odd one."""
    if not isinstance(metrics, Mapping):
        raise SettingsError(f"metrics returned a {type(metrics).__name__}; return a dict of names and numbers")
    figures: dict[str, float] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            raise SettingsError(f"metrics has a figure called {name!r}; names are text")
        try:
            figures[name] = float(value)
        except (TypeError, ValueError):
            raise SettingsError(f"metric {name!r} is a {type(value).__name__}; metrics are single numbers") from None
    return figures
