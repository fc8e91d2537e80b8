"""docs/protocol.md shows the tables of both sides as they are, and rounds take each edge of the server's and no other."""

from __future__ import annotations

import pytest

from docs.tools.state_diagram import PAGE, PARTS, marks, page_with_parts
from fedrep.protocol.messages import Away, Back, Event, Phase
from fedrep.protocol.round_effects import Effect
from fedrep.protocol.server_round import TRANSITIONS, ServerRound
from tests.protocol.federation import Federation
from tests.protocol.refusal import abort


def test_the_page_shows_both_tables_as_they_are_now() -> None:
    page = PAGE.read_text()
    for part in PARTS:
        assert [page.count(mark) for mark in marks(part)] == [1, 1]
    assert page == page_with_parts(page), "run: python -m docs.tools.state_diagram --write"


def play_every_way(federation: Federation) -> None:
    """One undisturbed round, each deadline, each abort, and the two ends that come without waiting."""
    federation.play()
    federation.open_round()
    federation.deadline()
    name = federation.members[0].name
    for phase in (Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL):
        played = federation.until(phase)
        for event in (Away(name, "left"), Back(name), abort()):
            played.receive(event)
    federation.open_round()
    for silo in federation.members[:-1]:
        federation.propose(silo)
    federation.deadline()
    federation.submit(federation.members[0])
    federation.deadline()
    federation.deadline()
    federation.until(Phase.REVEAL)
    federation.deadline()
    federation.until(Phase.SUBMIT)
    for buffer in federation.by_buffer():
        federation.submit(buffer[0])
    federation.deadline()
    for buffer in federation.by_buffer():
        federation.confirm(buffer[0])
    for silo in federation.members:
        if silo.submitted is None and not federation.over:
            federation.submit_in_vain(silo)
            federation.confirm(silo)


def play_abstentions(*, proposing_first: bool, proposing_last: bool) -> None:
    """What all but the last silo do, propose or abstain, and what the last does."""
    federation = Federation.of(5, quorum=4)
    federation.open_round()
    *others, silo = federation.members
    for each in others:
        (federation.propose if proposing_first else federation.abstain)(each)
    (federation.propose if proposing_last else federation.abstain)(silo)


def test_every_edge_is_taken_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[Phase, type, Phase]] = set()
    original = ServerRound.receive

    def watched(self: ServerRound, event: Event) -> list[Effect]:
        before = self.phase
        effects = original(self, event)
        taken.add((before, type(event), self.phase))
        return effects

    monkeypatch.setattr(ServerRound, "receive", watched)
    play_every_way(Federation.of(5, quorum=4))
    play_abstentions(proposing_first=False, proposing_last=True)
    play_abstentions(proposing_first=True, proposing_last=False)
    play_abstentions(proposing_first=False, proposing_last=False)
    assert taken == {(phase, event, target) for (phase, event), row in TRANSITIONS.items() for target in row.to}
