"""Where each trainable parameter lies in the flat vector that the federation averages."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError, NonFiniteError

Vector = NDArray[np.float32]

# safetensors sorts tensors by itself, so the order of the parameters travels as metadata.
ORDER_KEY: Final = "fedrep.order"
FROZEN_KEY: Final = "fedrep.frozen"


@dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}"


@dataclass(frozen=True)
class ModelLayout:
    """The trainable parameters in a fixed order. Two silos may train together only if their digests are equal.

    `frozen` is a hash of the weights that are not trained, such as the base beneath adapters: updates of one base mean nothing
    to another. Empty where the whole model is trained.
    """

    parameters: tuple[Parameter, ...]
    frozen: str = ""

    def __post_init__(self) -> None:
        if not self.parameters:
            raise InvalidInputError("the model has no trainable parameter, so there is nothing to train together")
        names = [p.name for p in self.parameters]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise InvalidInputError(f"two parameters of the model are called {twice!r}; names must be distinct")
        for parameter in self.parameters:
            if any(side < 1 for side in parameter.shape):
                raise InvalidInputError(f"parameter {parameter} is empty; leave it out of the model")

    @classmethod
    def of(cls, shapes: Iterable[tuple[str, Iterable[int]]], frozen: str = "") -> ModelLayout:
        return cls(tuple(Parameter(name, tuple(int(side) for side in shape)) for name, shape in shapes), frozen)

    @cached_property
    def size(self) -> int:
        """The paper's d."""
        return sum(p.size for p in self.parameters)

    @cached_property
    def described(self) -> str:
        """As JSON; what a run's options carry, and what the digest is of, along with the hash of the frozen weights."""
        return json.dumps([[p.name, list(p.shape)] for p in self.parameters], separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        frozen = f"\nfrozen {self.frozen}" if self.frozen else ""
        return hashlib.sha256((self.described + frozen).encode()).hexdigest()

    def difference(self, other: ModelLayout) -> str | None:
        """One sentence about the first place where `other` (the run's model) departs from this one, or None."""
        for position, (mine, theirs) in enumerate(zip(self.parameters, other.parameters, strict=False)):
            if mine != theirs:
                return f"parameter {position} is {mine} here and {theirs} in the run"
        if len(self.parameters) != len(other.parameters):
            return f"the model here has {len(self.parameters)} parameters, the run's has {len(other.parameters)}"
        if self.frozen != other.frozen:
            return "the frozen weights here are not the run's: load the same base model on every silo"
        return None

    def require_vector(self, vector: NDArray[np.generic]) -> None:
        """Refuse a vector that is not this model: wrong kind, length, or a value that is not a number."""
        if vector.dtype != np.float32 or vector.ndim != 1:
            raise InvalidInputError(
                f"a model is a flat float32 vector, this one is {vector.dtype} with shape {list(vector.shape)}"
            )
        if vector.size != self.size:
            raise InvalidInputError(f"the model has {self.size} parameters, the vector {vector.size} values")
        finite = np.isfinite(vector)
        if not finite.all():
            raise NonFiniteError(f"the model vector is not finite at position {int(np.argmin(finite))}")

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Named, shaped views into the vector."""
        ends = np.cumsum([p.size for p in self.parameters])
        pieces = np.split(vector, ends[:-1])
        return {p.name: piece.reshape(p.shape) for p, piece in zip(self.parameters, pieces, strict=True)}

    def join(self, arrays: Mapping[str, NDArray[np.generic]]) -> Vector:
        """The flat vector of named arrays; names and shapes must be exactly the layout's."""
        if set(arrays) != {p.name for p in self.parameters}:
            odd = sorted(set(arrays) ^ {p.name for p in self.parameters})
            raise InvalidInputError(f"these parameters are in the model or in the arrays, not in both: {odd[:5]}")
        for parameter in self.parameters:
            if arrays[parameter.name].shape != parameter.shape:
                shape = list(arrays[parameter.name].shape)
                raise InvalidInputError(f"parameter {parameter} was given with shape {shape}")
        flat = [np.asarray(arrays[p.name], dtype=np.float32).reshape(-1) for p in self.parameters]
        return np.concatenate(flat)


def layout_metadata(layout: ModelLayout) -> dict[str, str]:
    """What a file of named tensors does not say by itself."""
    order = {ORDER_KEY: json.dumps([p.name for p in layout.parameters])}
    return order | ({FROZEN_KEY: layout.frozen} if layout.frozen else {})
