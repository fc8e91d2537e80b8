"""Silos that say that their proposals have no guarantee, in all runs over their data: in each report, and as it stands."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, false

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("metrics", Column("epsilon_none", Boolean))
    op.add_column("silos", Column("epsilon_none", Boolean, nullable=False, server_default=false()))
