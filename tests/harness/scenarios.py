"""How a test plays a few daemons against a served federation, and reads what they logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from fedrep_silo.audit import Audit
from fedrep_silo.daemon import SiloDaemon
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

    run_scenario(served(), 60)


async def finish(*daemons: SiloDaemon) -> list[BaseException | None]:
    """Every daemon until its end, and how each ended."""
    ended = await asyncio.gather(*(daemon.run() for daemon in daemons), return_exceptions=True)
    for daemon in daemons:
        await daemon.connection.close()
    return ended


def confirmed_rounds(daemon: SiloDaemon) -> set[int]:
    """In which the silo spoke as a holder. Not its shares are asked for: a round may close before the last holder reveals."""
    audit = Audit(daemon.folder.folder / "audit.jsonl").entries()
    return {entry["round"] for entry in audit if entry["what"] == "ConfirmSurvivors"}
