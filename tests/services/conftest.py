"""Fixtures shared by the tests of the services."""

from __future__ import annotations

from tests.services.store_fixtures import new_postgres_url, new_url, postgres_uri, store, url

__all__ = ["new_postgres_url", "new_url", "postgres_uri", "store", "url"]
