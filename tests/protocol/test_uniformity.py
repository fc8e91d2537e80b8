"""What the server sees of a silo with one honest mate left: uniform bytes, and never the same ones twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.protocol.messages import Outcome
from fedrep.secagg.masking import add_masks, pair_mask, self_mask
from tests.protocol.federation import Federation, Silo

# Uniform bytes exceed this with a probability below 1e-11 (chi-square, 255 degrees of freedom): identities are drawn anew in
# every run of the tests, so the limit must hold for all of them.
LIMIT = 450.0


def chi_square(data: bytes) -> float:
    """Against the uniform distribution over the 256 bytes."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    return float(((counts - expected) ** 2 / expected).sum())


def masks_known_to_the_server(federation: Federation, victim: Silo, colluders: list[Silo]) -> list[Any]:
    """Its own seed (it survived, so b was revealed) and its pair masks with every colluder."""
    assert victim.proposed is not None
    assert victim.submitted is not None
    c2, place = victim.submitted.agreement.c2, victim.submitted.place
    public = victim.proposed.message.record.mask_key
    masks = [self_mask(victim.proposed.secrets.seed, victim.name, c2, place)]
    for colluder in colluders:
        assert colluder.proposed is not None
        theirs = pair_mask(colluder.proposed.secrets.mask_key, colluder.name, victim.name, public, c2, place)
        masks.append(type(theirs)(theirs.key, -theirs.sign))
    return masks


def submitted_vector(silo: Silo, bits: int) -> NDArray[Any]:
    assert silo.submitted is not None
    return np.frombuffer(silo.submitted.message.masked, dtype=f"<u{bits // 8}").copy()


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_with_one_honest_mate_left_a_masked_vector_is_uniform_on_the_ring(bits: int) -> None:
    federation = Federation.of(8, parameters=40_000, buffer_size=4, ring_bits=bits, coordinates=39_000, alpha=1.0, quorum=8)
    assert federation.play().outcome is Outcome.APPLIED
    buffer = federation.by_buffer()[0]
    victim, mate, *colluders = buffer
    vector = submitted_vector(victim, bits)
    add_masks(vector, masks_known_to_the_server(federation, victim, colluders), negate=True)
    assert victim.submitted is not None
    assert vector.size > 20_000
    for byte in range(bits // 8):
        assert chi_square(vector.view(np.uint8)[byte :: bits // 8].tobytes()) < LIMIT
    # The same count rejects the vector without that last mask: the statistic can tell.
    add_masks(vector, masks_known_to_the_server(federation, victim, [mate])[1:], negate=True)
    assert (vector == victim.submitted.values.levels).all()
    assert chi_square(vector.tobytes()) > 10 * LIMIT


def test_equal_updates_of_two_mates_do_not_show_in_what_they_send() -> None:
    federation = Federation.of(4, parameters=20_000, coordinates=19_000, quorum=4, alpha=1.0, ring_bits=8)
    federation.updates = {name: np.zeros(20_000, np.float32) for name in federation.silos}
    federation.play()
    buffer = federation.by_buffer()[0]
    first, second = (submitted_vector(silo, 8) for silo in buffer)
    for seen in (first, second, first - second):
        assert chi_square(seen.tobytes()) < LIMIT


def test_two_rounds_share_no_mask_bytes() -> None:
    """No 8 bytes of any silo's mask in one round appear anywhere in its own or another's in the next."""
    federation = Federation.of(4, parameters=4000, coordinates=3900, quorum=4, alpha=1.0)
    federation.updates = {name: np.ones(4000, np.float32) for name in federation.silos}
    windows: list[set[bytes]] = []
    for _ in range(2):
        federation.play()
        seen: set[bytes] = set()
        count = 0
        for silo in federation.silos.values():
            assert silo.submitted is not None
            mask = (submitted_vector(silo, 16) - silo.submitted.values.levels).tobytes()
            pieces = [mask[start : start + 8] for start in range(len(mask) - 7)]
            seen.update(pieces)
            count += len(pieces)
        assert len(seen) == count, "nor do two silos share any in one round"
        windows.append(seen)
    assert not windows[0] & windows[1]


def test_a_resend_after_a_skipped_round_is_masked_afresh() -> None:
    """Whatever becomes of a round, its keys are never used again."""
    federation = Federation.of(4, quorum=4)
    records = []
    for _ in range(2):
        federation.open_round()
        for silo in federation.members:
            federation.propose(silo)
        records.append([silo.proposed.message.record for silo in federation.members if silo.proposed])
        federation.deadline()
        federation.deadline()
        assert federation.finish().outcome is Outcome.SKIPPED
    for before, after in zip(*records, strict=True):
        assert before.mask_key != after.mask_key
        assert before.seed_commitment != after.seed_commitment
        assert before.next_session_key != after.next_session_key
