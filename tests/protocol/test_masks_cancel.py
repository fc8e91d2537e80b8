"""Masks cancel: whoever vanished, the opened sum is the survivors' plain sum, bit for bit.

The silos' side and the server's run as in a round, with keys made once: a whole round per dropout pattern would take minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Proposal, Record, Secret
from fedrep.protocol.opening import Recovered, masks_left_in_sum
from fedrep.secagg.keys import AgreementKey, SecretBytes
from fedrep.secagg.masking import add_masks, pair_mask, ring_dtype, self_mask

BITS = (8, 16, 32)
C2 = b"one consensus for all".ljust(32)
BUFFER = 3
SIZE = 37


@dataclass(frozen=True)
class Member:
    name: SiloName
    key: AgreementKey
    seed: SecretBytes


@lru_cache
def members(count: int) -> tuple[Member, ...]:
    """Names whose bytewise order is neither that of the list nor that of their characters alone."""
    rng = np.random.default_rng(count)
    names = [SiloName(f"{'Zaé'[n % 3]}{n}") for n in range(count)]
    return tuple(Member(name, AgreementKey.generate(rng.bytes), SecretBytes(rng.bytes(32))) for name in names)


@lru_cache
def proposals(count: int) -> dict[SiloName, Proposal]:
    """Only the mask keys are read."""
    return {
        m.name: Proposal(m.name, RunHash(b""), 1, b"", Record(m.name, m.key.public, b"", b"", b"", b""), b"", (), (), ())
        for m in members(count)
    }


@lru_cache
def submissions(count: int, bits: int) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
    """(plain, masked) of every member, as a silo makes it."""
    rng = np.random.default_rng(1000 * count + bits)
    made = []
    for own in members(count):
        plain = rng.integers(0, 1 << bits, SIZE).astype(ring_dtype(bits))
        masks = [self_mask(own.seed, own.name, C2, BUFFER)]
        masks += [
            pair_mask(own.key, own.name, mate.name, mate.key.public, C2, BUFFER) for mate in members(count) if mate is not own
        ]
        masked = plain.copy()
        add_masks(masked, masks)
        made.append((plain, masked))
    return tuple(made)


def ring_sum(vectors: Iterable[NDArray[Any]], bits: int) -> NDArray[Any]:
    return np.asarray(np.sum(list(vectors), axis=0, dtype=ring_dtype(bits)))


def opened(count: int, bits: int, survivors: Collection[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(what the server opens, the plain sum) when only these members submitted."""
    everyone = members(count)
    recovered = {
        m.name: Recovered(m.name, Secret.SEED, m.seed)
        if n in survivors
        else Recovered(m.name, Secret.KEY, SecretBytes(m.key.secret().reveal()))
        for n, m in enumerate(everyone)
    }
    pairs = [submissions(count, bits)[n] for n in survivors]
    plain = ring_sum((p for p, _ in pairs), bits)
    total = ring_sum((y for _, y in pairs), bits)
    names = [everyone[n].name for n in survivors]
    add_masks(total, masks_left_in_sum(BUFFER, names, recovered, proposals(count), C2), negate=True)
    return total, plain


def nonempty_subsets(count: int) -> Iterable[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", range(2, 7))
def test_every_dropout_pattern_of_a_small_buffer_opens_to_the_plain_sum(count: int, bits: int) -> None:
    patterns = 0
    for survivors in nonempty_subsets(count):
        total, plain = opened(count, bits, survivors)
        np.testing.assert_array_equal(total, plain)
        patterns += 1
    assert patterns == 2**count - 1


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", range(2, 17))
def test_the_full_buffer_and_one_dropout_open_to_the_plain_sum(count: int, bits: int) -> None:
    for survivors in (range(count), range(1, count), range(count - 1)):
        total, plain = opened(count, bits, survivors)
        np.testing.assert_array_equal(total, plain)


@settings(max_examples=60)
@given(data=st.data(), count=st.integers(7, 16), bits=st.sampled_from(BITS))
def test_any_dropout_pattern_of_a_large_buffer_opens_to_the_plain_sum(data: st.DataObject, count: int, bits: int) -> None:
    survivors = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    total, plain = opened(count, bits, survivors)
    np.testing.assert_array_equal(total, plain)


@pytest.mark.parametrize("bits", BITS)
def test_pair_masks_cancel_in_the_whole_buffer_and_in_no_smaller_sum(bits: int) -> None:
    count = 5
    names = [m.name for m in members(count)]
    for subset in nonempty_subsets(count):
        total = ring_sum((submissions(count, bits)[n][1] for n in subset), bits)
        plain = ring_sum((submissions(count, bits)[n][0] for n in subset), bits)
        add_masks(total, [self_mask(members(count)[n].seed, names[n], C2, BUFFER) for n in subset], negate=True)
        assert (len(subset) == count) == bool((total == plain).all())


def test_the_bytewise_smaller_name_adds_and_the_other_subtracts() -> None:
    """Capitals come before small letters, and letters beyond ASCII last: what two implementations must agree on."""
    first, second = members(2)
    for smaller, larger in (("Z", "a"), ("a", "é"), ("a", "aa"), ("silo-10", "silo-9")):
        assert pair_mask(first.key, smaller, larger, second.key.public, C2, BUFFER).sign == 1
        assert pair_mask(second.key, larger, smaller, first.key.public, C2, BUFFER).sign == -1


def test_a_missing_secret_of_one_member_leaves_the_sum_masked() -> None:
    count, bits = 4, 32
    total = ring_sum((y for _, y in submissions(count, bits)), bits)
    plain = ring_sum((p for p, _ in submissions(count, bits)), bits)
    known = [self_mask(m.seed, m.name, C2, BUFFER) for m in members(count)[1:]]
    add_masks(total, known, negate=True)
    assert not (total == plain).any()


@pytest.mark.parametrize("other", [b"another consensus".ljust(32), C2], ids=["consensus", "buffer"])
def test_masks_of_another_consensus_or_buffer_do_not_cancel(other: bytes) -> None:
    first, second = members(2)
    buffer = BUFFER if other != C2 else BUFFER + 1
    total = np.zeros(SIZE, np.uint32)
    add_masks(total, [pair_mask(first.key, first.name, second.name, second.key.public, C2, BUFFER)])
    add_masks(total, [pair_mask(second.key, second.name, first.name, first.key.public, other, buffer)])
    assert total.all()
