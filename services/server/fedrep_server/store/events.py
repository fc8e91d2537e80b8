"""The event log. Positions come from a counter in the run's row, so they become visible in order and without gaps."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

from fedrep_server.store.rows import NewEvent, StoredEvent
from fedrep_server.store.runs import unknown_run
from fedrep_server.store.tables import events, runs
from fedrep_server.store.values import clean

ALERT = "alert"


def append(connection: Connection, run: str, new: Sequence[NewEvent]) -> tuple[int, ...]:
    """The UPDATE holds the run's row until commit: a later position can never be seen before an earlier one."""
    last = connection.execute(
        update(runs).where(runs.c.name == run).values(last_event=runs.c.last_event + len(new)).returning(runs.c.last_event)
    ).scalar_one_or_none()
    if last is None:
        raise unknown_run(run)
    positions = tuple(range(last - len(new) + 1, last + 1))
    if new:
        connection.execute(
            insert(events),
            [
                {
                    "run": run,
                    "position": position,
                    "at": event.at,
                    "kind": event.kind,
                    "severity": event.severity,
                    "round": event.round,
                    "silo": clean(event.silo),
                    "text": clean(event.text),
                }
                for position, event in zip(positions, new, strict=True)
            ],
        )
    return positions


def after(connection: Connection, run: str, position: int, limit: int) -> list[StoredEvent]:
    found = connection.execute(
        select(events).where(events.c.run == run, events.c.position > position).order_by(events.c.position).limit(limit)
    )
    return [StoredEvent(row.position, NewEvent(row.at, row.kind, row.text, row.severity, row.round, row.silo)) for row in found]


def forget(connection: Connection, run: str, keep: int) -> None:
    """Alerts are counted apart: no flood of other lines pushes one out."""
    last = select(runs.c.last_event).where(runs.c.name == run).scalar_subquery()
    own, is_alert = events.c.run == run, events.c.severity == ALERT
    connection.execute(delete(events).where(own, ~is_alert, events.c.position <= last - keep))
    newest_too_many = (
        select(events.c.position).where(own, is_alert).order_by(events.c.position.desc()).offset(keep).limit(1)
    ).scalar_subquery()
    connection.execute(delete(events).where(own, is_alert, events.c.position <= newest_too_many))
