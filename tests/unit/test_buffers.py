from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.buffers import cut, largest_buffer, shuffle, sizes
from fedrep.errors import InvalidInputError


@given(st.integers(1, 300), st.integers(1, 40))
def test_there_are_floor_m_over_s_buffers_whose_sizes_differ_by_at_most_one(count: int, buffer_size: int) -> None:
    if count < buffer_size:
        with pytest.raises(InvalidInputError, match="cannot fill"):
            sizes(count, buffer_size)
        return
    result = sizes(count, buffer_size)
    assert len(result) == count // buffer_size
    assert sum(result) == count
    assert max(result) - min(result) <= 1
    assert min(result) >= buffer_size


@given(st.integers(1, 60), st.integers(1, 10), st.integers(0, 2**32))
def test_every_silo_is_in_exactly_one_buffer(count: int, buffer_size: int, seed: int) -> None:
    names = [f"silo-{number}" for number in range(count)]
    if count < buffer_size:
        return
    ordered = shuffle(names, np.random.default_rng(seed))
    groups = cut(ordered, buffer_size)
    assert [name for group in groups for name in group] == list(ordered)
    assert sorted(ordered) == sorted(names)


def test_the_order_of_the_input_does_not_matter_but_the_generator_does() -> None:
    names = ["Zürich", "zeta", "alpha", "Ωmega", "a", "b"]
    expected = shuffle(names, np.random.default_rng(1))
    assert shuffle(reversed(names), np.random.default_rng(1)) == expected
    assert any(shuffle(names, np.random.default_rng(seed)) != expected for seed in range(2, 6))


def test_every_order_is_equally_likely() -> None:
    rng = np.random.default_rng(2)
    seen = Counter(shuffle(["c", "a", "b"], rng) for _ in range(6_000))
    assert set(seen) == set(permutations("abc"))
    assert max(abs(number - 1_000) for number in seen.values()) < 5 * (1_000 * 5 / 6) ** 0.5


def test_a_silo_listed_twice_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'b' is listed twice"):
        shuffle(["b", "a", "b"], np.random.default_rng(3))


@pytest.mark.parametrize(
    ("quorum", "silos", "buffer_size", "largest"), [(4, 4, 4, 4), (4, 7, 4, 7), (8, 32, 4, 6), (30, 32, 4, 5), (2, 9, 2, 3)]
)
def test_the_largest_buffer_covers_every_turnout(quorum: int, silos: int, buffer_size: int, largest: int) -> None:
    assert largest_buffer(quorum, silos, buffer_size) == largest


def test_impossible_sizes_are_refused() -> None:
    for arguments in [(3, 8, 4), (9, 8, 4), (4, 8, 0)]:
        with pytest.raises(InvalidInputError):
            largest_buffer(*arguments)
