"""The latest rollback of a run, with the admin's signature under it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, LargeBinary

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("runs", Column("rollback", LargeBinary))
