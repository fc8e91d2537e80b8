"""Deleting a run that is over: rounds, updates, metrics, events and models go. What silos have spent stays, under the run's name.

The name is not free afterwards: silos keep their own books by it, and another run under it would be taken for this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update

from fedrep_server.store.reports import silo_row
from fedrep_server.store.tables import BACKED_UP, ledger, runs, silos

KEPT = (runs, silos, ledger)


@dataclass(frozen=True, slots=True)
class SpentRow:
    """What one silo has spent in one run, by the larger of what was counted here and what it says itself (of all runs over its
    data); `epsilon` is None if any proposal had no guarantee, `record_epsilon` if it did not say, or has none (`record_none`)."""

    run: str
    silo: str
    proposals: int
    epsilon: float | None
    record_epsilon: float | None
    record_delta: float | None
    record_none: bool
    deleted_at: float | None


def delete_run(connection: Connection, name: str, at: float) -> None:
    for table in reversed(BACKED_UP):  # children before parents
        if table not in KEPT:
            connection.execute(delete(table).where(table.c.run == name))
    connection.execute(update(silos).where(silos.c.run == name).values(problem="", drill="", software_version=""))
    connection.execute(update(runs).where(runs.c.name == name).values(deleted_at=at, tags=None))


def deleted_runs(connection: Connection) -> list[str]:
    return list(connection.execute(select(runs.c.name).where(runs.c.deleted_at.is_not(None)).order_by(runs.c.name)).scalars())


def spent(connection: Connection) -> list[SpentRow]:
    proposals = (
        select(ledger.c.run, ledger.c.silo, func.count().label("proposals")).group_by(ledger.c.run, ledger.c.silo).subquery()
    )
    rows = connection.execute(
        select(silos, runs.c.deleted_at, proposals.c.proposals)
        .join(runs, runs.c.name == silos.c.run)
        .outerjoin(proposals, (proposals.c.run == silos.c.run) & (proposals.c.silo == silos.c.name))
        .order_by(silos.c.run, silos.c.name)
    )
    return [_spent_row(row) for row in rows]


def _spent_row(row: Row[Any]) -> SpentRow:
    silo = silo_row(row)
    return SpentRow(
        row.run,
        silo.name,
        row.proposals or 0,
        silo.epsilon,
        silo.record_epsilon,
        silo.record_delta,
        silo.record_none,
        row.deleted_at,
    )
