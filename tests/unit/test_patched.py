"""Sums of vectors that are known by what differs, and where their largest values can lie."""

from __future__ import annotations

import numpy as np
import pytest

from fedrep.patched import Difference, Patch, Patched
from fedrep.sparsify import top_k


@pytest.mark.parametrize("d", [7, 16, 49_999, 60_000, 270_001])
@pytest.mark.parametrize("changed", [0, 1, 20])
def test_a_sum_knows_all_places_from_some_magnitude_on_and_these_hold_the_largest(d: int, changed: int) -> None:
    """Where values were sent the base is large and the vector is not: a guess from the base alone would be far too high."""
    rng, top = np.random.default_rng(d + changed), max(d // 600, 1)
    base, minuend, subtrahend = (rng.standard_normal(d, dtype=np.float32) for _ in range(3))
    indices = np.sort(rng.choice(d, changed * d // 100, replace=False))
    base[indices] *= 1000
    patch = Patch(indices, np.zeros(indices.size, np.float32))
    dense = base.copy()
    dense[indices] = 0
    for other in (Difference(minuend, subtrahend), minuend - subtrahend):
        found = Patched(base, patch if changed else None).plus(other, top=top)
        np.testing.assert_array_equal(found.vector, dense + (minuend - subtrahend))
        assert found.peak == np.abs(found.vector).max()
        if d < 50_000:
            assert found.largest is None
            continue
        assert found.largest is not None
        np.testing.assert_array_equal(found.largest.places, np.flatnonzero(np.abs(found.vector) >= found.largest.magnitude))
        assert top <= found.largest.places.size < 30 * top  # far fewer than all; few samples guess low
        assert np.isin(top_k(found.vector, top), found.largest.places).all()
