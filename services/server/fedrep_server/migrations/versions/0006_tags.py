"""Tags of runs, by which people find them."""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("runs", Column("tags", JSON))
