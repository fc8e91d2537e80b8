"""Who is told about finished calls; a silo's bytes are counted for the run they were about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedrep_server.calls.permissions import FEDERATION
from fedrep_server.rounds.coordinator import Coordinator

WAITING = (f"{FEDERATION}Join", f"{FEDERATION}Attend")  # asked again and again while too few silos are there for a round


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """`caller` and `run` are empty where the call ended before they were known; `up` and `down` count bytes of messages.

    `round` is 0 for calls that are about none."""

    method: str
    caller: str
    run: str
    code: str
    seconds: float
    up: int
    down: int
    round: int = 0


class CallListener(Protocol):
    def called(self, call: FinishedCall) -> None: ...


class CallMeter:
    def __init__(self, coordinator: Coordinator, listeners: Sequence[CallListener]) -> None:
        self._coordinator = coordinator
        self._listeners = listeners

    def called(self, call: FinishedCall) -> None:
        for listener in self._listeners:
            listener.called(call)
        if call.method.startswith(FEDERATION):
            self._coordinator.count_traffic(call.run, call.caller, call.up, call.down, call.method in WAITING)
