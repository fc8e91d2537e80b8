"""The counts that both roles, the preflight, `plan` and the lab share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Survivor, SurvivorSet
from fedrep.protocol.thresholds import (
    buffers_needed,
    default_colluders,
    default_min_survivors,
    default_quorum,
    expected_byzantine,
    holders_in_common,
    least_min_survivors,
    openable_buffers,
    share_threshold,
)
from fedrep.secagg.shamir import MAX_HOLDERS


@given(st.integers(2, MAX_HOLDERS))
def test_two_sets_of_t_holders_always_share_some_and_a_third_of_them_may_be_silent(holders: int) -> None:
    threshold = share_threshold(holders)
    assert holders_in_common(holders) == len(set(range(threshold)) & set(range(holders - threshold, holders))) >= 1
    assert holders - threshold == (holders - 1) // 3


def test_a_buffer_opens_with_min_survivors_and_not_with_one_less() -> None:
    assert openable_buffers([range(3), range(2), range(4)], 3, byzantine=0) == {0, 2}


def test_with_attackers_nothing_opens_unless_o_min_buffers_do() -> None:
    assert [buffers_needed(f) for f in (0, 1, 2, 3)] == [1, 3, 3, 4]
    assert openable_buffers([range(3), range(3), range(2)], 3, byzantine=1) == frozenset()
    assert openable_buffers([range(3), range(3), range(3)], 3, byzantine=1) == {0, 1, 2}
    assert openable_buffers([range(3), range(2)], 3, byzantine=0) == {0}


@pytest.mark.parametrize("sizes", [(3, 2), (2, 2, 3), (0, 4)])
def test_a_survivor_set_and_the_labs_groups_open_the_same_buffers(sizes: tuple[int, ...]) -> None:
    survivors = SurvivorSet(tuple(tuple(Survivor(SiloName(str(n)), b"") for n in range(size)) for size in sizes))
    groups = [np.arange(size) for size in sizes]
    assert openable_buffers(survivors.buffers, 3, 0) == openable_buffers(groups, 3, 0)


def test_the_rule_is_never_told_to_withstand_half_of_the_opened_buffers() -> None:
    assert [expected_byzantine(7, opened) for opened in (1, 2, 3, 4, 15, 16)] == [0, 0, 1, 1, 7, 7]
    assert expected_byzantine(0, 9) == 0


def test_the_default_quorum_never_asks_for_more_silos_than_there_are() -> None:
    assert default_quorum(12, 2, 1) == share_threshold(12) == 9
    assert default_quorum(6, 2, 1) == 3 * 2
    assert default_quorum(4, 2, 1) == 4


def test_the_defaults_of_collusion_follow_the_buffer_size() -> None:
    assert [default_colluders(size) for size in (2, 3, 4, 8)] == [0, 1, 1, 1]
    assert [default_min_survivors(size, default_colluders(size)) for size in (2, 3, 4, 8)] == [2, 3, 3, 7]


@given(st.integers(2, 64))
def test_by_default_colluders_who_take_their_own_values_off_a_sum_leave_two(buffer_size: int) -> None:
    colluders = default_colluders(buffer_size)
    least = default_min_survivors(buffer_size, colluders)
    assert least - colluders >= 2
    assert least_min_survivors(colluders) <= least <= max(buffer_size, least_min_survivors(colluders))
