"""The error memory: what stays in the residual, and which proof brings pending values back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrep.errors import InvalidInputError
from fedrep.protocol.error_memory import ErrorMemory, Fate, judge
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    Outcome,
    Phase,
    Signatures,
    Statement,
    SurvivorSet,
    Update,
    confirmation_message,
    statement_message,
)
from fedrep.protocol.thresholds import share_threshold
from fedrep.quantize import RingFormat, quantize
from tests.protocol.federation import Federation
from tests.protocol.pending_values import (
    ALIVE,
    C2,
    OWN,
    OWN_BUFFER_TOO_SMALL,
    OWN_MISSING,
    RUN,
    STRANGER,
    confirmed_by,
    memory_with,
    pending_of,
    roster,
    stated_by,
    survivors,
    told,
)


def test_what_was_not_sent_stays_in_the_residual_quantization_error_and_clipped_mass_included() -> None:
    federation = Federation.of(6, parameters=40, ring_bits=8, initial_range=0.05)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    g = silo.memory.g()
    federation.submit(silo)
    assert silo.submitted is not None
    indices, sent = silo.submitted.agreement.indices, silo.submitted.values.dequantized
    assert np.abs(g[indices]).max() > 0.05, "nothing was clipped"
    assert np.abs(sent).max() <= 0.05 + 1e-7
    expected = g.copy()
    expected[indices] -= sent
    np.testing.assert_array_equal(silo.memory.residual, expected)
    assert np.abs(silo.memory.residual[indices]).max() > 0


def test_algorithm_1_is_exact_in_the_limit() -> None:
    """What has left the silo after n rounds differs from all it ever trained by the residual alone, which stays bounded."""
    rng = np.random.default_rng(0)
    ring, d = RingFormat(8, 5), 30
    memory = ErrorMemory(np.zeros(d, np.float32))
    trained, left = np.zeros(d), np.zeros(d)
    direction = rng.normal(scale=0.02, size=d).astype(np.float32)
    sizes = []
    for version in range(400):
        memory = memory.trained(version, direction)
        trained += direction
        g = memory.g()
        indices = np.sort(np.argsort(-np.abs(g))[:10])
        sent = quantize(g[indices], 0.5, ring, rng).dequantized
        memory = memory.submitted(pending_of(round_number=version + 1, indices=indices, sent=sent))
        memory, fate = memory.settle(told(Outcome.APPLIED, version + 1, survivors=ALIVE, opened=(0, 1)))
        assert fate is Fate.USED
        left[indices] += sent
        sizes.append(float(np.abs(memory.residual).max()))
    np.testing.assert_allclose(left + memory.residual, trained, atol=1e-4)
    assert max(sizes[200:]) <= 1.5 * max(sizes[:200])
    assert np.abs(left / 400 - direction).max() < 0.01 * np.abs(direction).max() + 2e-3


def test_a_silo_trains_once_per_model_version() -> None:
    memory = ErrorMemory(np.zeros(6, np.float32))
    assert memory.needs_training(0)
    memory = memory.trained(0, np.ones(6, np.float32))
    assert not memory.needs_training(0)
    memory = memory.submitted(pending_of())
    assert not memory.needs_training(0)
    assert memory.needs_training(1)


def test_a_late_silo_does_not_pile_up_stale_updates() -> None:
    """Three versions pass without a submission: only the newest update counts, and u is as before."""
    memory = ErrorMemory(np.full(6, 0.5, np.float32))
    for version in range(3):
        memory = memory.trained(version, np.full(6, 10.0**version, np.float32))
    np.testing.assert_array_equal(memory.g(), np.full(6, 100.5, np.float32))
    np.testing.assert_array_equal(memory.residual, np.full(6, 0.5, np.float32))


def test_while_the_version_stays_g_is_what_was_trained_less_what_is_pending() -> None:
    memory = ErrorMemory(np.zeros(6, np.float32)).trained(0, np.arange(6, dtype=np.float32))
    memory = memory.submitted(pending_of(sent=np.array([1.0, 3.0], np.float32)))
    np.testing.assert_array_equal(memory.g(), [0, 0, 2, 0, 4, 5])


def test_an_update_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        ErrorMemory(np.zeros(6, np.float32)).trained(0, np.zeros(5, np.float32))


def test_values_of_an_applied_round_with_the_silo_among_the_opened_are_used() -> None:
    memory, fate = memory_with(pending_of()).settle(told(Outcome.APPLIED, survivors=ALIVE, opened=(0, 1)))
    assert fate is Fate.USED
    assert memory.pending == ()
    assert memory.given_up == 0
    assert not memory.residual.any()


@pytest.mark.parametrize(
    "update",
    [
        told(Outcome.APPLIED, survivors=ALIVE, opened=(1,)),
        told(Outcome.APPLIED, survivors=OWN_MISSING, opened=(0, 1)),
        told(Outcome.APPLIED, survivors=None, opened=(0, 1)),
    ],
)
def test_values_of_an_applied_round_without_the_silo_and_without_proof_are_given_up_and_counted(update: Update) -> None:
    memory, fate = memory_with(pending_of()).settle(update)
    assert fate is Fate.GIVEN_UP
    assert memory.pending == ()
    assert memory.given_up == 1
    assert not memory.residual.any()


def test_skipped_on_the_servers_word_alone_changes_nothing() -> None:
    before = memory_with(pending_of())
    memory, fate = before.settle(told(Outcome.SKIPPED))
    assert fate is Fate.UNDECIDED
    assert memory is before


def test_a_skipped_round_uses_nothing_whatever_it_lists_as_opened() -> None:
    assert judge(pending_of(), told(Outcome.SKIPPED, survivors=ALIVE, opened=(0, 1))) is Fate.UNDECIDED


def test_an_update_of_a_round_without_pending_values_changes_nothing() -> None:
    before = memory_with(pending_of())
    assert before.settle(told(Outcome.APPLIED, 2, survivors=ALIVE, opened=(0, 1))) == (before, None)
    elsewhere = replace(told(Outcome.APPLIED, survivors=ALIVE, opened=(0, 1)), run=RunHash(b"x" * 32))
    assert before.settle(elsewhere) == (before, None)


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("u", [OWN_MISSING, OWN_BUFFER_TOO_SMALL, survivors([], [])])
def test_t_signatures_on_a_survivor_set_that_does_not_open_the_silo_bring_its_values_back(
    u: SurvivorSet, outcome: Outcome
) -> None:
    memory, fate = memory_with(pending_of()).settle(
        told(outcome, survivors=u, confirmations=confirmed_by(roster(6)[:5], u), opened=(1,))
    )
    assert fate is Fate.RESTORED
    np.testing.assert_array_equal(memory.residual, [0, 1, 0, 1, 0, 0])
    assert memory.pending == ()
    assert memory.given_up == 0


def test_with_f_above_zero_too_few_openable_buffers_are_proof_too() -> None:
    """o_min = 3 for f = 1: two full buffers open nobody."""
    u = ALIVE
    update = told(Outcome.SKIPPED, survivors=u, confirmations=confirmed_by(roster(6)[:5], u))
    assert judge(pending_of(byzantine=1), update) is Fate.RESTORED
    assert judge(pending_of(byzantine=0), update) is Fate.UNDECIDED


@pytest.mark.parametrize(
    "confirmations",
    [
        confirmed_by(roster(6)[:4], OWN_MISSING),
        confirmed_by([*roster(6)[:4]] * 3, OWN_MISSING),
        confirmed_by([*roster(6)[:4], SiloName("silo-7"), SiloName("silo-8")], OWN_MISSING),
        confirmed_by(roster(6), OWN_MISSING, c2=b"another consensus"),
        confirmed_by(roster(6), OWN_BUFFER_TOO_SMALL),
        tuple((name, STRANGER.sign(confirmation_message(C2, OWN_MISSING))) for name in roster(6)),
        tuple(
            (name, signature)
            for (_, signature), name in zip(confirmed_by(roster(6), OWN_MISSING), [*roster(6)[1:], OWN], strict=True)
        ),
    ],
    ids=["t - 1", "repeated", "foreign holders", "another C2", "another U", "forged", "swapped names"],
)
def test_fewer_than_t_distinct_valid_signatures_on_the_own_c2_and_u_are_no_proof(confirmations: Signatures) -> None:
    assert share_threshold(6) == 5
    update = told(Outcome.SKIPPED, survivors=OWN_MISSING, confirmations=confirmations)
    before = memory_with(pending_of())
    memory, fate = before.settle(update)
    assert fate is Fate.UNDECIDED
    assert memory is before


def test_signatures_on_a_survivor_set_that_opens_the_silo_are_no_proof() -> None:
    update = told(Outcome.SKIPPED, survivors=ALIVE, confirmations=confirmed_by(roster(6), ALIVE))
    assert judge(pending_of(), update) is Fate.UNDECIDED


@pytest.mark.parametrize(
    ("m", "colluders", "byzantine", "needed"),
    [(6, 0, 0, 2), (6, 1, 0, 3), (6, 1, 1, 4), (9, 0, 0, 3), (9, 1, 2, 6), (3, 0, 0, 1), (4, 0, 1, 3)],
)
def test_m_minus_t_plus_one_plus_c_plus_f_statements_bring_values_back_and_one_fewer_does_not(
    m: int, colluders: int, byzantine: int, needed: int
) -> None:
    assert needed == m - share_threshold(m) + 1 + colluders + byzantine
    pending = pending_of(m, colluders=colluders, byzantine=byzantine)
    names = roster(m)[::-1]
    enough = told(Outcome.SKIPPED, statements=stated_by(names[:needed]))
    one_fewer = told(Outcome.SKIPPED, statements=stated_by(names[: needed - 1]))
    assert judge(pending, enough) is Fate.RESTORED
    assert judge(pending, one_fewer) is Fate.UNDECIDED


@pytest.mark.parametrize(
    "statements",
    [
        stated_by(roster(6)[:1]) * 6,
        stated_by(roster(6), round_number=2),
        stated_by(roster(6), run=RunHash(b"x" * 32)),
        stated_by([SiloName("silo-6"), SiloName("silo-7"), SiloName("silo-8")]),
        tuple(replace(s, signature=STRANGER.sign(statement_message(RUN, 1, s.silo))) for s in stated_by(roster(6))),
        tuple(replace(s, round=1) for s in stated_by(roster(6), round_number=2)),
        tuple(replace(s, silo=n) for s, n in zip(stated_by(roster(6)), [*roster(6)[1:], OWN], strict=True)),
        tuple(replace(s, signature=b"") for s in stated_by(roster(6))),
    ],
    ids=["duplicate", "other round", "other run", "foreign", "forged", "relabelled round", "swapped names", "unsigned"],
)
def test_forged_duplicate_and_foreign_statements_do_not_count(statements: tuple[Statement, ...]) -> None:
    assert judge(pending_of(), told(Outcome.SKIPPED, statements=statements)) is Fate.UNDECIDED


def test_a_confirmation_does_not_pass_for_a_statement() -> None:
    confused = tuple(Statement(n, RUN, 1, s) for n, s in confirmed_by(roster(6), OWN_MISSING))
    assert judge(pending_of(), told(Outcome.SKIPPED, statements=confused)) is Fate.UNDECIDED


def test_proof_that_comes_rounds_later_brings_the_old_values_back_once() -> None:
    memory = ErrorMemory(np.zeros(6, np.float32)).trained(0, np.ones(6, np.float32))
    memory = memory.submitted(pending_of(round_number=1))
    memory, _ = memory.settle(told(Outcome.SKIPPED, 1))
    memory = memory.submitted(pending_of(round_number=2, indices=np.array([0, 5])))
    memory, fate = memory.settle(told(Outcome.APPLIED, 2, survivors=ALIVE, opened=(0, 1)))
    assert fate is Fate.USED
    proof = told(Outcome.SKIPPED, 1, statements=stated_by(roster(6)))
    memory, fate = memory.settle(proof)
    assert fate is Fate.RESTORED
    np.testing.assert_array_equal(memory.residual, [0, 1, 1, 1, 1, 0])
    assert memory.settle(proof) == (memory, None)


def test_values_given_up_are_counted_and_never_come_back() -> None:
    memory = memory_with(pending_of()).give_up(1)
    assert memory.given_up == 1
    assert memory.pending == ()
    again, fate = memory.settle(told(Outcome.SKIPPED, statements=stated_by(roster(6))))
    assert fate is None
    assert again is memory
    assert memory.give_up(1).given_up == 1


def test_used_or_given_up_never_changes_the_residual_so_a_false_word_only_loses_values() -> None:
    pending = pending_of()
    for update in (told(Outcome.APPLIED, survivors=ALIVE, opened=(0,)), told(Outcome.APPLIED)):
        memory, _ = memory_with(pending).settle(update)
        assert not memory.residual.any()


def test_a_whole_skipped_round_with_honest_holders_gives_everything_back() -> None:
    """Of every buffer one submission comes too late: t holders confirm, nobody is opened, and g is as before the round."""
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    before = {silo.name: silo.memory.g().copy() for silo in federation.members}
    late = [buffer[0] for buffer in federation.by_buffer()]
    for silo in federation.members:
        if silo not in late:
            federation.submit(silo)
            continue
        federation.submit_in_vain(silo)
    federation.deadline()
    for silo in federation.members:
        if not federation.over:
            federation.confirm(silo)
    update = federation.finish()
    assert update.outcome is Outcome.SKIPPED
    for silo in federation.members:
        assert silo.memory.pending == ()
        assert silo.memory.given_up == 0
        np.testing.assert_allclose(silo.memory.g(), before[silo.name], atol=1e-6)
