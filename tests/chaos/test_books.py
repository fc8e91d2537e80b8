"""The drill's own checks: books that are in order raise nothing, and every kind of disorder is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedrep.coding import encode_coordinates
from fedrep.protocol.model_state import ServerModel
from tests.chaos.server_books import ServerBooks
from tests.chaos.silo_books import SiloBooks
from tests.chaos.trace import Frame

D = 8
I = np.array([1, 4, 6])  # noqa: E741 - the paper's name for the coordinates of a round
RANGE = 1.0


class Silo:
    """Writes the frames that an honest silo would write, unless a test has it err."""

    def __init__(self) -> None:
        self.books = SiloBooks("silo-0", attacks=False)
        self.rng = np.random.default_rng(3)
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
        self.books.read(Frame(kind, *(told or ({}, {}))))

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
        pending = {**place, "range": RANGE, "buffer": 0, "g": g, "indices": I, "sent": sent, "before": self.residual[I].copy()}
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


def test_books_in_order_add_up_whatever_becomes_of_the_values() -> None:
    silo = Silo()
    for number, fate in enumerate(["opened", "closed", "opened", "given up", "opened", "opened"], 1):
        silo.settle(silo.submit(number, silo.train()), fate)
    assert silo.books.problems == []
    assert [each.fate for each in silo.books.submitted.values()].count("opened") == 4
    assert silo.books.imbalance < 1e-6


def test_a_value_that_is_lost_or_kept_twice_is_found() -> None:
    for change in (0.0, 2.0):
        silo = Silo()
        pending = silo.submit(1, silo.train())
        silo.settle(pending, "opened")
        silo.residual[0] *= change
        silo.save()
        assert silo.books.problems == ["silo-0: the residual changed by itself (round None)"]
        assert silo.books.imbalance > 0.01


def test_a_memory_that_no_fate_explains_is_found() -> None:
    silo = Silo()
    silo.submit(1, silo.train())
    silo.residual = silo.residual + np.float32(0.25)
    silo.save()
    assert silo.books.problems == ["silo-0: round 1 left a memory that no fate explains"]


def test_a_training_may_be_sent_again_only_if_it_stayed_closed() -> None:
    for fate, fine in (("closed", True), ("given up", False), ("opened", False)):
        silo = Silo()
        g = silo.train()
        silo.settle(silo.submit(1, g), fate)
        silo.submit(2, g)
        assert (silo.books.problems == []) is fine, fate


def test_a_killed_silo_finds_what_it_wrote_or_was_writing_and_nothing_else() -> None:
    silo = Silo()
    pending = silo.submit(1, silo.train())
    before = silo.memory(**pending)
    silo.residual[I] = pending["before"]
    taken_back = silo.memory()
    silo.read("intended", taken_back)
    silo.read("loaded", before)  # killed before it was written
    silo.read("intended", taken_back)
    silo.read("loaded", taken_back)  # and after
    assert silo.books.problems == []
    assert silo.books.submitted[1].fate == "closed"
    silo.residual[2] += 1
    silo.read("loaded", silo.memory())
    assert silo.books.problems == ["silo-0: a new process found another memory than the last one had written"]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (("submission", 1, "a"), ("submission", 1, "b"), "round 1: two different submissions"),
        (("submission", 1, "a"), ("submission", 2, "a"), "the same masked values left in rounds 1 and 2"),
        (("proposal", 1, "a"), ("proposal", 1, "b"), "round 1: two different proposals"),
        (("submission", 1, "a"), ("submission", 1, "a"), ""),
        (("proposal", 1, "a"), ("proposal", 2, "a"), ""),
    ],
)
def test_a_silo_says_one_thing_a_round(first: Any, second: Any, problem: str) -> None:
    silo = Silo()
    for what, number, digest in (first, second):
        silo.read("sent", ({"what": what, "round": number, "digest": digest}, {}))
    assert silo.books.problems == ([f"silo-0: {problem}"] if problem else [])


def test_a_second_reveal_of_another_secret_and_a_ledger_that_goes_back_are_found() -> None:
    silo = Silo()
    for secret in ("seed", "key"):
        silo.read("sent", ({"what": "reveal", "round": 1, "shares": [("silo-1", secret, "x")]}, {}))
    for total in (1.0, 2.0, 1.5):
        silo.read("ledger", ({"rounds": 1, "total": total}, {}))
    assert len(silo.books.problems) == 2
    assert "two different reveals" in silo.books.problems[0]
    assert "the ledger went back" in silo.books.problems[1]


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


def test_an_update_that_is_the_rule_over_the_opened_buffers_passes() -> None:
    books = ServerBooks("median", byzantine=1)
    books.read("server-a", a_closed_round())
    assert books.problems == []
    assert books.recomputed == 1


def test_another_aggregate_another_buffer_and_another_model_are_found() -> None:
    honest = a_closed_round()
    for name, problem in (
        ("aggregate", "the aggregate is not median over the opened buffers"),
        ("mean_1", "the aggregate is not median over the opened buffers"),
        ("model", "the model is not the one before minus the coded aggregate"),
        ("after", "the model is not the one before minus the coded aggregate"),
    ):
        books = ServerBooks("median", byzantine=1)
        books.read("server-a", a_closed_round(**{name: honest.arrays[name] + np.float32(0.5)}))
        assert any(problem in text for text in books.problems), (name, books.problems)
