"""kill -9 at any moment, as a property: a silo is killed before every effect it carries out, and between two files of one save.

It starts again over what its disk holds, while the others play on. Whatever the moment: it says nothing twice in one round, keeps
its word, pays for what it sent, contributes no value twice, and comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Abstention, Confirmation, Outcome, Phase, Proposal, Reveal, Statement, Submission, Update
from fedrep.protocol.silo_effects import GetConsensus, GetUpdate, Save
from fedrep.protocol.silo_machine import SiloMachine
from fedrep.protocol.silo_table import Phase as SiloPhase
from fedrep.secagg.keys import Ed25519VerifyKey
from tests.protocol.federation import Federation, Silo
from tests.protocol.theatre import Failures, Silence, Theatre

ROUNDS = 3
VICTIM = 0


def federation() -> Federation:
    """Four silos in pairs; with 16 parameters a whole story takes milliseconds."""
    return Federation.of(4, parameters=16, coordinates=8, buffer_size=2, quorum=3, seed=5)


@dataclass(frozen=True)
class Story:
    """Who falls silent, and whose training fails."""

    silence: Silence = field(default_factory=dict)
    failures: Failures = ()


def told(fuse: int | None, story: Story, *, last_words: bool = False) -> Theatre:
    stage = Theatre(federation(), story.silence, failures=story.failures, deliver_last_words=last_words)
    victim_of(stage).player.light(fuse)
    stage.play(ROUNDS)
    return stage


def victim_of(stage: Theatre) -> Silo:
    return list(stage.federation.silos.values())[VICTIM]


@pytest.fixture(autouse=True)
def signatures_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four silos and the server ask the same of each signature, in thousands of stories: the first answer stands for all."""
    once = cache(Ed25519VerifyKey.verify)
    monkeypatch.setattr(Ed25519VerifyKey, "verify", lambda key, signature, message: once(key, bytes(signature), bytes(message)))


NAME, MATE, OTHER = federation().run.silos[:3]
STORIES = {
    "nobody": Story(),
    "one proposes nothing": Story({(2, OTHER): Phase.PROPOSE}),
    "one submits nothing": Story({(2, MATE): Phase.SUBMIT}),
    "two submit nothing": Story({(2, MATE): Phase.SUBMIT, (2, OTHER): Phase.SUBMIT}),
    "two confirm nothing": Story({(2, MATE): Phase.CONFIRM, (2, OTHER): Phase.CONFIRM}),
    "two reveal nothing": Story({(2, MATE): Phase.REVEAL, (2, OTHER): Phase.REVEAL}),
    "it abstains": Story(failures={(2, NAME)}),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_silo_killed_at_any_moment_breaks_no_promise(story: Story) -> None:
    """Its last message is lost with it, or arrives all the same: both are played."""
    every_moment(story)


def test_a_silo_killed_under_any_pattern_of_silence_breaks_no_promise() -> None:
    """All 125 ways in which the three others can fall silent in round 2, each killed at every 24th point, another 24th from
    pattern to pattern: together they meet every point several times."""
    others = federation().run.silos[1:]
    phases = (None, Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL)
    for number, pattern in enumerate(product(phases, repeat=len(others))):
        silence = {(2, name): phase for name, phase in zip(others, pattern, strict=True) if phase is not None}
        points = victim_of(told(None, Story(silence))).player.points
        for fuse in points[number % 24 :: 24]:
            breaks_no_promise(told(fuse, Story(silence), last_words=number % 2 == 1))


def every_moment(story: Story) -> None:
    points = victim_of(told(None, story)).player.points
    assert len(points) > 50
    for fuse in points:
        stage = told(fuse, story)
        breaks_no_promise(stage)
        if stage.last_words:
            breaks_no_promise(told(fuse, story, last_words=True))


FORGOTTEN = {
    "_propose": "nobody",
    "_abstain": "it abstains",
    "_agree": "nobody",
    "_reveal": "two reveal nothing",
    "_renounce": "two confirm nothing",
}


@pytest.mark.parametrize("action", FORGOTTEN)
def test_a_save_that_is_forgotten_is_found_out(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the property can fail: one action sends without its state being written first."""
    careful = getattr(SiloMachine, action)

    def careless(machine: SiloMachine, *arguments: object) -> object:
        def forget(**parts: object) -> Save:
            machine.state = replace(machine.state, **parts)  # type: ignore[arg-type]
            return machine._saved

        with monkeypatch.context() as patch:
            patch.setattr(machine, "_save", forget)
            return careful(machine, *arguments)

    monkeypatch.setattr(SiloMachine, action, careless)
    with pytest.raises(AssertionError):
        every_moment(STORIES[FORGOTTEN[action]])


def breaks_no_promise(stage: Theatre) -> None:
    victim = victim_of(stage)
    assert len(stage.killed_in) == 1
    for silo in stage.federation.silos.values():
        says_nothing_twice(silo)
        had_it_on_disk_first(silo)
        keeps_its_word(silo)
        pays_for_what_it_sent(silo)
    contributes_nothing_twice(stage, victim)
    comes_back(stage, victim)


def says_nothing_twice(silo: Silo) -> None:
    """One proposal or abstention, submission, confirmation and reveal per round, over all its lives; rounds only go up."""
    for kind in (Proposal | Abstention, Submission, Confirmation, Reveal):
        rounds = [message.round for message in silo.player.wire if isinstance(message, kind)]
        assert rounds == sorted(set(rounds)), (kind, rounds)


def had_it_on_disk_first(silo: Silo) -> None:
    for message, disk in zip(silo.player.wire, silo.player.disk_when_said, strict=True):
        journal, pending = disk.journal, disk.memory.pending
        match message:
            case Proposal() | Abstention() | GetConsensus() | Confirmation():
                assert journal.last_round == message.round
            case Submission():
                assert pending is not None
                assert pending.place.round == message.round
            case Reveal():
                assert message.round in journal.revealed
            case GetUpdate(statement=Statement()):
                assert message.round in journal.renounced


def keeps_its_word(silo: Silo) -> None:
    """Who renounced revealing in a round has not revealed there, and never does."""
    revealed = {message.round for message in silo.player.wire if isinstance(message, Reveal)}
    renounced = {m.round for m in silo.player.wire if isinstance(m, GetUpdate) and m.statement is not None}
    assert not revealed & renounced
    assert revealed <= set(silo.player.disk.journal.revealed)
    assert renounced <= set(silo.player.disk.journal.renounced)


def pays_for_what_it_sent(silo: Silo) -> None:
    drawn = {message.coordinates for message in silo.player.wire if isinstance(message, Proposal)}
    assert silo.player.disk.journal.ledger.rounds >= len(drawn)


def contributes_nothing_twice(stage: Theatre, victim: Silo) -> None:
    """Each memory is one of the three the protocol allows, and values that were opened are never the silo's to send again."""
    submitted = {message.round for message in victim.player.wire if isinstance(message, Submission)}
    assert submitted <= victim.player.submitted.keys(), "what was sent had left the memory on disk before"
    opened = {update.round for update in stage.results if victim.name in opened_by(update)}
    sent_again: set[int] = set()
    for number, pending in victim.player.submitted.items():
        after = victim.player.settled.get(number)
        if after is None:
            assert number == max(victim.player.submitted), "decided before the next submission"
            continue
        g, indices = pending.contribution.g, pending.indices
        worst = victim.player.worst[number]
        possible = {"given up": worst, "closed": victim.player.before[number], "opened": g.copy()}
        possible["opened"][indices] = np.clip(g[indices], -pending.clip_range, pending.clip_range) - pending.sent
        fates = {fate for fate, residual in possible.items() if np.array_equal(after.residual, residual)}
        assert fates, f"round {number} left a memory that no fate explains"
        assert number not in opened or fates != {"closed"}, f"round {number} was opened, and its values were taken back"
        training = pending.contribution.training
        assert training not in sent_again, f"training {training} was sent again although it may have been opened"
        if "closed" not in fates or number in opened:
            sent_again.add(training)


def opened_by(update: Update) -> set[SiloName]:
    survivors = update.evidence.survivors
    if update.outcome is not Outcome.APPLIED or survivors is None:
        return set()
    return {each.silo for number in update.evidence.opened for each in survivors.buffers[number]}


def comes_back(stage: Theatre, victim: Silo) -> None:
    """It proposes again in the second round after its death at the latest, and ends with the server's model."""
    assert victim.machine.phase is SiloPhase.ENDED
    model = victim.machine.state.model
    assert model is not None
    assert model.hash == stage.federation.model.state.hash
    proposed = [message.round for message in victim.player.wire if isinstance(message, Proposal)]
    assert stage.killed_in[0] > ROUNDS - 2 or ROUNDS in proposed
