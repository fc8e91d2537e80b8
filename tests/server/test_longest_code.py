"""How many bytes a proposal's coordinates may announce: never fewer than an honest silo needs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedrep.coding import encode_coordinates
from fedrep_server.calls.expected import longest_code


@given(st.integers(1, 5000), st.data())
def test_no_set_of_k_coordinates_takes_more_bytes_than_the_limit(d: int, data: st.DataObject) -> None:
    members = data.draw(st.sets(st.integers(0, d - 1), max_size=200))
    assert len(encode_coordinates(sorted(members), d)) <= longest_code(len(members), d)


def test_the_limit_is_no_more_than_a_quarter_above_what_uniform_coordinates_take() -> None:
    d, k = 1_000_000, 12_500
    drawn = np.sort(np.random.default_rng(1).choice(d, k, replace=False))
    assert longest_code(k, d) <= 1.25 * len(encode_coordinates(drawn, d))


@given(st.integers(1, 40), st.integers(0, 40))
def test_the_set_that_wastes_most_still_fits(k: int, spread: int) -> None:
    """One far coordinate behind a block of near ones, or all of them far from each other."""
    d = k * (spread + 1) + 1
    for members in (range(k), [*range(k - 1), d - 1], range(0, k * (spread + 1), spread + 1), range(d - k, d)):
        assert len(encode_coordinates(sorted(set(members)), d)) <= longest_code(len(set(members)), d)
