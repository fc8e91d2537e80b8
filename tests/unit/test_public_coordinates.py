"""Which coordinates anybody can work out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.public_coordinates import only, own_part, public_coordinates

SEED = b"s" * 32
VECTORS = arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([0.0, -1.0, 0.5, 2.0, 0.125]))


@given(VECTORS, st.data())
def test_exactly_so_many_come_out_sorted_and_once_each(moved: NDArray[np.float32], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, moved.size))
    found = public_coordinates(moved, count, SEED)
    assert found.size == count
    assert np.array_equal(found, np.unique(found))
    assert np.array_equal(found, public_coordinates(moved.copy(), count, SEED)), "everybody comes to the same set"


def test_four_in_five_are_where_the_model_has_moved_furthest() -> None:
    moved = np.zeros(1000, np.float32)
    moved[:100] = np.linspace(-1, -2, 100)
    found = public_coordinates(moved, 50, SEED)
    assert set(range(60, 100)) <= set(found), "the 40 of the largest distance, whatever the sign"
    assert len(set(found) - set(range(60, 100))) == 10


def test_a_model_that_has_not_moved_yet_gets_a_draw_that_follows_the_seed() -> None:
    moved = np.zeros(1000, np.float32)
    first, other = public_coordinates(moved, 50, SEED), public_coordinates(moved, 50, b"t" * 32)
    assert len(set(first) & set(other)) < 25
    assert first.max() > 500


def test_the_draw_is_the_same_on_every_machine_and_with_every_numpy() -> None:
    moved = np.zeros(1000, np.float32)
    moved[::7] = np.arange(143)
    assert public_coordinates(moved, 10, SEED).tolist() == [434, 716, 945, 952, 959, 966, 973, 980, 987, 994]
    drawn = [100, 119, 139, 191, 269, 294, 412, 446, 545, 705, 901, 962]
    assert public_coordinates(moved, 12, b"t" * 32, 1.0).tolist() == drawn


def test_the_members_parts_together_are_all_and_no_two_share_one() -> None:
    whole = public_coordinates(np.arange(100, dtype=np.float32), 30, SEED)
    parts = [own_part(whole, place, 5) for place in range(5)]
    assert {part.size for part in parts} == {6}
    assert np.array_equal(np.sort(np.concatenate(parts)), whole)


def test_more_coordinates_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(InvalidInputError, match="cannot be chosen out of 3"):
        public_coordinates(np.zeros(3, np.float32), 4, SEED)


def test_only_the_chosen_values_of_an_update_stay() -> None:
    update = np.arange(1, 6, dtype=np.float32)
    assert only(update, np.array([1, 3])).tolist() == [0, 2, 0, 4, 0]
    assert update.tolist() == [1, 2, 3, 4, 5]
