"""Old rounds of a run that goes on: what each silo and buffer did in them goes, and what silos reported about them.

A round's own figures stay, and the evaluators', which are the run's curves; the header of its update and the signatures under it;
and all that privacy is accounted by: the ledger, and in each silo's row what its proposals and its records have cost, which
reports have raised when they came and which is read from no round again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Text, cast, delete, select, update

from fedrep_server.store import runs
from fedrep_server.store.tables import metrics, rounds


def whole_rounds(connection: Connection, run: str, before: float, most: int) -> list[int]:
    """The oldest rounds begun before that moment of which anything can go. Never the newest: its commit may come again."""
    newest = runs.by_name(connection, run).progress.last_round
    reported = select(metrics.c.round).where(metrics.c.run == run, metrics.c.role == "silo")
    there = (cast(rounds.c.silos, Text) != "[]") | (cast(rounds.c.buffers, Text) != "[]") | rounds.c.round.in_(reported)
    old = (rounds.c.run == run) & (rounds.c.round < newest) & (rounds.c.started_at < before)
    return list(connection.execute(select(rounds.c.round).where(old, there).order_by(rounds.c.round).limit(most)).scalars())


def trim(connection: Connection, run: str, numbers: Sequence[int]) -> None:
    connection.execute(update(rounds).where(rounds.c.run == run, rounds.c.round.in_(numbers)).values(silos=[], buffers=[]))
    own = (metrics.c.run == run) & (metrics.c.role == "silo")
    connection.execute(delete(metrics).where(own, metrics.c.round.in_(numbers)))
