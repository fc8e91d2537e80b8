"""Fixtures of the server's tests: both kinds of database."""

from __future__ import annotations

from tests.harness.scenarios import lines
from tests.harness.store_fixtures import (
    kind,
    new_postgres_url,
    new_url,
    postgres_uri,
    postgres_url_with_tables,
    sqlite_file_with_tables,
    store,
    url,
)

__all__ = [
    "kind",
    "lines",
    "new_postgres_url",
    "new_url",
    "postgres_uri",
    "postgres_url_with_tables",
    "sqlite_file_with_tables",
    "store",
    "url",
]
