"""Brings a database to the schema this code knows, and refuses one that is newer.

Two servers may start at once on one PostgreSQL: an advisory lock lets one migrate while the other waits.
"""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from fedrep.errors import SettingsError
from fedrep_server.store.database import Database

MIGRATION_LOCK = 0x666564726D  # "fedrm", distinct from the leader's


def migrate(database: Database, revision: str = "head") -> None:
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        current = set(MigrationContext.configure(connection).get_current_heads())
        if not current <= known:
            raise newer_schema(database, sorted(current - known))
        if revision == "head" and current == set(scripts.get_heads()):
            return
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def newer_schema(database: Database, found: list[str]) -> SettingsError:
    return SettingsError(
        f"The database {database.shown} was written by a newer fedrep (schema {', '.join(found)}, "
        f"this version knows up to {known_revisions()[-1]}). Install that version or restore an older backup.",
        reason="NEWER_SCHEMA",
    )


def known_revisions() -> tuple[str, ...]:
    """Oldest first."""
    scripts = ScriptDirectory.from_config(_config())
    return tuple(script.revision for script in scripts.walk_revisions())[::-1]


def current_revision(database: Database) -> str | None:
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "fedrep_server:migrations")
    return config
