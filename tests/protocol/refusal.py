"""What every refusal must look like: the exact error, its stable reason, and a round that is as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrep.errors import FedrepError
from fedrep.protocol.messages import (
    Aborted,
    Confirmation,
    DeadlinePassed,
    Event,
    Phase,
    Proposal,
    Record,
    Reveal,
    Submission,
)
from fedrep.protocol.server_round import ServerRound
from fedrep.protocol.share_book import ShareBook
from tests.protocol.federation import Federation, Silo


def snapshot(value: object) -> object:
    """All of the state below a value, copied into a form that `==` compares."""
    if isinstance(value, (ServerRound, ShareBook)):
        return {name: snapshot(item) for name, item in vars(value).items()}
    if isinstance(value, dict):
        return [(key, snapshot(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    return value


def assert_refused(server: ServerRound, event: Event, error: type[FedrepError], reason: str) -> FedrepError:
    before = snapshot(server)
    with pytest.raises(FedrepError) as caught:
        server.receive(event)
    assert type(caught.value) is error, repr(caught.value)
    assert caught.value.reason == reason
    assert snapshot(server) == before, "a refused message changed the round"
    return caught.value


def assert_ignored(server: ServerRound, event: Event) -> None:
    before = snapshot(server)
    assert server.receive(event) == []
    assert snapshot(server) == before


def message_of(federation: Federation, silo: Silo, kind: type) -> Event:
    """A message of this kind with a right header and nothing right inside: for phases that do not look inside."""
    assert federation.manifest is not None
    head = (silo.name, federation.manifest.run, federation.manifest.round)
    if kind is Proposal:
        record = Record(silo.name, b"", b"", b"", b"", b"")
        return Proposal(*head, b"", record, b"", (), (), ())
    if kind is Submission:
        return Submission(*head, b"", b"")
    if kind is Confirmation:
        return Confirmation(*head, b"")
    assert kind is Reveal
    return Reveal(*head, ())


def sign_again(federation: Federation, silo: Silo, proposal: Proposal, **record_changes: bytes) -> Proposal:
    """The proposal with other contents in its record, validly signed: only the changed field can be what is refused."""
    record = replace(proposal.record, **record_changes)  # type: ignore[arg-type]
    signature = silo.signing_key.sign(record.digest(federation.round.c1))
    return replace(proposal, record=replace(record, signature=signature))


def but(**changes: object) -> Callable[[Federation, Silo, Any], Any]:
    """A forger: the honest message with other fields; a function is given the message it changes."""

    def forge(_federation: Federation, _silo: Silo, message: Any) -> Any:
        return replace(message, **{name: new(message) if callable(new) else new for name, new in changes.items()})

    return forge


def other_deadlines(phase: Phase) -> list[DeadlinePassed]:
    return [DeadlinePassed(other) for other in Phase if other is not phase]


def abort(reason: str = "stopped by an admin") -> Aborted:
    return Aborted(reason)
