"""Who shares a buffer is fixed by a seed that an admin signed, for a whole epoch, whoever proposes (N4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrep.protocol.messages import Phase
from fedrep.protocol.seats import seats
from fedrep.protocol.silo_rules import Policy, check_run
from tests.protocol.federation import Federation, run_manifest
from tests.protocol.silo_refusal import refused, submit_to, with_buffer

MODEL = np.zeros(64, np.float32)


@given(silos=st.integers(2, 40), size=st.integers(2, 8), number=st.integers(1, 10_000))
def test_every_listed_silo_has_one_seat_and_sizes_differ_by_at_most_one(silos: int, size: int, number: int) -> None:
    size = min(size, silos)
    run = run_manifest(silos, MODEL, buffer_size=size, reshuffle_every=10)
    seated = seats(run, number)
    assert len(seated) == silos // size
    assert Counter(name for buffer in seated for name in buffer) == Counter(run.silos)
    assert {len(buffer) for buffer in seated} <= {silos // len(seated), silos // len(seated) + 1}
    assert all(list(buffer) == sorted(buffer, key=str.encode) for buffer in seated)


def test_seats_stay_for_an_epoch_and_change_with_it_and_with_the_seed() -> None:
    run = run_manifest(12, MODEL, reshuffle_every=10)
    assert len({seats(run, number) for number in range(1, 10)}) == 1
    assert len({seats(run, number) for number in range(0, 1000, 10)}) > 90
    assert seats(replace(run, buffer_seed=b"x" * 32), 1) != seats(run, 1)
    assert seats(replace(run, silos=run.silos[::-1]), 1) == seats(run, 1), "the list's order does not matter"


def test_any_two_silos_meet_as_often_as_any_other_two() -> None:
    """1,000 epochs of 6 silos in pairs: each of the 15 pairs about 200 times."""
    run = run_manifest(6, MODEL, reshuffle_every=1)
    met = Counter(buffer for number in range(1000) for buffer in seats(run, number))
    assert len(met) == 15
    assert 140 < min(met.values()) <= max(met.values()) < 260


def test_a_dropout_moves_nobody() -> None:
    federation = Federation.of(8, quorum=6)
    federation.open_round()
    gone = federation.members[3]
    for silo in federation.members:
        if silo is not gone:
            federation.propose(silo)
    federation.deadline()
    shown = federation.round.consensus_for(gone.name).assignment
    expected = [tuple(name for name in seat if name != gone.name) for seat in seats(federation.run, 1)]
    assert [tuple(place.silo for place in buffer) for buffer in shown] == expected


def test_a_silo_whose_buffer_has_too_few_proposers_holds_shares_and_is_not_penalised() -> None:
    federation = Federation.of(8, quorum=6)
    mate, lonely = (federation.silos[name] for name in seats(federation.run, 1)[0])
    federation.open_round()
    for silo in federation.members:
        if silo is not mate:
            federation.propose(silo)
    federation.deadline()
    for silo in federation.members:
        if silo not in (mate, lonely):
            federation.submit(silo)
    assert federation.round.phase is Phase.CONFIRM, "nobody waited for the lonely one"
    g = lonely.g.copy()
    lonely.answer(type(lonely.player.waiting[0]), federation.round.consensus_for(lonely.name))
    assert lonely.observing is not None
    federation.confirm(lonely)
    for silo in federation.members:
        if silo not in (mate, lonely) and federation.round.phase is Phase.CONFIRM:
            federation.confirm(silo)
    federation.reveal(lonely)
    federation.finish_reveals()
    result = federation.round.result
    assert result is not None
    assert lonely.name not in result.report.failed | result.report.missed
    assert lonely.memory.pending is None
    np.testing.assert_array_equal(lonely.g, g)


@pytest.mark.parametrize("trick", ["other pairs", "two in one", "buffers exchanged", "one left over"])
def test_an_assignment_that_is_not_the_seats_is_refused(trick: str) -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    a, b, c = honest.assignment
    other = {
        "other pairs": ((a[0], b[1]), (b[0], a[1]), c),
        "two in one": (tuple(sorted((*a, *b), key=lambda place: place.silo.encode())), (), c),
        "buffers exchanged": (b, a, c),
        "one left over": (a, b),
    }[trick]
    refused("WRONG_SEATS", lambda: submit_to(silo, replace(honest, assignment=other)))


def test_a_smaller_buffer_is_what_the_seats_allow() -> None:
    """Subsets of one buffer cannot be told from dropouts: that is a known leak, and `whole_buffers` closes it."""
    federation = Federation.of(9, buffer_size=3, colluders=0, min_survivors=2)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    honest = federation.round.consensus_for(silo.name)
    number = next(n for n, buffer in enumerate(honest.assignment) if silo.name in [place.silo for place in buffer])
    without = tuple(
        p for p in honest.assignment[number] if p is not next(x for x in honest.assignment[number] if x.silo != silo.name)
    )
    assert submit_to(silo, with_buffer(honest, number, without)) is not None


def test_the_policy_can_ask_for_longer_epochs_and_whole_buffers() -> None:
    run = run_manifest(9, MODEL, buffer_size=3, reshuffle_every=10, colluders=0, min_survivors=2)
    check_run(run, Policy(least_epoch=10), run.silos[0])
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, Policy(least_epoch=11), run.silos[0]))
    refused("RUN_OUTSIDE_POLICY", lambda: check_run(run, Policy(whole_buffers=True), run.silos[0]))
    check_run(replace(run, min_survivors=3), Policy(whole_buffers=True), run.silos[0])
