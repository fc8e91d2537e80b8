"""Model versions: which exist, how good they were, and which files retention lets go."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from fedrep_server.store.rows import ModelRow, NewModel
from fedrep_server.store.tables import models
from fedrep_server.store.values import insert_into, keys_of


def add(connection: Connection, run: str, model: NewModel) -> None:
    """A row of the same version is of a write whose success nobody heard of: the run went on from the version before."""
    values = {"hash": model.hash, "chain": model.chain, "size": model.size, "kept": True, "accuracy": None, "score": None}
    statement = insert_into(connection, models).values(run=run, version=model.version, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=keys_of(models), set_=values))


def score(connection: Connection, run: str, version: int, accuracy: float | None, score: float | None) -> None:
    values = {"accuracy": accuracy, "score": score}
    connection.execute(update(models).where(models.c.run == run, models.c.version == version).values(**values))


def kept(connection: Connection, run: str) -> list[ModelRow]:
    found = connection.execute(select(models).where(models.c.run == run, models.c.kept).order_by(models.c.version)).all()
    scored = [row for row in found if row.score is not None]
    best = max(scored, key=lambda row: (row.score, -row.version)).version if scored else None
    return [
        ModelRow(row.version, row.hash, row.chain, row.size, row.accuracy, True, row.version == best, row.score) for row in found
    ]


def retire(connection: Connection, run: str, keep_last: int) -> list[int]:
    """Let go of all but the best and the last `keep_last`; returns what is no longer kept. The newest always stays."""
    found = kept(connection, run)
    gone = [model.version for model in found[: -max(keep_last, 1)] if not model.best]
    if gone:
        connection.execute(update(models).where(models.c.run == run, models.c.version.in_(gone)).values(kept=False))
    return gone
