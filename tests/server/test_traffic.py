"""Bytes counted per silo while calls end and rounds are committed at the same time, in other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedrep_server.calls.interceptor import Coding, Gate, _Call
from fedrep_server.calls.meter import FinishedCall
from fedrep_server.rounds import traffic
from fedrep_server.rounds.traffic import TrafficCounter
from fedrep_server.store import Traffic


def test_a_take_holds_what_came_since_the_last_one() -> None:
    counter = TrafficCounter()
    counter.add("a", 1, 10)
    counter.add("a", 2, 20)
    counter.add("b", 0, 5)
    assert counter.take() == {"a": Traffic(3, 30), "b": Traffic(0, 5)}
    assert counter.take() == {}
    counter.add("a", 4, 0)
    assert counter.take() == {"a": Traffic(4, 0)}


def meanwhile(work: Callable[[], object]) -> threading.Thread:
    """In another thread, which gets a moment to do its work before this one goes on, unless it must wait for this one."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.2)
    return thread


def test_what_is_added_during_a_take_is_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TrafficCounter()
    counter.add("a", 1, 10)
    threads: list[threading.Thread] = []

    def interrupted(up: int, down: int) -> Traffic:
        threads.append(meanwhile(lambda: counter.add("a", 2, 20)))
        return Traffic(up, down)

    monkeypatch.setattr(traffic, "Traffic", interrupted)
    assert counter.take() == {"a": Traffic(1, 10)}
    monkeypatch.undo()
    for thread in threads:
        thread.join()
    assert counter.take() == {"a": Traffic(2, 20)}


class InterruptedName(str):
    """A key that is looked up slowly: something else happens in between."""

    work: Callable[[], object] | None = None
    thread: threading.Thread | None = None

    def __hash__(self) -> int:
        if self.work is not None and self.thread is None:
            self.thread = threading.Thread()  # once
            self.thread = meanwhile(self.work)
        return super().__hash__()


def test_a_take_during_an_add_loses_nothing() -> None:
    counter = TrafficCounter()
    taken: list[dict[str, Traffic]] = []
    name = InterruptedName("a")
    name.work = lambda: taken.append(counter.take())
    counter.add(name, 1, 10)
    assert name.thread is not None
    name.thread.join()
    taken.append(counter.take())
    assert sum(each["a"].up for each in taken if each) == 1
    assert sum(each["a"].down for each in taken if each) == 10


def test_a_stream_cut_before_it_passed_on_what_its_calls_answered_counts_no_negative_bytes() -> None:
    """Bytes belong to the call within the stream, also those that never left: the stream's own count went below zero then, and
    the metrics refused it in the middle of its end."""
    finished: list[FinishedCall] = []
    gate = SimpleNamespace(closed=lambda _: None, alone={}, meter=SimpleNamespace(called=finished.append))
    coding = Coding(bytes, bytes)
    stream = _Call(cast(Gate, gate), "/fedrep.wire.v1.FederationService/Play", (), coding, cast(Any, None))
    stream._one_received(b"question in its envelope", first=True)
    inner = _Call(cast(Gate, gate), "/fedrep.wire.v1.FederationService/Join", (), coding, cast(Any, None), within=stream)
    inner._one_received(b"question", first=True)
    inner._sent(b"answer")
    inner._finish("OK")
    stream._finish("CANCELLED")
    assert [(call.up, call.down) for call in finished] == [(8, 6), (16, 0)]
