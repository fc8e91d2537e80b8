"""What becomes of values that were sent: u is the worst case until proof says more, and the server's word is no proof."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.errors import InvalidInputError
from fedrep.protocol.error_memory import Contribution, ErrorMemory, Fate, Pending, Place, judge
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import (
    Evidence,
    Phase,
    Signatures,
    Statement,
    Submission,
    Survivor,
    SurvivorSet,
    confirmation_message,
    statement_message,
)
from fedrep.protocol.silo_effects import GetConsensus
from fedrep.protocol.thresholds import share_threshold
from fedrep.secagg.keys import SigningKey, generate_signing_key
from tests.protocol.federation import Federation

RUN = RunHash(b"r" * 32)
C1 = b"c1" * 16
C2 = b"c" * 32
KEYS: dict[SiloName, SigningKey] = {SiloName(f"silo-{n}"): generate_signing_key("ed25519") for n in range(9)}
STRANGER = generate_signing_key("ed25519")
OWN = SiloName("silo-0")
I = np.array([1, 3])  # noqa: E741 - the paper's name


def roster(m: int = 6) -> list[SiloName]:
    return list(KEYS)[:m]


def place_of(m: int = 6, *, byzantine: int = 0, colluders: int = 0) -> Place:
    """Own buffer: number 0 of two, with half of the silos in each."""
    holders = {name: KEYS[name].verify_key for name in roster(m)}
    return Place(RUN, 1, OWN, 0, C1, C2, colluders + 2, byzantine, colluders, holders)


def survivors(*buffers: list[SiloName]) -> SurvivorSet:
    return SurvivorSet(tuple(tuple(Survivor(name, b"") for name in buffer) for buffer in buffers))


def confirmed_by(names: list[SiloName], u: SurvivorSet, c2: bytes = C2) -> Signatures:
    return tuple((name, KEYS[name].sign(confirmation_message(c2, u))) for name in names)


def stated_by(names: list[SiloName], round_number: int = 1, run: RunHash = RUN, c1: bytes = C1) -> tuple[Statement, ...]:
    return tuple(Statement(n, run, round_number, KEYS[n].sign(statement_message(run, round_number, c1, n))) for n in names)


ALIVE = survivors(roster()[:3], roster()[3:])
OWN_MISSING = survivors(roster()[1:3], roster()[3:])
TOO_SMALL = survivors(roster()[:1], roster()[3:])


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def memory() -> ErrorMemory:
    """u was (1, 2, 3, 4), the training gave (10, 20, 30, 40); on I = (1, 3) the silo sent 21.5 and, clipped to 40, 39.9."""
    contribution = Contribution(7, 3, floats(11, 22, 33, 44))
    pending = Pending(place_of(), contribution, 40.0, I, floats(21.5, 39.9))
    return ErrorMemory(floats(1, 2, 3, 4), pending)


def test_opened_values_leave_their_rounding_error_on_i_and_g_elsewhere() -> None:
    after = memory().settle(Fate.OPENED)
    np.testing.assert_allclose(after.residual, [11, 0.5, 33, 0.1], atol=1e-5)
    assert after.clipped_mass == pytest.approx(4.0), "what lay outside +-R is given up, and counted for the operator"
    assert (after.pending, after.given_up) == (None, 0)


def test_closed_values_leave_the_memory_as_it_was_before_the_training() -> None:
    after = memory().settle(Fate.CLOSED)
    np.testing.assert_array_equal(after.residual, [1, 2, 3, 4])
    assert (after.pending, after.given_up) == (None, 0)


def test_without_proof_nothing_of_the_training_stays_and_nothing_on_i() -> None:
    """Else a silo that is kept from being opened grows loud enough to be read in one sum."""
    after = memory().settle(Fate.GIVEN_UP)
    np.testing.assert_array_equal(after.residual, [1, 0, 3, 0])
    assert (after.pending, after.given_up) == (None, 1)
    before = memory()
    assert before.settle(Fate.UNKNOWN) is before


def test_g_is_the_residual_and_the_update_and_must_fit() -> None:
    small = ErrorMemory(floats(1, 2))
    np.testing.assert_array_equal(small.contribution(1, 0, floats(3, 4)).g, [4, 6])
    with pytest.raises(InvalidInputError):
        small.contribution(1, 0, floats(1, 2, 3))


def test_a_submission_leaves_the_worst_case_and_waits_for_its_fate_before_the_next() -> None:
    federation = Federation.of(6)
    federation.until(Phase.SUBMIT)
    silo = federation.members[0]
    silo.memory = ErrorMemory(silo.rng.normal(size=64).astype(np.float32))
    before, g = silo.memory.residual.copy(), silo.g.copy()
    silo.answer(GetConsensus, federation.round.consensus_for(silo.name))
    after, submitted = silo.memory, silo.submitted
    assert submitted is not None
    assert after.pending is not None
    assert silo.said(Submission).round == 1
    indices = submitted.agreement.indices
    off = np.setdiff1d(np.arange(64), indices)
    assert not after.residual[indices].any()
    np.testing.assert_array_equal(after.residual[off], before[off])
    np.testing.assert_array_equal(after.before.dense(), before)
    np.testing.assert_array_equal(after.pending.contribution.g, g)
    with pytest.raises(InvalidInputError, match="must be decided"):
        after.submitted(after.pending.contribution, submitted)


@pytest.mark.parametrize(("u", "fate"), [(ALIVE, Fate.OPENED), (OWN_MISSING, Fate.CLOSED), (TOO_SMALL, Fate.CLOSED)])
def test_t_signatures_on_u_decide_whether_the_silo_was_opened(u: SurvivorSet, fate: Fate) -> None:
    t = share_threshold(6)
    assert judge(place_of(), Evidence(u, confirmed_by(roster()[:t], u))) is fate
    assert judge(place_of(), Evidence(u, confirmed_by(roster()[: t - 1], u))) is Fate.UNKNOWN


@pytest.mark.parametrize("u", [ALIVE, OWN_MISSING])
def test_signatures_that_do_not_fit_prove_nothing(u: SurvivorSet) -> None:
    right = confirmed_by(roster(), u)
    forged: dict[str, Signatures] = {
        "one holder six times": (right[0],) * 6,
        "another U": confirmed_by(roster(), survivors(roster()[:3], roster()[4:])),
        "another C2": confirmed_by(roster(), u, b"x" * 32),
        "strangers": tuple((SiloName(f"stranger-{n}"), STRANGER.sign(confirmation_message(C2, u))) for n in range(6)),
        "names of others": tuple((name, STRANGER.sign(confirmation_message(C2, u))) for name in roster()),
    }
    for what, signatures in forged.items():
        assert judge(place_of(), Evidence(u, signatures)) is Fate.UNKNOWN, what


@pytest.mark.parametrize(("m", "byzantine", "colluders"), [(6, 0, 0), (6, 0, 1), (9, 1, 1)])
def test_so_many_renunciations_that_t_shares_cannot_exist_prove_that_nothing_was_opened(
    m: int, byzantine: int, colluders: int
) -> None:
    place = place_of(m, byzantine=byzantine, colluders=colluders)
    needed = m - share_threshold(m) + 1 + colluders + byzantine
    assert judge(place, Evidence(statements=stated_by(roster(m)[:needed]))) is Fate.CLOSED
    assert judge(place, Evidence(statements=stated_by(roster(m)[: needed - 1]))) is Fate.UNKNOWN


@pytest.mark.parametrize(
    "statements",
    [
        stated_by(roster(), round_number=2),
        stated_by(roster(), run=RunHash(b"x" * 32)),
        stated_by(roster(), c1=b"x" * 32),
        stated_by(roster()[:1]) * 6,
        tuple(replace(each, signature=stated_by(roster()[:1])[0].signature) for each in stated_by(roster())),
    ],
    ids=["another round", "another run", "another manifest", "one holder", "one signature"],
)
def test_statements_that_do_not_fit_prove_nothing(statements: tuple[Statement, ...]) -> None:
    assert judge(place_of(), Evidence(statements=statements)) is Fate.UNKNOWN


@pytest.mark.parametrize("word", [{}, {"opened": (0, 1)}, {"survivors": ALIVE, "opened": (0, 1)}, {"survivors": OWN_MISSING}])
def test_the_servers_word_alone_proves_nothing(word: dict[str, Any]) -> None:
    assert judge(place_of(), Evidence(**word)) is Fate.UNKNOWN
