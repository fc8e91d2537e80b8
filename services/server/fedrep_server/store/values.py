"""What peers send, made fit for both databases.

PostgreSQL refuses NUL in text and NaN in JSON, SQLite turns NaN into NULL, and neither holds an unsigned 64-bit number. A silo
must not be able to fail a write, or be stored differently by the two, by sending one of these.
"""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, case
from sqlalchemy.dialects import postgresql, sqlite

from fedrep_runtime.texts import one_line

LARGEST = 2**63 - 1
LONGEST_TEXT = 4000


def clean(value: str) -> str:
    """One line of letters: a terminal or a log obeys nothing of what a silo writes."""
    return one_line(value[:LONGEST_TEXT])


def finite(value: float | None) -> float | None:
    """NaN and infinity become "not reported": no order, median or sum can use them."""
    return float(value) if value is not None and math.isfinite(value) else None


def whole(value: int) -> int:
    """A peer may ask for round 2^64 - 1; asking for the largest storable one finds just as little, and fails nothing."""
    return max(0, min(int(value), LARGEST))


def larger(maybe: ColumnElement[Any], other: ColumnElement[Any] | float) -> ColumnElement[Any]:
    """The two databases name this function differently. A null `maybe` gives the other."""
    return case((maybe > other, maybe), else_=other)


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that knows ON CONFLICT, which both databases spell alike and SQLAlchemy keeps per dialect."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def keys_of(table: Table) -> list[str]:
    return [column.name for column in table.primary_key]
