"""Masks cancel exactly in the sum over a buffer, look uniform in everything smaller, and stream in any pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.coding import encode_values
from fedrep.errors import InvalidInputError
from fedrep.secagg.keys import AgreementKey, SecretBytes, derive
from fedrep.secagg.keystream import LONG_STREAM, PIECE_BYTES, Keystream
from fedrep.secagg.masking import Mask, MaskedCopy, MaskStream, RingVector, add_masks, pair_mask, ring_dtype, self_mask

C2 = b"\x02" * 32
BITS = [8, 16, 32]


class Member:
    """One silo of a buffer, with fixed secrets."""

    def __init__(self, number: int) -> None:
        self.name = f"silo-{number:02d}"
        self.key = AgreementKey.from_secret(bytes([number + 1]) * 32)
        self.seed = SecretBytes(bytes([number + 101]) * 32)

    def pair(self, mate: Member, c2: bytes = C2, buffer: int = 0) -> Mask:
        return pair_mask(self.key, self.name, mate.name, mate.key.public, c2, buffer)

    def own(self, c2: bytes = C2, buffer: int = 0) -> Mask:
        return self_mask(self.seed, self.name, c2, buffer)

    def all_masks(self, members: Iterable[Member], c2: bytes = C2, buffer: int = 0) -> list[Mask]:
        return [self.own(c2, buffer)] + [self.pair(mate, c2, buffer) for mate in members if mate is not self]


MEMBERS = [Member(number) for number in range(16)]


def ramp(bits: int, size: int, start: int = 0) -> RingVector:
    return (np.arange(size, dtype=np.uint64) * 2654435761 + start).astype(ring_dtype(bits))


def keystream(mask: Mask, bits: int, size: int) -> RingVector:
    scratch = np.empty(size * bits // 8, dtype=np.uint8)
    Keystream(mask.key).fill(scratch)
    return scratch.view(ring_dtype(bits))


def wrapped_sum(vectors: list[RingVector]) -> RingVector:
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total


def opened(members: list[Member], survivors: list[Member], vectors: dict[str, RingVector]) -> RingVector:
    """What a server does: add up what survived, take off the self masks and the masks shared with the lost."""
    masked = []
    for silo in survivors:
        vector = vectors[silo.name].copy()
        add_masks(vector, silo.all_masks(members))
        masked.append(vector)
    total = wrapped_sum(masked)
    lost = [silo for silo in members if silo not in survivors]
    add_masks(total, [silo.own() for silo in survivors], negate=True)
    # The lost silo's side of each pair mask is the negative of the survivor's.
    add_masks(total, [gone.pair(silo) for gone in lost for silo in survivors])
    return total


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", range(2, 17))
def test_masks_cancel_in_the_sum_over_the_whole_buffer(size: int, bits: int) -> None:
    members = MEMBERS[:size]
    vectors = {silo.name: ramp(bits, 37, start=index) for index, silo in enumerate(members)}
    assert np.array_equal(opened(members, members, vectors), wrapped_sum(list(vectors.values())))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", range(2, 7))
def test_every_dropout_pattern_still_opens_to_the_sum_of_the_survivors(size: int, bits: int) -> None:
    members = MEMBERS[:size]
    vectors = {silo.name: ramp(bits, 9, start=index) for index, silo in enumerate(members)}
    for count in range(1, size + 1):
        for pattern in itertools.combinations(members, count):
            survivors = list(pattern)
            expected = wrapped_sum([vectors[silo.name] for silo in survivors])
            assert np.array_equal(opened(members, survivors, vectors), expected)


@settings(max_examples=25)
@given(st.sampled_from(BITS), st.integers(7, 16), st.data())
def test_larger_buffers_open_after_any_dropout(bits: int, size: int, data: st.DataObject) -> None:
    members = MEMBERS[:size]
    chosen = data.draw(st.lists(st.sampled_from(range(size)), min_size=1, unique=True))
    survivors = [members[index] for index in chosen]
    vectors = {silo.name: ramp(bits, 11, start=index) for index, silo in enumerate(members)}
    expected = wrapped_sum([vectors[silo.name] for silo in survivors])
    assert np.array_equal(opened(members, survivors, vectors), expected)


def test_no_smaller_sum_is_free_of_masks() -> None:
    members = MEMBERS[:4]
    masked = []
    for silo in members:
        vector = np.zeros(64, dtype=ring_dtype(16))
        add_masks(vector, silo.all_masks(members))
        add_masks(vector, [silo.own()], negate=True)
        masked.append(vector)
    for count in (1, 2, 3):
        for subset in itertools.combinations(masked, count):
            assert np.count_nonzero(wrapped_sum(list(subset))) > 60
    assert not wrapped_sum(masked).any()


def test_two_mates_hold_one_key_with_opposite_signs() -> None:
    left, right = MEMBERS[0].pair(MEMBERS[1]), MEMBERS[1].pair(MEMBERS[0])
    assert left.key == right.key
    assert (left.sign, right.sign) == (1, -1)


@pytest.mark.parametrize(("smaller", "larger"), [("Z", "a"), ("a", "aa"), ("silo-10", "silo-9"), ("z", "é"), ("", "a")])
def test_the_bytewise_smaller_name_adds(smaller: str, larger: str) -> None:
    key, mate = AgreementKey.generate(), AgreementKey.generate()
    assert pair_mask(key, smaller, larger, mate.public, C2, 0).sign == 1
    assert pair_mask(key, larger, smaller, mate.public, C2, 0).sign == -1


def test_mask_keys_are_derived_from_the_secret_and_the_whole_context() -> None:
    first, second = MEMBERS[0], MEMBERS[1]
    shared = first.key.exchange(second.key.public)
    assert second.pair(first, C2, 3).key.reveal() == derive(shared, "pair", C2, 3, "silo-00", "silo-01")
    assert first.own(C2, 3).key.reveal() == derive(first.seed, "self", C2, 3, "silo-00")
    assert first.own().sign == 1


def test_no_two_contexts_share_mask_bytes() -> None:
    first, second, third = MEMBERS[:3]
    masks = [
        mask
        for c2, buffer in [(C2, 0), (C2, 1), (b"\x03" * 32, 0)]
        for mask in (
            first.own(c2, buffer),
            second.own(c2, buffer),
            first.pair(second, c2, buffer),
            first.pair(third, c2, buffer),
        )
    ]
    blocks = [keystream(mask, 8, 16 * 64).tobytes() for mask in masks]
    pieces = {block[start : start + 16] for block in blocks for start in range(0, len(block), 16)}
    assert len(pieces) == len(masks) * 64


def test_a_silo_is_not_its_own_mate() -> None:
    with pytest.raises(InvalidInputError, match="own mate"):
        MEMBERS[0].pair(MEMBERS[0])


def test_the_keystream_is_aes_256_ctr_of_sp_800_38a() -> None:
    key = SecretBytes(bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"))
    plaintext = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    ciphertext = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    stream = np.empty(32, dtype=np.uint8)
    Keystream(key, counter).fill(stream)
    assert bytes(p ^ s for p, s in zip(plaintext, stream.tobytes(), strict=True)) == ciphertext


def test_a_mask_is_the_keystream_from_a_zero_counter_read_as_little_endian_integers() -> None:
    # AES-256 of the all-zero block under the all-zero key, as in NIST's key-variable known-answer test.
    mask = Mask(SecretBytes(bytes(32)), 1)
    expected = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    for bits in BITS:
        vector = np.zeros(16 * 8 // bits, dtype=ring_dtype(bits))
        add_masks(vector, [mask])
        width = bits // 8
        assert [int(value) for value in vector] == [
            int.from_bytes(expected[start : start + width], "little") for start in range(0, 16, width)
        ]


@pytest.mark.parametrize("bits", BITS)
def test_signs_and_negate_mean_addition_and_subtraction_modulo_the_ring(bits: int) -> None:
    plus, minus = MEMBERS[0].own(), MEMBERS[1].pair(MEMBERS[0])
    base = ramp(bits, 100)
    for masks, negate, expected in [
        ([plus], False, base + keystream(plus, bits, 100)),
        ([plus], True, base - keystream(plus, bits, 100)),
        ([minus], False, base - keystream(minus, bits, 100)),
        ([minus], True, base + keystream(minus, bits, 100)),
        ([plus, minus], False, base + keystream(plus, bits, 100) - keystream(minus, bits, 100)),
        ([], False, base),
    ]:
        vector = base.copy()
        add_masks(vector, masks, negate=negate)
        assert np.array_equal(vector, expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("elements", [0, 1, 7, PIECE_BYTES // 4 - 1, PIECE_BYTES + 3, 3 * PIECE_BYTES + 5])
def test_taking_masks_off_restores_the_vector(bits: int, elements: int) -> None:
    masks = MEMBERS[3].all_masks(MEMBERS[:5])
    vector = ramp(bits, elements)
    add_masks(vector, masks)
    if elements > 7:
        assert not np.array_equal(vector, ramp(bits, elements))
    add_masks(vector, masks, negate=True)
    assert np.array_equal(vector, ramp(bits, elements))


@settings(max_examples=25)
@given(st.sampled_from(BITS), st.booleans(), st.lists(st.integers(0, 70_000), max_size=6))
def test_a_vector_streamed_in_any_chunks_gives_identical_bytes(bits: int, negate: bool, cuts: list[int]) -> None:
    masks = MEMBERS[2].all_masks(MEMBERS[:4])
    whole = ramp(bits, 70_000)
    streamed = whole.copy()
    add_masks(whole, masks, negate=negate)
    stream = MaskStream(masks, ring_dtype(bits), negate=negate)
    for start, stop in itertools.pairwise([0, *sorted(cuts), 70_000]):
        stream.apply(streamed[start:stop])
    assert np.array_equal(streamed, whole)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_do_not_change_a_byte(bits: int, threads: int) -> None:
    masks = MEMBERS[1].all_masks(MEMBERS[:3])
    size = 3 * 1024 * 1024 * 8 // bits + 13
    alone, together = ramp(bits, size), ramp(bits, size)
    add_masks(alone, masks)
    add_masks(together, masks, threads=threads)
    assert np.array_equal(alone, together)


def chi_square(values: NDArray[np.integer], cells: int) -> float:
    counts = np.bincount(values, minlength=cells)
    expected = len(values) / cells
    return float(((counts - expected) ** 2 / expected).sum())


def bound(freedom: int) -> float:
    """Chi-square quantile at about p = 1e-5 (Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.265 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("known", ["self mask", "all mates but one"])
def test_a_masked_vector_is_uniform_as_long_as_one_mask_is_unknown(bits: int, known: str) -> None:
    silo, mates = MEMBERS[0], MEMBERS[1:4]
    vector = np.full(400_000, 3, dtype=ring_dtype(bits))  # as far from uniform as values can be
    add_masks(vector, silo.all_masks(MEMBERS[:4]))
    if known == "self mask":
        add_masks(vector, [silo.own()], negate=True)
    else:
        add_masks(vector, [silo.own(), *(silo.pair(mate) for mate in mates[1:])], negate=True)
    for shift in range(0, bits, 8):
        octet = ((vector >> shift) & 0xFF).astype(np.intp)
        assert chi_square(octet, 256) < bound(255)
    low = (vector & 0xF).astype(np.intp)
    assert chi_square(low[:-1] * 16 + low[1:], 256) < bound(255)  # neighbours are independent


def test_chi_square_would_notice_a_missing_mask() -> None:
    values = np.random.default_rng(0).normal(0, 60, 400_000).astype(np.int64).astype(np.uint8)
    assert chi_square(values.astype(np.intp), 256) > bound(255)


def test_masks_of_one_silo_in_two_rounds_are_uncorrelated() -> None:
    rounds = []
    for c2 in (C2, b"\x03" * 32):
        vector = np.zeros(200_000, dtype=ring_dtype(16))
        add_masks(vector, MEMBERS[0].all_masks(MEMBERS[:4], c2))
        rounds.append(vector)
    assert abs(np.corrcoef(rounds[0], rounds[1])[0, 1]) < 4.5 / math.sqrt(200_000)
    assert chi_square(((rounds[0] - rounds[1]) & 0xFF).astype(np.intp), 256) < bound(255)


@pytest.mark.parametrize("bits", BITS)
def test_the_ring_is_made_of_little_endian_unsigned_integers(bits: int) -> None:
    dtype = ring_dtype(bits)
    assert dtype.itemsize * 8 == bits
    assert np.array([1], dtype=dtype).tobytes() == b"\x01" + bytes(bits // 8 - 1)
    assert np.array([0], dtype=dtype) - np.array([1], dtype=dtype) == 2**bits - 1


@pytest.mark.parametrize("bits", [0, 12, 64])
def test_a_ring_of_another_width_is_refused(bits: int) -> None:
    with pytest.raises(InvalidInputError, match="choose 8, 16 or 32"):
        ring_dtype(bits)


@pytest.mark.parametrize("dtype", ["<i2", "<f4", "<u8", ">u2"])
def test_a_vector_outside_the_rings_is_refused(dtype: str) -> None:
    with pytest.raises(InvalidInputError, match="unsigned"):
        add_masks(np.zeros(4, dtype=dtype), [])
    with pytest.raises(InvalidInputError, match="unsigned"):
        MaskStream([], np.dtype(dtype))


def test_a_vector_that_cannot_be_masked_in_place_is_refused_and_unchanged() -> None:
    masks = [MEMBERS[0].own()]
    frozen = np.zeros(8, dtype=ring_dtype(16))
    frozen.flags.writeable = False
    for vector in (np.zeros(8, dtype=ring_dtype(16))[::2], np.zeros((2, 4), dtype=ring_dtype(16)), frozen):
        with pytest.raises(InvalidInputError, match="in place"):
            add_masks(vector, masks)
        assert not vector.any()


def test_a_chunk_of_another_ring_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="uint8"):
        MaskStream([], ring_dtype(16)).apply(np.zeros(8, dtype=ring_dtype(8)))


@given(st.sampled_from(BITS), st.lists(st.integers(0, PIECE_BYTES + 3), max_size=3))
@settings(max_examples=30)
def test_a_masked_copy_is_the_masked_vector_on_the_wire_and_leaves_the_vector_alone(bits: int, cuts: list[int]) -> None:
    vector = ramp(bits, sum(cuts))
    vector.flags.writeable = False
    masks = MEMBERS[3].all_masks(MEMBERS[:5])
    copy, start = MaskedCopy(masks, ring_dtype(bits), vector.size), 0
    for size in cuts:
        copy.append(vector[start : start + size])
        start += size
    expected = vector.copy()
    add_masks(expected, masks)
    assert copy.message() == encode_values(expected)
    assert copy.message().readonly


def test_a_masked_copy_is_sent_whole_and_never_unmasked() -> None:
    copy = MaskedCopy([MEMBERS[0].own()], ring_dtype(16), 5)
    copy.append(ramp(16, 3))
    with pytest.raises(InvalidInputError, match="only 3 of 5"):
        copy.message()
    for wrong in (ramp(16, 3), ramp(8, 2), ramp(16, 2).reshape(2, 1)):
        with pytest.raises(InvalidInputError):
            copy.append(wrong)
    with pytest.raises(InvalidInputError, match="without any mask"):
        MaskedCopy([], ring_dtype(16), 5)


def test_no_threads_at_all_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="thread"):
        add_masks(np.zeros(8, dtype=ring_dtype(16)), [], threads=0)


@pytest.mark.parametrize("sign", [0, 2, -2])
def test_a_mask_is_added_or_subtracted_and_nothing_else(sign: int) -> None:
    with pytest.raises(InvalidInputError, match="sign"):
        Mask(SecretBytes(bytes(32)), sign)


def test_a_mask_does_not_show_its_key() -> None:
    assert "hidden" in repr(Mask(SecretBytes(b"k" * 32), 1))
    assert "kkk" not in repr(Mask(SecretBytes(b"k" * 32), 1))


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="32 bytes"):
        add_masks(np.zeros(8, dtype=ring_dtype(16)), [Mask(SecretBytes(b"k" * 16), 1)])


@pytest.mark.parametrize("expected", [0, LONG_STREAM])
@pytest.mark.parametrize("first_block", [0, 1, 2, 3, 700])
@pytest.mark.parametrize("pieces", [[5, 11, 16, 1, 31, 64, 4096], [PIECE_BYTES, PIECE_BYTES, 7], [32, 32], [0, 33]])
def test_a_keystream_is_counter_mode_wherever_it_starts_and_however_it_is_cut(
    expected: int, first_block: int, pieces: list[int]
) -> None:
    """The reference is plain AES-256-CTR of `cryptography`."""
    key = bytes(range(32))
    stream = Keystream(SecretBytes(key), first_block, expected)
    parts = []
    for size in pieces:
        scratch = np.full(size, 0xAA, dtype=np.uint8)
        stream.fill(scratch)
        parts.append(scratch.tobytes())
    counter = Cipher(AES(key), CTR(first_block.to_bytes(16, "big"))).encryptor()
    assert b"".join(parts) == counter.update(bytes(sum(pieces)))
