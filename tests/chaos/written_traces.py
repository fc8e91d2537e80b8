"""Traces as honest silos and servers write them: what the drill's own checks are tried on, unless a test has somebody err."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedrep.coding import encode_coordinates
from fedrep.protocol.model_state import ServerModel
from tests.chaos.silo_books import SiloBooks
from tests.chaos.trace import Frame

D = 8
I = np.array([1, 4, 6])  # noqa: E741 - the paper's name for the coordinates of a round
RANGE = 1.0


class Silo:
    """Writes the frames that an honest silo would write, unless a test has it err."""

    def __init__(
        self, name: str = "silo-0", write: Callable[[Frame], None] | None = None, seed: int = 3, buffer: int = 0
    ) -> None:
        """Without `write`, its books read the frames at once."""
        self.books = SiloBooks(name, attacks=False)
        self._write = write or self.books.read
        self.rng = np.random.default_rng(seed)
        self.buffer = buffer
        self.residual = np.zeros(D, np.float32)
        self.given_up = 0
        self.training = 0
        self.read("loaded", self.memory())

    def memory(self, **pending: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        notes = {"given_up": self.given_up, "clipped": 0.0}
        arrays = {"residual": self.residual.copy()}
        if pending:
            notes |= {name: pending[name] for name in ("round", "training", "version", "range", "buffer")}
            arrays |= {name: pending[name] for name in ("g", "indices", "sent", "before")}
        return notes, arrays

    def read(self, kind: str, told: tuple[dict[str, Any], dict[str, Any]] | None = None) -> None:
        self._write(Frame(kind, *(told or ({}, {}))))

    def save(self, **pending: Any) -> None:
        self.read("intended", self.memory(**pending))
        self.read("saved")

    def train(self) -> np.ndarray[Any, Any]:
        self.training += 1
        update = self.rng.normal(scale=0.8, size=D).astype(np.float32)
        g = self.residual + update
        notes = {"training": self.training, "version": self.training}
        self.read("trained", (notes, {"update": update, "residual": self.residual, "g": g}))
        return g

    def submit(self, number: int, g: np.ndarray[Any, Any], training: int | None = None) -> dict[str, Any]:
        sent = np.round(np.clip(g[I], -RANGE, RANGE), 2).astype(np.float32)
        place = {"round": number, "training": training or self.training, "version": training or self.training}
        pending = {
            **place,
            "range": RANGE,
            "buffer": self.buffer,
            "g": g,
            "indices": I,
            "sent": sent,
            "before": self.residual[I].copy(),
        }
        self.residual = self.residual.copy()
        self.residual[I] = 0
        self.save(**pending)
        return pending

    def settle(self, pending: dict[str, Any], fate: str) -> None:
        after = self.residual.copy()
        if fate == "opened":
            after = pending["g"].copy()
            after[I] = np.clip(pending["g"][I], -RANGE, RANGE) - pending["sent"]
        elif fate == "closed":
            after[I] = pending["before"]
        else:
            self.given_up += 1
        self.residual = after
        self.save()


def a_closed_round(**changes: Any) -> Frame:
    """As a server writes it down: three buffers, their median, the model before and after."""
    rng = np.random.default_rng(5)
    means = {f"mean_{number}": rng.normal(size=I.size).astype(np.float32) for number in range(3)}
    before = ServerModel.initial(rng.normal(size=D).astype(np.float32))
    aggregate = np.median(np.stack(list(means.values())), axis=0).astype(np.float32)
    after, _ = before.apply(I, encode_coordinates(I, D), aggregate, 16)
    notes = {"round": 4, "outcome": "applied", "survivors": [["a", "b"], ["c", "d"], ["e", "f"]], "opened": (0, 1, 2)}
    notes |= {"version": 1, "hash": after.state.hash.hex()}
    arrays = {**means, "aggregate": aggregate, "indices": I, "model": before.state.vector, "residual": before.residual}
    return Frame("closed", notes, {**arrays, "after": after.state.vector, **changes})
