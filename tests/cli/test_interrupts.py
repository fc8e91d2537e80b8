"""Ctrl-C during long work, wherever it comes."""

from __future__ import annotations

import signal
import sys

import pytest

from fedrep_cli.interrupts import heard_interrupts


class Interrupting:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_python_forgot_is_heard_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: forgotten.append(lost.exc_type))
    with heard_interrupts() as look:
        look()
        Interrupting()
        assert forgotten == [KeyboardInterrupt], "it was raised where nobody hears it"
        with pytest.raises(KeyboardInterrupt):
            look()


def test_an_interrupt_is_raised_at_once_as_always_and_its_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), heard_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_command_that_was_started_to_ignore_interrupts_still_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heard_interrupts() as look:
            signal.raise_signal(signal.SIGINT)
            look()
    finally:
        signal.signal(signal.SIGINT, before)
