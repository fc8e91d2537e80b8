"""Runs and what their next round starts from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, case, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fedrep.errors import ConflictError, NotFoundError
from fedrep_server.store.rows import Progress, RecordFigures, RunFigures, StoredRun
from fedrep_server.store.tables import metrics, rounds, runs, silos
from fedrep_server.store.values import clean, larger


def unknown_run(name: str) -> NotFoundError:
    return NotFoundError(f"There is no run named {name!r} on this server.", reason="UNKNOWN_RUN")


def add(connection: Connection, run: StoredRun) -> None:
    try:
        connection.execute(
            insert(runs).values(
                name=run.name,
                hash=run.run,
                manifest=run.manifest,
                options=run.options,
                state=run.state,
                reason=clean(run.reason),
                created_at=run.created_at,
                open_round=run.open_round,
                **progress_columns(run.progress),
            )
        )
    except IntegrityError:
        raise ConflictError(
            f"A run named {run.name!r}, or one with the same manifest, exists already. Choose another name.", reason="RUN_EXISTS"
        ) from None


def progress_columns(progress: Progress) -> dict[str, Any]:
    columns = asdict(progress)
    columns["attendance"] = dict(progress.attendance)
    return columns


def all_runs(connection: Connection) -> list[StoredRun]:
    there = select(runs).where(runs.c.deleted_at.is_(None))
    return [_stored(row) for row in connection.execute(there.order_by(runs.c.created_at.desc(), runs.c.name))]


def by_name(connection: Connection, name: str) -> StoredRun:
    row = connection.execute(select(runs).where(runs.c.name == name)).one_or_none()
    if row is None:
        raise unknown_run(name)
    return _stored(row)


def require(connection: Connection, name: str) -> None:
    if connection.execute(select(runs.c.name).where(runs.c.name == name)).first() is None:
        raise unknown_run(name)


def by_hash(connection: Connection, digest: bytes) -> StoredRun:
    row = connection.execute(select(runs).where(runs.c.hash == digest)).one_or_none()
    if row is None:
        raise NotFoundError(f"There is no run with hash {digest.hex()[:16]}... on this server.", reason="UNKNOWN_RUN")
    return _stored(row)


def change(connection: Connection, name: str, **columns: Any) -> None:
    if connection.execute(update(runs).where(runs.c.name == name).values(**columns)).rowcount == 0:
        raise unknown_run(name)


def open_round(connection: Connection, name: str, number: int, state: str) -> None:
    """Give out a round number for good: it may be announced to silos once this is on disk, and never again."""
    free = (runs.c.last_round < number) & (runs.c.open_round < number)
    values = {"open_round": number, "state": state, "reason": ""}
    changed = connection.execute(update(runs).where(runs.c.name == name, free).values(values)).rowcount
    if changed == 0:
        stored = by_name(connection, name)
        latest = max(stored.open_round, stored.progress.last_round)
        raise ConflictError(f"Round {number} of {name!r} cannot be opened: round {latest} was given out.", reason="ROUND_EXISTS")


def figures(connection: Connection, name: str) -> RunFigures:
    run = connection.execute(select(runs).where(runs.c.name == name)).one_or_none()
    if run is None:
        raise unknown_run(name)
    evaluated = (metrics.c.run == name) & (metrics.c.role == "evaluator")
    latest = connection.execute(
        select(metrics.c.accuracy, metrics.c.loss, metrics.c.figures)
        .where(evaluated, metrics.c.accuracy.is_not(None) | metrics.c.loss.is_not(None))
        .order_by(metrics.c.round.desc())
        .limit(1)
    ).one_or_none()
    best = connection.execute(select(func.max(metrics.c.accuracy)).where(evaluated)).scalar_one()
    spent, counted, without_guarantee, none_in_all, budget = connection.execute(
        select(
            func.max(larger(silos.c.epsilon_reported, silos.c.epsilon_ledger)),
            func.max(silos.c.epsilon_ledger),
            func.sum(silos.c.releases_without_guarantee),
            func.count(case((silos.c.epsilon_none, 1))),
            func.min(silos.c.epsilon_budget),
        ).where(silos.c.run == name)
    ).one()
    roster = connection.execute(
        select(rounds.c.roster_size).where(rounds.c.run == name).order_by(rounds.c.round.desc()).limit(1)
    ).scalar_one_or_none()
    return RunFigures(
        rounds_applied=run.rounds_applied,
        rounds_skipped=run.rounds_skipped,
        bytes_up=run.bytes_up,
        bytes_down=run.bytes_down,
        accuracy=None if latest is None else latest.accuracy,
        loss=None if latest is None else latest.loss,
        best_accuracy=best,
        epsilon_total=None if without_guarantee or none_in_all else (spent or 0.0),
        epsilon_counted=None if without_guarantee else (counted or 0.0),
        epsilon_budget=budget,
        last_roster=roster or 0,
        last_event=run.last_event,
        metrics={} if latest is None else latest.figures or {},
        records=_records(connection, name),
        tags=tuple(run.tags or ()),
    )


def _records(connection: Connection, name: str) -> RecordFigures:
    """Never added to anything: each silo's figure is about its own records."""
    guarded = silos.c.record_none.is_(False)
    found = connection.execute(
        select(
            func.max(case((guarded, silos.c.record_epsilon))),
            func.max(case((guarded, silos.c.record_delta))),
            func.count(case((guarded, silos.c.record_epsilon))),
            func.count(case((silos.c.record_none, 1))),
        ).where(silos.c.run == name)
    ).one()
    return RecordFigures(*found)


def _stored(row: Row[Any]) -> StoredRun:
    progress = Progress(
        row.last_round,
        row.model_version,
        row.model_hash,
        row.chain,
        row.clip_range,
        row.clip_quiet,
        row.attendance,
        row.buffer_seed,
        row.rollback,
        row.amendments,
    )
    return StoredRun(
        row.name,
        row.hash,
        row.manifest,
        row.options,
        row.state,
        row.reason,
        row.created_at,
        progress,
        row.open_round,
        row.deleted_at,
    )
