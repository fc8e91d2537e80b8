"""A federation plays rounds in one process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import pytest

from fedrep.protocol.messages import Outcome, Phase
from fedrep.protocol.preflight import preflight
from fedrep.protocol.round_effects import Noted, PhaseStarted, RoundEnded
from tests.protocol.byzantine import garbage_shares, propose_with_bad_shares, submit_random_values
from tests.protocol.federation import Federation, Silo


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


@pytest.mark.parametrize("kind", ["ed25519", "p256"])
def test_both_kinds_of_identity_play_a_round(kind: str) -> None:
    assert Federation.of(4, key_kind=kind).play().outcome is Outcome.APPLIED


@pytest.mark.parametrize("silos", [3, 4, 5, 7, 10])
@pytest.mark.parametrize("size", [2, 3])
def test_federations_of_any_size_play_a_round(silos: int, size: int) -> None:
    federation = Federation.of(silos, buffer_size=size, quorum=silos)
    assert preflight(federation.run) == []
    update = federation.play()
    assert update.outcome is Outcome.APPLIED, update.reason
    assert update.evidence.opened == tuple(range(silos // size))


def test_an_undisturbed_round_goes_through_its_phases_and_notes_nothing() -> None:
    federation = Federation.of(6)
    federation.play()
    phases = [PhaseStarted(phase) for phase in (Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL)]
    result = federation.round.result
    assert result is not None
    assert federation.effects == [*phases, RoundEnded(result)]
    assert (result.outcome, result.reason) == (Outcome.APPLIED, "")


def test_over_many_rounds_sent_values_and_residuals_add_up_to_all_updates() -> None:
    """Algorithm 1 exactly, where R holds all values: what was learned is in the model, a silo's residual, or the server's."""
    federation = Federation.of(6, parameters=100, initial_range=16.0)
    start = federation.model.state.vector.astype(np.float64)
    learned = np.zeros(100)
    rng = np.random.default_rng(3)
    for _ in range(12):
        for name in federation.silos:
            federation.updates[name] = rng.normal(scale=0.5, size=100).astype(np.float32)
            learned += federation.updates[name] / 6
        assert federation.play().outcome is Outcome.APPLIED
    assert not any(silo.memory.clipped_mass for silo in federation.silos.values())
    left = np.mean([silo.memory.residual for silo in federation.silos.values()], axis=0)
    moved = start - federation.model.state.vector
    np.testing.assert_allclose(moved + federation.model.residual + left, learned, atol=1e-4)


def test_thirty_two_silos_with_dropouts_at_every_stage_play_a_round() -> None:
    federation = Federation.of(32, parameters=2000, buffer_size=4, byzantine=0)
    assert preflight(federation.run) == []
    names = list(federation.silos)
    gone = {names[0]: Phase.PROPOSE, names[5]: Phase.SUBMIT, names[9]: Phase.CONFIRM, names[13]: Phase.REVEAL}
    update = federation.play(silent_from=gone)
    assert update.outcome is Outcome.APPLIED, update.reason
    assert update.evidence.survivors is not None
    assert len(update.evidence.survivors.names()) == 30


def take_turns(federation: Federation, silos: Sequence[Silo], phase: Phase) -> None:
    act = {Phase.PROPOSE: federation.propose, Phase.SUBMIT: federation.submit, Phase.CONFIRM: federation.confirm}[phase]
    for silo in silos:
        act(silo)
    if federation.round.phase is phase:
        federation.deadline()


def test_thirty_two_silos_with_attackers_and_dropouts_play_a_round() -> None:
    """Three attackers, each in a way of its own, and one dropout per stage; run with -s to see how long it takes."""
    federation = Federation.of(
        32, parameters=2000, byzantine=3, aggregator="trimmed_mean", quorum=29, buffer_size=3, colluders=1, min_survivors=3
    )
    assert preflight(federation.run) == []
    began = perf_counter()
    federation.open_round()
    everyone = federation.members
    dealer, poisoner, revealer = everyone[3], everyone[12], everyone[21]
    silent = {Phase.PROPOSE: everyone[0], Phase.SUBMIT: everyone[7], Phase.CONFIRM: everyone[15], Phase.REVEAL: everyone[30]}
    propose_with_bad_shares(federation, dealer, seed=b"\1" * 32, unmatched_for=[silo.name for silo in everyone[:5]])
    live = [silo for silo in everyone if silo is not silent[Phase.PROPOSE]]
    take_turns(federation, [silo for silo in live if silo is not dealer], Phase.PROPOSE)
    live = [silo for silo in live if silo is not silent[Phase.SUBMIT]]
    submit_random_values(federation, poisoner)
    take_turns(federation, [silo for silo in live if silo is not poisoner], Phase.SUBMIT)
    live = [silo for silo in live if silo is not silent[Phase.CONFIRM]]
    take_turns(federation, live, Phase.CONFIRM)
    live = [silo for silo in live if silo is not silent[Phase.REVEAL]]
    federation.effects += federation.round.receive(garbage_shares(federation, revealer))
    for silo in live:
        if silo is not revealer:
            federation.reveal(silo)
    update = federation.finish()
    took = perf_counter() - began
    sys.stdout.write(f"32 silos, 3 attackers, 4 dropouts: {1000 * took:.0f} ms for the round\n")

    assert update.outcome is Outcome.APPLIED, update.reason
    result = federation.round.result
    assert result is not None
    spoiled = {number for number, buffer in enumerate(federation.by_buffer()) if dealer in buffer or poisoner in buffer}
    assert set(result.discarded) >= spoiled
    assert set(result.opened) == set(range(10)) - set(result.discarded)
    assert result.report.failed == {dealer.name}
    assert result.report.missed == {silent[Phase.PROPOSE].name, silent[Phase.SUBMIT].name}
    assert len(result.opened) >= 6, "a bad dealer, a poisoner and two dropouts cost a buffer each at most"
    assert {note.kind for note in federation.effects if isinstance(note, Noted)} >= {"late", "dropped", "share", "discarded"}
