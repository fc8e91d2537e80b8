from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedrep.downlink import apply_update, decode_update, encode_update
from fedrep.errors import InvalidInputError, NonFiniteError

FINITE = st.floats(allow_nan=False, allow_infinity=False)
FINITE32 = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.data(), st.integers(0, 20), st.sampled_from([8, 16, 32]))
def test_any_finite_update_is_coded_without_overflow_and_received_as_the_server_computed_it(
    data: st.DataObject, size: int, bits: int
) -> None:
    values = data.draw(hnp.arrays(np.float64, size, elements=FINITE))
    carried = data.draw(hnp.arrays(np.float32, size, elements=FINITE32))
    sent = encode_update(values, carried, bits)
    assert np.isfinite(sent.values).all()
    assert np.isfinite(sent.residual).all()
    assert sent.levels.dtype == {8: np.int8, 16: np.int16, 32: np.float32}[bits]
    received = decode_update(sent.levels.copy(), float(sent.scale))
    np.testing.assert_array_equal(received.view(np.uint32), sent.values.view(np.uint32))


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(-1e3, 1e3, width=32)))
def test_values_and_residual_add_up_to_what_was_to_be_sent(values: np.ndarray) -> None:
    sent = encode_update(values, np.zeros_like(values))
    np.testing.assert_allclose(
        sent.values.astype(np.float64) + sent.residual, values, atol=float(sent.scale) * 1e-6 + 1e-37, rtol=0
    )
    assert (np.abs(sent.residual) <= float(sent.scale) * 0.51 + 1e-33).all()


@pytest.mark.parametrize(("bits", "small"), [(16, 1e-6), (8, 1e-4)])
def test_what_rounding_leaves_over_is_sent_in_later_rounds(bits: int, small: float) -> None:
    values = np.array([1.0, small])
    carried = np.zeros(2, dtype=np.float32)
    total = np.zeros(2)
    for _ in range(200):
        sent = encode_update(values, carried, bits)
        carried = sent.residual
        total += sent.values
    np.testing.assert_allclose(total, 200 * values, atol=float(sent.scale))
    assert total[1] > 0


def test_a_zero_or_vanishing_update_sends_zeros_and_keeps_everything() -> None:
    for size in (0.0, 1e-36, 1e-45):
        sent = encode_update(np.full(3, size), np.zeros(3, dtype=np.float32))
        assert not sent.values.any()
        assert sent.scale == 0
        np.testing.assert_array_equal(sent.residual, np.full(3, size, dtype=np.float32))
    assert encode_update(np.empty(0), np.empty(0)).values.size == 0


def test_the_largest_values_use_the_whole_range_of_levels() -> None:
    sent = encode_update(np.array([3.0, -3.0, 1.5]), np.zeros(3))
    assert sent.levels.tolist() in ([32767, -32767, 16384], [32767, -32767, 16383])
    np.testing.assert_allclose(sent.values, [3.0, -3.0, 1.5], atol=1e-4)
    narrow = encode_update(np.array([3.0, -3.0, 1.5]), np.zeros(3), bits=8)
    assert narrow.levels.tolist() in ([127, -127, 64], [127, -127, 63])
    assert narrow.levels.nbytes == 3


def test_thirty_two_bits_carry_float32_values_unchanged() -> None:
    values = np.random.default_rng(1).standard_normal(1_000).astype(np.float32)
    sent = encode_update(values, np.zeros_like(values), bits=32)
    np.testing.assert_array_equal(sent.values, values)
    assert not sent.residual.any()


def test_server_and_silo_models_stay_bit_identical_over_many_rounds() -> None:
    rng = np.random.default_rng(2)
    server = silo = rng.standard_normal(500).astype(np.float32)
    carried = np.zeros(500, dtype=np.float32)
    for _ in range(50):
        indices = np.sort(rng.choice(500, 60, replace=False))
        sent = encode_update(rng.standard_normal(60) * 0.1, carried[indices])
        carried[indices] = sent.residual
        server = apply_update(server, indices, sent.values)
        silo = apply_update(silo, indices, decode_update(sent.levels, sent.scale))
    np.testing.assert_array_equal(server.view(np.uint32), silo.view(np.uint32))


def test_applying_subtracts_on_the_set_and_leaves_the_given_model_alone() -> None:
    model = np.arange(5, dtype=np.float32)
    following = apply_update(model, [1, 3], np.array([0.5, -1.0], dtype=np.float32))
    assert following.tolist() == [0.0, 0.5, 2.0, 4.0, 4.0]
    assert model.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@given(st.integers(0, 2**32 - 1))
def test_a_process_that_flushes_subnormal_numbers_gets_the_same_model_bit_for_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def numbers() -> NDArray[np.float32]:
        """Of any sign and fraction, most of them subnormal or a little above, and some ordinary ones."""
        exponent = rng.choice([0, 0, 1, 2, 12, 25, 26, 27, 28, 127], 400)
        fraction = rng.choice([0, 1, 2**22, 2**23 - 1, int(rng.integers(2**23))], 400)
        bits: NDArray[np.uint32] = (rng.integers(2, size=400) << 31 | exponent << 23 | fraction).astype(np.uint32)
        return bits.view(np.float32)

    model, values = numbers(), numbers()
    values[:40] = model[:40]
    wanted = model - values
    if not torch.set_flush_denormal(True):
        pytest.skip("This processor does not flush subnormal numbers.")
    try:
        flushed = model - values
        following = apply_update(model, np.arange(400), values)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(following.view(np.uint32), wanted.view(np.uint32))
    assert (flushed.view(np.uint32) != wanted.view(np.uint32)).any()


def test_an_update_that_would_make_the_model_infinite_is_not_applied() -> None:
    model = np.array([0.0, -3e38], dtype=np.float32)
    with pytest.raises(NonFiniteError, match="parameter 1"):
        apply_update(model, [0, 1], np.array([1.0, 3e38], dtype=np.float32))


def test_bad_numbers_in_update_or_residual_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="position 1"):
        encode_update(np.array([0.0, np.nan]), np.zeros(2))
    with pytest.raises(NonFiniteError, match="residual"):
        encode_update(np.zeros(2), np.array([np.inf, 0.0]))
    with pytest.raises(NonFiniteError):
        decode_update(np.array([np.nan], dtype=np.float32), 1.0)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 3e38])
def test_a_scale_no_encoder_sends_is_refused(scale: float) -> None:
    with pytest.raises(InvalidInputError, match="scale"):
        decode_update(np.array([1, -32768], dtype=np.int16), scale)


def test_wrong_shapes_types_and_widths_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="8, 16 or 32"):
        encode_update(np.zeros(1), np.zeros(1), bits=4)
    with pytest.raises(InvalidInputError, match="shape"):
        encode_update(np.zeros(2), np.zeros(3))
    with pytest.raises(InvalidInputError, match="int16"):
        decode_update(np.zeros(2, dtype=np.int32), 1.0)
    with pytest.raises(InvalidInputError, match="scale 1"):
        decode_update(np.zeros(2, dtype=np.float32), 2.0)
    model = np.zeros(4, dtype=np.float32)
    with pytest.raises(InvalidInputError, match="float32"):
        apply_update(model, [0], np.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="as many values"):
        apply_update(model, [0], np.zeros(2, dtype=np.float32))
