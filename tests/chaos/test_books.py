"""The drill's own checks: books that are in order raise nothing, and every kind of disorder is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.chaos.server_books import ServerBooks
from tests.chaos.written_traces import RANGE, I, Silo, a_closed_round


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


def test_buffers_that_were_combined_and_not_said_to_be_opened_are_found() -> None:
    frame = a_closed_round()
    frame.notes["opened"] = (0, 1)
    books = ServerBooks("median", byzantine=1)
    books.read("server-a", frame)
    assert books.problems == ["round 4: buffers [0, 1, 2] were combined, (0, 1) are said to be opened"]


def test_an_update_left_out_of_g_is_found() -> None:
    silo = Silo()
    update = np.ones(8, np.float32)
    silo.read("trained", ({"training": 1, "version": 1}, {"update": update, "residual": silo.residual, "g": update * 0}))
    assert silo.books.problems == ["silo-0: training 1: g is not residual plus update"]


def test_values_of_another_training_than_the_one_that_is_named_are_found() -> None:
    silo = Silo()
    silo.submit(1, silo.train() + np.float32(0.5))
    assert silo.books.problems == ["silo-0: round 1: g is not that of training 1"]


def test_a_round_submitted_again_or_before_the_fate_of_the_last_is_known_is_found() -> None:
    silo = Silo()
    pending = silo.submit(1, silo.train())
    silo.submit(2, silo.train())
    assert silo.books.problems == ["silo-0: round 2 was submitted while the fate of round 1 was open"]
    silo = Silo()
    pending = silo.submit(1, silo.train())
    silo.settle(pending, "closed")
    silo.submit(1, silo.train())
    assert silo.books.problems == ["silo-0: round 1 was submitted twice"]


def test_a_residual_that_keeps_what_it_sends_is_found() -> None:
    silo = Silo()
    silo.settle(silo.submit(1, silo.train()), "opened")
    g, before = silo.train(), silo.residual.copy()
    assert before[I].any()
    sent = np.round(np.clip(g[I], -RANGE, RANGE), 2).astype(np.float32)
    place = {"round": 2, "training": 2, "version": 2, "range": RANGE, "buffer": 0}
    silo.save(**place, g=g, indices=I, sent=sent, before=before[I])
    assert silo.books.problems == ["silo-0: round 2: what was kept aside is not the residual on I"]


def test_two_models_of_a_version_and_two_shares_of_a_dealer_are_found() -> None:
    silo = Silo()
    for digest in ("a", "b"):
        silo.read("model", ({"version": 3, "hash": digest}, {}))
    silo.read("sent", ({"what": "reveal", "round": 1, "shares": [("silo-1", "seed", "x"), ("silo-1", "key", "y")]}, {}))
    assert silo.books.problems == [
        "silo-0: held two models of version 3",
        "silo-0: round 1: more than one share of a dealer was revealed",
    ]
