"""What the servers opened and made of it, kept from their traces, and computed again."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrep.aggregators import AggregatorWarning
from fedrep.coding import encode_coordinates
from fedrep.protocol.model_state import ModelState, ServerModel, model_hash
from fedrep.protocol.opening import configured_rule
from fedrep.protocol.thresholds import expected_byzantine
from tests.chaos.trace import Frame

Vector = NDArray[Any]


@dataclass
class Opened:
    """A round that a server closed as applied; whether it was committed, the database says."""

    round: int
    version: int
    hash: str
    indices: Vector
    means: dict[int, Vector]
    survivors: dict[int, list[str]]
    buffers: list[list[str]]  # the survivors of all, opened or not


@dataclass
class ServerBooks:
    rule: str
    byzantine: int
    problems: list[str] = field(default_factory=list)
    opened: dict[tuple[int, str], Opened] = field(default_factory=dict)
    recomputed: int = 0
    tasks: dict[str, list[int]] = field(default_factory=dict)

    def read(self, server: str, frame: Frame) -> None:
        if frame.kind == "tasks":
            self.tasks.setdefault(server, []).append(frame.notes["tasks"])
        elif frame.kind == "closed" and frame.notes["outcome"] == "applied":
            self._applied(frame)

    def _applied(self, frame: Frame) -> None:
        notes, arrays = frame.notes, frame.arrays
        means = {int(name.removeprefix("mean_")): mean for name, mean in arrays.items() if name.startswith("mean_")}
        survivors = {number: list(notes["survivors"][number]) for number in means}
        number = notes["round"]
        if sorted(means) != sorted(notes["opened"]):
            self.problems.append(
                f"round {number}: buffers {sorted(means)} were combined, {notes['opened']} are said to be opened"
            )
        aggregate = self._rule(means, survivors)
        if not np.array_equal(aggregate, arrays["aggregate"]):
            self.problems.append(f"round {number}: the aggregate is not {self.rule} over the opened buffers")
        after = self._next(frame, aggregate)
        if after.hex() != notes["hash"] or not np.array_equal(model_hash(arrays["after"]), bytes.fromhex(notes["hash"])):
            self.problems.append(f"round {number}: the model is not the one before minus the coded aggregate")
        self.recomputed += 1
        told = (number, notes["version"], notes["hash"], arrays["indices"], means, survivors, notes["survivors"])
        self.opened[number, notes["hash"]] = Opened(*told)

    def _rule(self, means: dict[int, Vector], survivors: dict[int, list[str]]) -> Vector:
        order = sorted(means)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AggregatorWarning)
            result = configured_rule(self.rule, "{}")(
                np.stack([means[number] for number in order]),
                byzantine_count=expected_byzantine(self.byzantine, len(order)),
                weights=np.array([len(survivors[number]) for number in order], float),
                rng=np.random.default_rng(0),
            )
        vector: Vector = result.vector
        return vector

    def _next(self, frame: Frame, aggregate: Vector) -> bytes:
        """The hash of the model that follows."""
        indices, vector = frame.arrays["indices"], frame.arrays["model"]
        model = ServerModel(ModelState(vector, 0, model_hash(vector), b""), frame.arrays["residual"])
        after, _ = model.apply(indices, encode_coordinates(indices, vector.size), aggregate.astype(np.float32), 16)
        return after.state.hash
