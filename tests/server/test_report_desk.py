"""Reports that come together are written together, and one that cannot be written spoils no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from fedrep.errors import FedrepError, InvalidInputError
from fedrep_server.rounds.report_desk import ReportDesk
from fedrep_server.store import Report, Store


class Books:
    """Notes what is written together; refuses whatever says so."""

    def __init__(self) -> None:
        self.written: list[tuple[str, list[str]]] = []

    def add_reports(self, run: str, together: Sequence[Report]) -> None:
        if any(report.figures.get("bad") for report in together):
            raise InvalidInputError("a report is at fault")
        self.written.append((run, [report.reporter for report in together]))


def report(name: str, **figures: object) -> Report:
    return Report(1, name, "silo", figures)


def test_reports_of_one_run_that_come_together_are_one_transaction() -> None:
    books = Books()

    async def play() -> None:
        desk = ReportDesk(cast(Store, books))
        reports = [("one", report(name)) for name in "abc"] + [("two", report("d"))]
        await asyncio.gather(*(desk.add(run, each) for run, each in reports))

    asyncio.run(play())
    assert books.written == [("one", ["a", "b", "c"]), ("two", ["d"])]


def test_a_second_report_of_the_same_silo_is_written_after_its_first() -> None:
    books = Books()

    async def play() -> None:
        desk = ReportDesk(cast(Store, books))
        await asyncio.gather(*(desk.add("run", report(name)) for name in "aba"))

    asyncio.run(play())
    assert books.written == [("run", ["a", "b"]), ("run", ["a"])]


def test_a_report_at_fault_is_refused_alone() -> None:
    books = Books()

    async def play() -> list[BaseException | None]:
        desk = ReportDesk(cast(Store, books))
        reports = (report("a"), report("b", bad=True), report("c"))
        return await asyncio.gather(*(desk.add("run", each) for each in reports), return_exceptions=True)

    answers = asyncio.run(play())
    assert [isinstance(answer, FedrepError) for answer in answers] == [False, True, False]
    assert books.written == [("run", ["a"]), ("run", ["c"])]


def test_a_caller_that_goes_away_takes_nobody_along() -> None:
    books = Books()

    async def play() -> None:
        desk = ReportDesk(cast(Store, books))
        gone, stays = (asyncio.create_task(desk.add("run", report(name))) for name in "ab")
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(play())
    assert books.written == [("run", ["a", "b"])]
