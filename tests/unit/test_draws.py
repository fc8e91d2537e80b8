"""Lots from a keystream: within their bounds, uniform, the same for the same key, and good for decoys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from fedrep.secagg.draws import Draws
from fedrep.secagg.keys import SecretBytes
from fedrep.secagg.keystream import PIECE_BYTES
from fedrep.sparsify import obfuscate


def draws(number: int = 0) -> Draws:
    return Draws(SecretBytes(number.to_bytes(32, "big")))


@given(st.integers(-(2**62), 2**62), st.integers(1, 2**62), st.integers(0, 50), st.integers(0, 2**64))
def test_numbers_lie_within_their_bounds(low: int, span: int, size: int, key: int) -> None:
    drawn = draws(key).integers(low, low + span, size=size)
    assert drawn.dtype == np.int64
    assert drawn.size == size
    assert size == 0 or (low <= drawn.min() and drawn.max() < low + span)


def test_every_number_is_as_likely_also_where_the_words_do_not_divide_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With words of 64 bits nobody could tell; so the words are made short, of which 4 of 16 have to be drawn again."""
    monkeypatch.setattr("fedrep.secagg.draws._WORDS", 16)
    real = Draws.words
    monkeypatch.setattr(Draws, "words", lambda self, count: real(self, count) & np.uint64(15))
    counts = np.bincount(draws().integers(0, 12, size=60_000), minlength=12)
    assert counts.size == 12
    assert chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("p", [0.0, 1e-12, 0.3, 0.95, 1.0])
def test_lots_win_as_often_as_they_should(p: float) -> None:
    generator = draws(1)
    found = [generator.binomial(200, p) for _ in range(400)]
    assert binom.cdf(sum(found), 80_000, p) > 1e-6
    assert binom.sf(sum(found) - 1, 80_000, p) > 1e-6


def test_a_chance_smaller_than_a_word_is_not_rounded_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no decoy ever, there is no guarantee: a finite epsilon would be too small."""
    monkeypatch.setattr(Draws, "words", lambda _, count: np.zeros(count, np.uint64))
    assert draws().binomial(3, 1e-30) == 3
    assert draws().binomial(3, 0.0) == 0


def test_one_key_gives_one_sequence_and_another_key_another() -> None:
    count = PIECE_BYTES // 8 + 5  # more than one piece
    first, again, other = draws(2), draws(2), draws(3)
    assert np.array_equal(first.words(count), again.words(count))
    assert not np.array_equal(first.words(8), draws(2).words(8)), "it goes on, and does not begin anew"
    assert not np.array_equal(draws(2).words(8), other.words(8))


def test_decoys_come_from_everywhere_alike() -> None:
    """Of all coordinates that were not kept, which k = 20 of 400 hardly change."""
    generator, top = draws(4), np.arange(0, 400, 20)
    counts = sum(np.bincount(obfuscate(top, 400, 1.0, generator), minlength=400) for _ in range(2_000))
    assert chisquare(counts).pvalue > 1e-6
