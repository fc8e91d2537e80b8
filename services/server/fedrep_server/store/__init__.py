"""Where runs, rounds, ledger and events live: SQLite in the data folder, or PostgreSQL by URL, behind one interface."""

from __future__ import annotations

from fedrep_server.store.attendance import attendance_from_json, attendance_to_json
from fedrep_server.store.database import Database, Fence, sqlite_url
from fedrep_server.store.interface import Store
from fedrep_server.store.rows import (
    BufferRow,
    LedgerEntry,
    ModelRow,
    NewEvent,
    NewModel,
    Progress,
    RecordFigures,
    Report,
    Retention,
    RoundCommit,
    RoundRow,
    RoundView,
    RunFigures,
    SiloRoundRow,
    SiloRow,
    StoredEvent,
    StoredRun,
    StoredUpdate,
    Traffic,
)
from fedrep_server.store.schema import migrate
from fedrep_server.store.sql_store import SqlStore


def open_store(url: str, retention: Retention | None = None) -> SqlStore:
    """Connect and bring the schema up to date, or say in one sentence why that cannot be done."""
    database = Database(url)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, retention or Retention())


__all__ = [
    "BufferRow",
    "Database",
    "Fence",
    "LedgerEntry",
    "ModelRow",
    "NewEvent",
    "NewModel",
    "Progress",
    "RecordFigures",
    "Report",
    "Retention",
    "RoundCommit",
    "RoundRow",
    "RoundView",
    "RunFigures",
    "SiloRoundRow",
    "SiloRow",
    "SqlStore",
    "Store",
    "StoredEvent",
    "StoredRun",
    "StoredUpdate",
    "Traffic",
    "attendance_from_json",
    "attendance_to_json",
    "open_store",
    "sqlite_url",
]
