"""How a test plays a few daemons against a served federation, and reads what they logged."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from fedrep.protocol.messages import Confirmation, Reveal
from fedrep.protocol.silo_effects import Answer, Confirmations, Send
from fedrep_silo.audit import Audit
from fedrep_silo.daemon import SiloDaemon
from fedrep_silo.state import Written
from tests.harness.federation import Federation
from tests.harness.processes import run_scenario

Scenario = Callable[[Federation, str], Awaitable[None]]


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def serve(federation: Federation, scenario: Scenario, run: str) -> None:
    async def served() -> None:
        async with federation.serving():
            await scenario(federation, run)

    run_scenario(served(), 120)


async def finish(*daemons: SiloDaemon) -> list[BaseException | None]:
    """Every daemon until its end, and how each ended."""
    ended = await asyncio.gather(*(daemon.run() for daemon in daemons), return_exceptions=True)
    for daemon in daemons:
        await daemon.connection.close()
    return ended


async def finish_in_step(*daemons: SiloDaemon) -> list[BaseException | None]:
    """Like `finish`, but nobody reveals in a round before all have confirmed it. A round closes as soon as enough holders have
    revealed; on a busy machine that may be before the one a test looks at has said a word, and then it counts as gone."""
    confirmed: defaultdict[int, set[SiloDaemon]] = defaultdict(set)
    playing, news = set(daemons), asyncio.Condition()

    def keep_in_step(daemon: SiloDaemon) -> None:
        confirm, deliver = daemon.connection.confirm, daemon.connection.send

        async def confirm_and_tell(confirmation: Confirmation) -> Confirmations:
            try:
                return await confirm(confirmation)
            finally:
                async with news:
                    confirmed[confirmation.round].add(daemon)
                    news.notify_all()

        async def reveal_after_all(send: Send, written: Written) -> Answer:
            message = send.message
            if isinstance(message, Reveal):
                async with news:
                    await news.wait_for(lambda: playing <= confirmed[message.round])
            return await deliver(send, written)

        daemon.connection.confirm = confirm_and_tell  # type: ignore[method-assign]
        daemon.connection.send = reveal_after_all  # type: ignore[method-assign]

    async def play(daemon: SiloDaemon) -> None:
        keep_in_step(daemon)
        try:
            await daemon.run()
        finally:
            await daemon.connection.close()
            async with news:
                playing.discard(daemon)
                news.notify_all()

    return await asyncio.gather(*map(play, daemons), return_exceptions=True)


def confirmed_rounds(daemon: SiloDaemon) -> set[int]:
    """In which the silo spoke as a holder. Not its shares are asked for: a round may close before the last holder reveals."""
    audit = Audit(daemon.folder.folder / "audit.jsonl").entries()
    return {entry["round"] for entry in audit if entry["what"] == "ConfirmSurvivors"}
