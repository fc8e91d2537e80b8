"""What silos say that training has cost their records: in each report, and as it stands for each silo."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, Double, false

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for table in ("metrics", "silos"):
        for name in ("record_epsilon", "record_delta", "record_budget"):
            op.add_column(table, Column(name, Double))
    op.add_column("metrics", Column("record_none", Boolean))
    op.add_column("silos", Column("record_none", Boolean, nullable=False, server_default=false()))
