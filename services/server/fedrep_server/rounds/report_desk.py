"""Where reports wait for the database: all that came while it wrote are written together.

At the end of a round every silo reports at once. A transaction for each costs the server more than the rest of the round.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fedrep.errors import FedrepError
from fedrep_server.store import Report, Store

GATHER_SECONDS = 0.05  # nobody waits for the answer, and the others are about to report too


@dataclass(frozen=True, eq=False, slots=True)
class _Waiting:
    run: str
    report: Report
    written: asyncio.Future[None]


class ReportDesk:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def add(self, run: str, report: Report) -> None:
        """Returns when the report is on disk."""
        waiting = _Waiting(run, report, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        await waiting.written

    async def _write(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        while self._waiting:
            together = self._take()
            error = await self._tried(together)
            if error is not None and len(together) > 1:  # one of them is at fault, and the others are not
                for each in together:
                    _tell([each], await self._tried([each]))
            else:
                _tell(together, error)

    def _take(self) -> list[_Waiting]:
        """Of one run, and one of each reporter: a second one adds to the first."""
        run = self._waiting[0].run
        taken: dict[str, _Waiting] = {}
        for each in self._waiting:
            if each.run == run:
                taken.setdefault(each.report.reporter, each)
        together = list(taken.values())
        self._waiting = [each for each in self._waiting if taken.get(each.report.reporter) is not each]
        return together

    async def _tried(self, together: list[_Waiting]) -> FedrepError | None:
        try:
            await asyncio.to_thread(self._store.add_reports, together[0].run, [each.report for each in together])
        except FedrepError as error:
            return error
        return None


def _tell(together: list[_Waiting], error: FedrepError | None) -> None:
    for each in together:
        if each.written.done():  # its caller has gone
            continue
        if error is None:
            each.written.set_result(None)
        else:
            each.written.set_exception(error)
