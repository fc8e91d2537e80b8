"""Fixtures shared by the tests of the services."""

from __future__ import annotations

from tests.services.enrolment_desk import authority
from tests.services.scenarios import lines
from tests.services.store_fixtures import (
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
    "authority",
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
