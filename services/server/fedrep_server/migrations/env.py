"""Runs the revisions on the connection, and in the transaction, that `store.schema.migrate` opened."""

from __future__ import annotations

from alembic import context

# SQLite rolls DDL back too: either the whole upgrade happens or none of it.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
