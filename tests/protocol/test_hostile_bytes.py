"""Whatever bytes stand in a message: it is accepted or refused with an error of ours, and a refusal changes nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrep.errors import FedrepError
from fedrep.protocol.manifests import RunHash, SiloName
from fedrep.protocol.messages import Event, Phase, RevealedShare, Secret
from tests.protocol.federation import Federation
from tests.protocol.lying_server import submitted_of
from tests.protocol.refusal import snapshot
from tests.protocol.test_propose import proposal_of

EXAMPLES = int(os.environ.get("FEDREP_FUZZ_EXAMPLES", "40"))
BYTES = st.binary(max_size=140)
NAMES = st.one_of(st.sampled_from(["silo-00", "silo-04"]), st.text(st.characters(exclude_categories=()), max_size=4))
PHASES = (Phase.PROPOSE, Phase.SUBMIT, Phase.CONFIRM, Phase.REVEAL)


@pytest.fixture(scope="module", params=["ed25519", "p256"])
def rounds(request: pytest.FixtureRequest) -> dict[Phase, tuple[Federation, Event]]:
    """For every phase a federation in it, and the honest message its last silo would send next."""
    made: dict[Phase, tuple[Federation, Event]] = {}
    for phase in PHASES:
        federation = Federation.of(5, key_kind=request.param)
        server = federation.until(phase)
        silo = federation.members[-1]
        if phase is Phase.PROPOSE:
            made[phase] = federation, proposal_of(federation, silo)
        elif phase is Phase.SUBMIT:
            assert silo.proposed is not None
            seen = server.consensus_for(silo.name)
            made[phase] = federation, submitted_of(silo.proposed, seen, silo).message
        elif phase is Phase.CONFIRM:
            assert silo.submitted is not None
            made[phase] = federation, silo.submitted.on_survivors(server.survivors()).message
        else:
            assert silo.confirmed is not None
            made[phase] = federation, silo.confirmed.on_signatures(server.confirmations()).message
    return made


def deface(data: st.DataObject, event: Event) -> Event:
    """One field, or one field of the record, replaced by anything of its type."""
    fields = list(event.__dataclass_fields__)
    name = data.draw(st.sampled_from(fields))
    value = getattr(event, name)
    if name == "silo":
        return replace(event, silo=SiloName(data.draw(NAMES)))  # type: ignore[arg-type]
    if name == "run":
        return replace(event, run=RunHash(data.draw(BYTES)))  # type: ignore[arg-type]
    if name == "round":
        return replace(event, round=data.draw(st.integers(-(2**70), 2**70)))  # type: ignore[arg-type]
    if name == "record":
        part = data.draw(st.sampled_from(list(value.__dataclass_fields__)))
        drawn = SiloName(data.draw(NAMES)) if part == "silo" else data.draw(BYTES)
        return replace(event, record=replace(value, **{part: drawn}))
    if name == "shares":
        share = RevealedShare(SiloName(data.draw(NAMES)), data.draw(st.sampled_from(Secret)), data.draw(BYTES))
        return replace(event, shares=(*value[1:], share))  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return replace(event, **{name: tuple(data.draw(st.lists(BYTES, max_size=6)))})  # type: ignore[arg-type]
    return replace(event, **{name: data.draw(BYTES)})  # type: ignore[arg-type]


@pytest.mark.parametrize("sent_in", PHASES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_defaced_message_is_refused_with_an_error_of_ours(
    sent_in: Phase, rounds: dict[Phase, tuple[Federation, Event]], data: st.DataObject
) -> None:
    federation = rounds[sent_in][0]
    event = deface(data, rounds[data.draw(st.sampled_from(PHASES))][1])
    before = snapshot(federation.round)
    try:
        federation.round.receive(event)
    except FedrepError:
        assert snapshot(federation.round) == before
