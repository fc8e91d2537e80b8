"""A federation plays rounds in one process."""

from __future__ import annotations

import numpy as np
import pytest

from fedrep.protocol.messages import Outcome, Phase
from fedrep.protocol.preflight import preflight
from tests.protocol.federation import Federation


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_opened_update_is_the_mean_of_what_the_silos_sent(bits: int) -> None:
    federation = Federation.of(8, parameters=200, ring_bits=bits)
    before = federation.model.state.vector
    update = federation.play()
    assert update.outcome is Outcome.APPLIED, update.reason
    sent = [silo.submitted.values.dequantized for silo in federation.silos.values() if silo.submitted]
    result = federation.round.result
    assert result is not None
    expected = before.copy()
    expected[result.indices] -= np.mean(sent, axis=0)
    step = np.abs(np.mean(sent, axis=0)).max() / 2**15
    np.testing.assert_allclose(federation.model.state.vector, expected, atol=2 * step)


def test_thirty_two_silos_with_dropouts_at_every_stage_play_a_round() -> None:
    federation = Federation.of(32, parameters=2000, buffer_size=4, byzantine=0)
    assert preflight(federation.run) == []
    names = list(federation.silos)
    gone = {names[0]: Phase.PROPOSE, names[5]: Phase.SUBMIT, names[9]: Phase.CONFIRM, names[13]: Phase.REVEAL}
    update = federation.play(silent_from=gone)
    assert update.outcome is Outcome.APPLIED, update.reason
    assert update.survivors is not None
    assert len(update.survivors.names()) == 30
