"""How much of a transfer is the wire: what the wide-area benchmark says about messages whose pieces are known."""

from __future__ import annotations

import pytest

from benchmarks.idle_silos import Transfer
from benchmarks.wide_area import wire_shares
from tests.harness.link import Piece

RATE, DELAY = 1e6, 0.05


def test_a_message_that_flows_takes_what_the_wire_needs() -> None:
    pieces = [Piece("up", 1.0, 1.10, 50_000), Piece("up", 1.01, 1.15, 50_000)]
    needed, took = wire_shares([Transfer("Submit", 1.0, 100_000, 9.0, 10)], pieces, DELAY, RATE)["Submit, up"]
    assert (needed, took) == pytest.approx((0.15, 0.15))


def test_waiting_for_a_window_is_not_the_wires_time() -> None:
    pieces = [Piece("up", 1.0, 1.10, 50_000), Piece("up", 1.20, 1.30, 50_000)]
    needed, took = wire_shares([Transfer("Submit", 1.0, 100_000, 9.0, 10)], pieces, DELAY, RATE)["Submit, up"]
    assert (needed, took) == pytest.approx((0.15, 0.30))


def test_an_answer_is_looked_at_from_its_end_and_with_its_decoding() -> None:
    others = [Piece("down", 0.5, 0.6, 70_000), Piece("up", 1.3, 1.4, 70_000)]
    pieces = [*others, Piece("down", 2.0, 2.1, 50_000), Piece("down", 2.05, 2.15, 50_000), Piece("down", 2.5, 2.6, 20)]
    transfers = [Transfer("GetUpdate", 1.0, 40, 2.25, 100_000)]
    assert wire_shares(transfers, pieces, DELAY, RATE) == {"GetUpdate, down": [pytest.approx(0.15), pytest.approx(0.25)]}


def test_small_messages_are_no_transfers() -> None:
    assert wire_shares([Transfer("Confirm", 1.0, 600, 2.0, 2_000)], [], DELAY, RATE) == {}


def test_bytes_that_the_link_did_not_carry_are_noticed() -> None:
    with pytest.raises(ValueError, match="less than the message"):
        wire_shares([Transfer("Submit", 1.0, 100_000, 9.0, 10)], [Piece("up", 0.9, 1.0, 100_000)], DELAY, RATE)
