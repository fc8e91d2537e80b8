"""Amendments of a run's list of silos, with the admin's signature under each."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, LargeBinary

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", Column("amendments", LargeBinary))
