from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.errors import InvalidInputError, NonFiniteError
from fedrep.quantize import RingFormat, check_bit_budget, open_mean, quantize, value_bits

FORMATS = [RingFormat(8, 5), RingFormat(16, 13), RingFormat(16, 16), RingFormat(32, 29), RingFormat(32, 4)]


@pytest.mark.parametrize(("ring_bits", "buffer", "bits"), [(16, 4, 13), (16, 5, 12), (8, 8, 4), (8, 9, 3), (32, 1, 31)])
def test_value_bits_leave_room_for_the_buffer_and_a_guard_bit(ring_bits: int, buffer: int, bits: int) -> None:
    assert value_bits(ring_bits, buffer) == bits


@given(st.sampled_from([8, 16, 32]), st.integers(1, 200))
def test_the_largest_honest_sum_stays_below_half_the_signed_range(ring_bits: int, buffer: int) -> None:
    bits = value_bits(ring_bits, buffer)
    if bits >= 4:
        assert 2 * buffer * RingFormat(ring_bits, bits).limit < 2 ** (ring_bits - 1)
        assert check_bit_budget(ring_bits, buffer) == []
    else:
        assert len(check_bit_budget(ring_bits, buffer)) == 1


def test_budget_problems_say_what_to_change() -> None:
    assert "choose more ring bits or smaller buffers" in check_bit_budget(8, 9)[0]
    assert "choose 8, 16 or 32" in check_bit_budget(12, 4)[0]
    assert check_bit_budget(16, 0) != []


def test_a_format_that_does_not_exist_is_refused() -> None:
    for ring_bits, bits in [(12, 4), (16, 17), (16, 1)]:
        with pytest.raises(InvalidInputError):
            RingFormat(ring_bits, bits)


@pytest.mark.parametrize("ring", FORMATS, ids=str)
def test_one_survivor_opens_to_exactly_the_dequantized_values(ring: RingFormat) -> None:
    rng = np.random.default_rng(1)
    values = (rng.standard_normal(200_000) * 0.3).astype(np.float32)
    result = quantize(values, 0.7, ring, rng)
    assert result.levels.dtype == ring.dtype
    assert result.dequantized.dtype == np.float32
    opened = open_mean(result.levels, 1, 0.7, ring)
    np.testing.assert_array_equal(opened.view(np.uint32), result.dequantized.view(np.uint32))


@pytest.mark.parametrize("ring", FORMATS, ids=str)
def test_rounding_moves_a_value_by_less_than_one_step_and_never_beyond_the_limit(ring: RingFormat) -> None:
    rng = np.random.default_rng(2)
    values = rng.uniform(-2, 2, 100_000).astype(np.float32)
    values[:3] = [2.0, -2.0, 0.0]
    result = quantize(values, 2.0, ring, rng)
    step = 2.0 / ring.limit
    assert np.abs(result.dequantized.astype(np.float64) - values).max() < step * (1 + 1e-3) + 1e-6
    assert np.abs(result.levels.view(ring.signed_dtype).astype(np.int64)).max() <= ring.limit
    assert result.clip_rate == 0.0
    assert result.levels[2] == 0


@pytest.mark.parametrize("ring", [RingFormat(8, 5), RingFormat(16, 6), RingFormat(32, 6)], ids=str)
def test_stochastic_rounding_is_unbiased(ring: RingFormat) -> None:
    rng = np.random.default_rng(3)
    draws = 400_000
    step = 1.0 / ring.limit
    for fraction in (0.03, 0.25, 0.5, 0.91, -0.03, -0.37, -5.77):
        values = np.full(draws, fraction * step)
        result = quantize(values, 1.0, ring, rng)
        mean = result.dequantized.mean(dtype=np.float64) / step
        part = fraction - np.floor(fraction)
        deviation = (part * (1 - part) / draws) ** 0.5
        assert abs(mean - fraction) < 5 * deviation + 1e-5


def test_rounding_in_the_wide_ring_keeps_bits_that_float32_would_lose() -> None:
    ring = RingFormat(32, 29)
    values = np.full(200_000, (2**27 + 0.25) / ring.limit)
    levels = quantize(values, 1.0, ring, np.random.default_rng(4)).levels
    assert set(np.unique(levels).tolist()) == {2**27, 2**27 + 1}
    assert abs((levels == 2**27 + 1).mean() - 0.25) < 0.01


def test_values_outside_the_range_are_clipped_and_counted() -> None:
    ring = RingFormat(16, 13)
    values = np.array([0.5, 3.0, -1e30, 1.0, -1.0, 0.0], dtype=np.float32)
    result = quantize(values, 1.0, ring, np.random.default_rng(5))
    assert result.clip_rate == pytest.approx(2 / 6)
    assert result.dequantized[1:5].tolist() == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize("ring", [RingFormat(16, 13), RingFormat(16, 16), RingFormat(32, 32)], ids=str)
def test_values_at_the_very_edge_never_round_up_beyond_the_limit(ring: RingFormat) -> None:
    rng = np.random.default_rng(11)
    for clip_range in rng.uniform(0.1, 3.0, 40).astype(np.float32):
        edge = np.full(4_000, clip_range)
        edge[::2] *= -1
        levels = quantize(edge, float(clip_range), ring, rng).levels.view(ring.signed_dtype).astype(np.int64)
        assert levels[1::2].max() <= ring.limit
        assert levels[1::2].min() >= ring.limit - 1
        assert levels[::2].min() >= -ring.limit


@given(st.integers(1, 8), st.sampled_from([8, 16, 32]), st.integers(0, 2**32))
def test_the_mean_over_a_buffer_comes_back_from_the_wrapped_sum(silos: int, ring_bits: int, seed: int) -> None:
    ring = RingFormat(ring_bits, value_bits(ring_bits, silos))
    rng = np.random.default_rng(seed)
    parts = [quantize(rng.uniform(-1, 1, 50), 1.0, ring, rng) for _ in range(silos)]
    total = np.zeros(50, dtype=ring.dtype)
    for part in parts:
        total += part.levels
    expected = np.mean([part.dequantized.astype(np.float64) for part in parts], axis=0)
    np.testing.assert_allclose(open_mean(total, silos, 1.0, ring), expected, atol=1e-6)


@pytest.mark.parametrize("ring_bits", [8, 16, 32])
def test_a_sum_no_honest_buffer_can_have_is_refused(ring_bits: int) -> None:
    ring = RingFormat(ring_bits, value_bits(ring_bits, 3))
    bound = 3 * ring.limit
    for level in (bound + 1, -bound - 1, -(2 ** (ring_bits - 1))):
        total = np.array([0, level], dtype=ring.signed_dtype).view(ring.dtype)
        with pytest.raises(InvalidInputError, match="discarded"):
            open_mean(total, 3, 1.0, ring)
    edge = np.array([bound, -bound], dtype=ring.signed_dtype).view(ring.dtype)
    np.testing.assert_allclose(open_mean(edge, 3, 1.0, ring), [1.0, -1.0], rtol=1e-6)


def test_opening_with_too_many_survivors_or_another_ring_is_refused() -> None:
    ring = RingFormat(16, 13)
    with pytest.raises(InvalidInputError, match="cannot hold"):
        open_mean(np.zeros(2, dtype=np.uint16), 9, 1.0, ring)
    with pytest.raises(InvalidInputError, match="cannot hold"):
        open_mean(np.zeros(2, dtype=np.uint16), 0, 1.0, ring)
    with pytest.raises(InvalidInputError, match="uint32"):
        open_mean(np.zeros(2, dtype=np.uint32), 1, 1.0, ring)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_value_is_refused_naming_its_index(bad: float) -> None:
    values = np.zeros(100_000, dtype=np.float32)
    values[[70_001, 90_000]] = bad
    with pytest.raises(NonFiniteError, match="index 70001"):
        quantize(values, 1.0, RingFormat(16, 13), np.random.default_rng(6))


@pytest.mark.parametrize("clip_range", [0.0, -1.0, float("nan"), float("inf"), 1e-40, 1e39])
def test_a_useless_range_is_refused(clip_range: float) -> None:
    with pytest.raises(InvalidInputError, match="clip range"):
        quantize(np.zeros(1, dtype=np.float32), clip_range, RingFormat(16, 13), np.random.default_rng(7))


def test_an_empty_vector_quantizes_to_an_empty_vector() -> None:
    result = quantize(np.empty(0, dtype=np.float32), 1.0, RingFormat(16, 13), np.random.default_rng(8))
    assert (result.levels.size, result.clip_rate) == (0, 0.0)
    assert open_mean(result.levels, 1, 1.0, RingFormat(16, 13)).size == 0


def test_integers_and_matrices_are_refused() -> None:
    for wrong in (np.arange(3), np.zeros((2, 2))):
        with pytest.raises(InvalidInputError):
            quantize(wrong, 1.0, RingFormat(16, 13), np.random.default_rng(9))


def test_memory_beyond_the_result_does_not_grow_with_the_model() -> None:
    rng = np.random.default_rng(10)
    ring = RingFormat(16, 13)
    values = rng.uniform(-1, 1, 2_000_000).astype(np.float32)
    tracemalloc.start()
    try:
        result = quantize(values, 0.9, ring, rng)
        opened = open_mean(result.levels, 1, 0.9, ring)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < result.levels.nbytes + result.dequantized.nbytes + opened.nbytes + 4_000_000


def test_a_value_equal_to_the_range_is_not_counted_as_clipped_whatever_type_the_range_has() -> None:
    values = np.full(3, 0.1, dtype=np.float32)
    ranges: list[Any] = [0.1, np.float64(0.1), np.float32(0.1)]
    for clip_range in ranges:
        assert quantize(values, clip_range, RingFormat(16, 13), np.random.default_rng(12)).clip_rate == 0.0


@pytest.mark.parametrize("ring", FORMATS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_outside_the_range_ends_at_the_limit_however_far(ring: RingFormat, sign: int) -> None:
    # With 8-bit levels, 17 and 34 times the range would wrap to harmless ones.
    for factor in (1.001, 1.9, 2.0, 7.99, 8.0, 8.01, 17.1, 34.1, 256.0, 300.0, 65536.0, 1e9, 1e30):
        values = np.array([0.01] * 50 + [0.5 * sign * factor], dtype=np.float32)
        result = quantize(values, 0.5, ring, np.random.default_rng(13))
        assert result.levels.view(ring.signed_dtype)[-1] == sign * ring.limit
        assert result.clip_rate == pytest.approx(1 / 51)


@pytest.mark.parametrize("ring", FORMATS[:3], ids=str)
def test_one_value_at_the_limit_changes_no_other_level(ring: RingFormat) -> None:
    values = np.random.default_rng(14).uniform(-0.6, 0.6, 300_000).astype(np.float32)
    plain = quantize(values, 1.0, ring, np.random.default_rng(15)).levels.copy()
    for index, beyond in ((0, 1.0), (70_000, -3.0), (299_999, 1e30)):
        values[index], before = beyond, values[index]
        levels = quantize(values, 1.0, ring, np.random.default_rng(15)).levels
        assert np.flatnonzero(levels != plain).tolist() == [index]
        values[index] = before


def test_the_levels_are_shown_stretch_by_stretch_in_order() -> None:
    seen: list[bytes] = []
    values = np.random.default_rng(16).uniform(-1, 1, 150_000).astype(np.float32)
    result = quantize(values, 0.9, RingFormat(16, 13), np.random.default_rng(17), lambda part: seen.append(part.tobytes()))
    assert len(seen) > 1
    assert b"".join(seen) == result.levels.tobytes()


def test_what_was_sent_cannot_be_changed_afterwards() -> None:
    result = quantize(np.full(4, 0.3, dtype=np.float32), 1.0, RingFormat(16, 13), np.random.default_rng(18))
    with pytest.raises(ValueError, match="read-only"):
        result.levels[0] = 0
