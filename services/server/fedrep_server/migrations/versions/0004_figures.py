"""The evaluator's figures beyond accuracy and loss, and the score by which the best model is chosen."""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, Double

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("metrics", Column("figures", JSON))
    op.add_column("models", Column("score", Double))
    op.execute("UPDATE models SET score = accuracy")
