"""What a robust rule takes and gives back: checked rows in, one float32 vector and an account of what was done out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrep.errors import InvalidInputError, NonFiniteError, SettingsError

Values = NDArray[Any]  # (n, d), float32 or float64, unit stride along d
Doubles = NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).tiny)
_BLOCK = 1 << 18


class AggregatorWarning(UserWarning):
    """A rule ran, but promises less than its name: no guarantee at this n and f, or a scale that defends against nothing."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """`weights` are each row's share in the vector, where the rule is such a combination; `distances` lead from each
    row to the vector. Either may be missing, never both."""

    vector: NDArray[np.float32]
    weights: Doubles | None = None
    distances: Doubles | None = None
    notes: tuple[str, ...] = ()


def warn(notes: list[str], text: str) -> None:
    """Say it now (a person at a terminal) and keep it in the result (the dashboard)."""
    notes.append(text)
    warnings.warn(text, AggregatorWarning, stacklevel=4)


def as_rows(vectors: ArrayLike) -> Values:
    """The input as it is where possible: nothing here or later writes to it."""
    values = np.asarray(vectors)
    if values.ndim != 2:
        raise InvalidInputError(f"An aggregator takes an (n, d) array, one row per update; this one has shape {values.shape}.")
    if values.shape[0] == 0 or values.shape[1] == 0:
        raise InvalidInputError(f"There is nothing to aggregate: the array has shape {values.shape}.")
    if values.dtype not in (np.float32, np.float64):
        if values.dtype.kind not in "iuf":
            raise InvalidInputError(f"Updates must be real numbers; this array holds {values.dtype}.")
        values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
    if values.dtype.byteorder == ">" or values.strides[1] != values.itemsize:
        values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return values


def check_count(byzantine_count: int, n: int) -> int:
    if isinstance(byzantine_count, bool) or not isinstance(byzantine_count, int | np.integer) or byzantine_count < 0:
        raise SettingsError(f"byzantine_count must be a whole number from 0 on, not {byzantine_count!r}.")
    if byzantine_count >= n:
        raise SettingsError(f"byzantine_count is {byzantine_count}, but there are only {n} rows: none would be honest.")
    return int(byzantine_count)


def check_positive(name: str, value: float | None) -> None:
    if value is not None and not (np.isfinite(value) and value > 0):
        raise SettingsError(f"{name} must be a positive number, not {value!r}.")


def check_at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SettingsError(f"{name} must be a whole number from 1 on, not {value!r}.")


def refuse_nonfinite(values: Values) -> None:
    """The exact check, run only once a cheap one has found something odd."""
    for row in range(values.shape[0]):
        for first in range(0, values.shape[1], _BLOCK):
            block = values[row, first : first + _BLOCK]
            bad = ~(np.abs(block) <= LARGEST)
            if bad.any():
                at = int(np.argmax(bad))
                shown = "NaN" if np.isnan(block[at]) else f"{block[at]:g}, beyond float32"
                raise NonFiniteError(f"Row {row} cannot be aggregated: coordinate {first + at} is {shown}. Leave this row out.")
