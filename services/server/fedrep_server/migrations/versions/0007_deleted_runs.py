"""Runs that were deleted: their row and their ledger stay."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("runs", Column("deleted_at", Double))
