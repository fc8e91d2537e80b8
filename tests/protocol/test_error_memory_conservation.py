"""Over rounds applied, skipped, lost or lied about, what was trained is applied, kept, pending or given up: once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrep.protocol.error_memory import ErrorMemory
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import (
    Outcome,
    Phase,
    Update,
)
from tests.protocol.federation import Federation
from tests.protocol.pending_values import (
    ALIVE,
    OWN_MISSING,
    confirmed_by,
    pending_of,
    roster,
    stated_by,
    told,
)

Step = tuple[str, str]
PATHS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "no submission", "restart before submission"]),
        st.sampled_from(["used", "left out", "proof 1", "proof 2", "skipped", "lost answer"]),
    ),
    min_size=1,
    max_size=25,
)


class Books:
    """One silo's memory beside a ledger in exact arithmetic: values are multiples of 2^-10, so float32 sums are exact too."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.memory = ErrorMemory(np.zeros(6, np.float32))
        self.version = 0
        self.round = 0
        self.folded = np.zeros(6)
        self.applied = np.zeros(6)
        self.lost = np.zeros(6)
        self.opened: Counter[int] = Counter()
        self.sent: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
        self.truth: dict[int, str] = {}

    def draw(self, size: int) -> NDArray[np.float32]:
        return (self.rng.integers(-1024, 1025, size=size) / 1024).astype(np.float32)

    def play(self, step: Step) -> None:
        taking_part, ending = step
        self.round += 1
        if self.memory.needs_training(self.version):
            self.memory = self.memory.trained(self.version, self.draw(6))
        if taking_part == "restart before submission":
            self.memory = replace(
                self.memory, update=None, trained_version=None if self.memory.update is not None else self.version
            )
        elif taking_part == "submit":
            self.submit()
            self.end(ending)
        if ending in ("used", "left out"):
            self.version += 1

    def submit(self) -> None:
        if self.memory.update is not None:
            self.folded += self.memory.update
        indices = np.sort(self.rng.choice(6, size=3, replace=False))
        sent = (self.memory.g()[indices] - self.draw(3) / 8).astype(np.float32)
        self.sent[self.round] = (indices, sent)
        self.memory = self.memory.submitted(pending_of(round_number=self.round, indices=indices, sent=sent))

    def end(self, ending: str) -> None:
        self.truth[self.round] = ending
        indices, sent = self.sent[self.round]
        if ending == "used":
            self.applied[indices] += sent
            self.opened[self.round] += 1
        if ending == "left out":
            self.lost[indices] += sent
        if ending != "lost answer":
            self.answer(self.round)

    def answer(self, number: int) -> None:
        """The server answers about a round, as often as it is asked; only true proofs exist."""
        ending = self.truth[number]
        updates = {
            "used": told(Outcome.APPLIED, number, survivors=ALIVE, opened=(0, 1)),
            "left out": told(Outcome.APPLIED, number, survivors=ALIVE, opened=(1,)),
            "proof 1": told(
                Outcome.SKIPPED, number, survivors=OWN_MISSING, confirmations=confirmed_by(roster(6)[:5], OWN_MISSING)
            ),
            "proof 2": told(Outcome.SKIPPED, number, statements=stated_by(roster(6)[4:], number)),
            "skipped": told(Outcome.SKIPPED, number),
            "lost answer": told(Outcome.SKIPPED, number),
        }
        self.memory, _ = self.memory.settle(updates[ending])

    def check(self) -> None:
        pending = np.zeros(6)
        for item in self.memory.pending:
            pending[item.indices] += item.sent
        np.testing.assert_allclose(self.folded, self.memory.residual + self.applied + self.lost + pending, atol=1e-5)
        assert all(count == 1 for count in self.opened.values())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=PATHS, seed=st.integers(0, 2**32 - 1), asked_again=st.lists(st.integers(1, 25), max_size=8))
def test_over_any_sequence_of_rounds_what_was_trained_is_applied_kept_pending_or_given_up(
    path: list[Step], seed: int, asked_again: list[int]
) -> None:
    books = Books(seed)
    for step in path:
        books.play(step)
        books.check()
    for number in asked_again:
        if number in books.truth:
            books.answer(number)
            books.check()
    given_up = books.memory.given_up
    for item in books.memory.pending:
        books.lost[item.indices] += item.sent
        books.memory = books.memory.give_up(item.round)
        given_up += 1
    books.check()
    assert books.memory.given_up == given_up
    assert books.memory.pending == ()


@pytest.mark.parametrize("seed", range(4))
def test_no_contribution_counts_twice_in_a_federation_with_random_dropouts(seed: int) -> None:
    """Real rounds, real proofs: what was trained equals what the opened buffers held plus what the silos keep or gave up."""
    rng = np.random.default_rng(seed)
    federation = Federation.of(6, parameters=24, coordinates=12, seed=seed)
    folded, applied, lost = ({name: np.zeros(24) for name in federation.silos} for _ in range(3))
    outcomes: set[Outcome] = set()
    for _ in range(8):
        before = {name: silo.memory for name, silo in federation.silos.items()}
        unlucky = rng.choice(len(federation.silos), size=int(rng.integers(0, 4)), replace=False)
        phases = (Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL)
        gone = {list(federation.silos)[n]: phases[int(rng.integers(3))] for n in unlucky}
        update = federation.play(silent_from=gone)
        outcomes.add(update.outcome)
        opened = opened_by(update)
        sent = {}
        for name, silo in federation.silos.items():
            if silo.submitted is None:
                assert name not in opened
                assert silo.memory.residual is before[name].residual
                continue
            folded[name] += federation.unsent.pop(name, 0.0)
            indices, sent[name] = silo.submitted.agreement.indices, silo.submitted.values.dequantized
            if name in opened:
                applied[name][indices] += sent[name]
            elif silo.memory.given_up > before[name].given_up:
                lost[name][indices] += sent[name]
            kept = silo.memory.residual.astype(float)
            for item in silo.memory.pending:
                kept[item.indices] += item.sent
            np.testing.assert_allclose(folded[name], applied[name] + lost[name] + kept, atol=1e-5)
        result = federation.round.result
        if opened and result is not None and result.combined is not None:
            np.testing.assert_allclose(result.combined.vector, np.mean([sent[name] for name in opened], axis=0), atol=1e-5)
    assert outcomes == {Outcome.APPLIED, Outcome.SKIPPED}


def opened_by(update: Update) -> set[SiloName]:
    if update.outcome is not Outcome.APPLIED or update.evidence.survivors is None:
        return set()
    return {survivor.silo for number in update.evidence.opened for survivor in update.evidence.survivors.buffers[number]}
