"""Fixtures of the deployment tests: a real PostgreSQL."""

from __future__ import annotations

from tests.harness.store_fixtures import new_postgres_url, postgres_uri

__all__ = ["new_postgres_url", "postgres_uri"]
