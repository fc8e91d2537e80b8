"""The diagrams of docs/protocol.md are the transition tables; rounds take each edge of theirs and no other.

That a run does so with its states is in test_server_run.py.
"""

from __future__ import annotations

import pytest

from docs.tools.state_diagram import PAGE, drawn
from fedrep.protocol.messages import Event, Phase
from fedrep.protocol.round_effects import Effect
from fedrep.protocol.server_round import TRANSITIONS, ServerRound
from tests.protocol.federation import Federation
from tests.protocol.refusal import abort


def test_the_page_shows_the_diagrams_as_they_are_drawn_now() -> None:
    page = PAGE.read_text()
    assert page == drawn(page), "run: python -m docs.tools.state_diagram --write"


def play_every_way(federation: Federation) -> None:
    """One undisturbed round, each deadline, each abort, and the two ends that come without waiting."""
    federation.play()
    federation.open_round()
    federation.deadline()
    for phase in (Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL):
        federation.until(phase).receive(abort())
    federation.open_round()
    for silo in federation.members[:-1]:
        federation.propose(silo)
    federation.deadline()
    federation.submit(federation.members[0])
    federation.deadline()
    federation.deadline()
    federation.until(Phase.REVEAL)
    federation.deadline()
    federation.open_round(list(federation.silos)[:3])
    for silo in federation.members:
        federation.propose(silo)
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
    assert taken == {(phase, event, target) for (phase, event), row in TRANSITIONS.items() for target in row.to}
