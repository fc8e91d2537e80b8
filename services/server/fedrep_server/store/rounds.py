"""Finished rounds: one transaction writes all of a round, and the views join it with what was reported later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from fedrep.errors import ConflictError, InvalidInputError
from fedrep.protocol.messages import Outcome
from fedrep_server.store import events, models, reports, runs
from fedrep_server.store.rows import BufferRow, Retention, RoundCommit, RoundRow, RoundView, SiloRoundRow, StoredUpdate
from fedrep_server.store.tables import metrics, rounds, statements, update_payloads, updates
from fedrep_server.store.tables import runs as runs_table
from fedrep_server.store.values import clean, finite, insert_into

_SAME = (
    "round",
    "started_at",
    "consensus_size",
    "roster_size",
    "proposed",
    "survivors",
    "bytes_up",
    "bytes_down",
    "epsilon",
    "epsilon_theorem2",
    "clip_range",
    "model_version",
    "per_silo",
    "tolerated",
)


def commit(connection: Connection, change: RoundCommit) -> tuple[int, ...]:
    """Locks in one order, runs before silos before models, as every other writer does. Returns the events' positions.

    The same commit again, because the word that it succeeded was lost, succeeds again and changes nothing.
    """
    number = change.round.round
    if change.progress.last_round != number:
        raise InvalidInputError(f"round {number} cannot leave {change.run!r} at round {change.progress.last_round}")
    if not _advance_run(connection, change):
        return ()
    connection.execute(insert(rounds).values(run=change.run, **_columns(change.round)))
    key = {"run": change.run, "round": number}
    connection.execute(insert(updates).values(**key, header=change.update.header))
    if change.update.coordinates is not None and change.update.levels is not None:
        payload = {"coordinates": change.update.coordinates, "levels": change.update.levels}
        connection.execute(insert(update_payloads).values(**key, **payload))
    reports.charge(connection, change.run, change.traffic, change.ledger)
    if change.model is not None:
        models.add(connection, change.run, change.model)
    return events.append(connection, change.run, change.events)


def _advance_run(connection: Connection, change: RoundCommit) -> bool:
    """False if this very round stands there already, with the same update and the same figures, times included."""
    number, applied = change.round.round, change.round.outcome is Outcome.APPLIED
    table = runs_table.c
    counted = table.rounds_applied if applied else table.rounds_skipped
    result = connection.execute(
        update(runs_table)
        .where(table.name == change.run, table.last_round < number)
        .values(
            {
                counted: counted + 1,
                table.bytes_up: table.bytes_up + sum(traffic.up for traffic in change.traffic.values()),
                table.bytes_down: table.bytes_down + sum(traffic.down for traffic in change.traffic.values()),
                table.open_round: 0,
                **{table[name]: value for name, value in runs.progress_columns(change.progress).items()},
            }
        )
    )
    if result.rowcount:
        return True
    done = runs.by_name(connection, change.run).progress.last_round
    found = connection.execute(select(rounds).where(rounds.c.run == change.run, rounds.c.round == number)).one_or_none()
    update_there = stored_update(connection, change.run, number)
    if found is not None and update_there is not None:
        same_figures = _row(found) == _row_as_kept(change.round)
        if same_figures and update_there.header == change.update.header:
            return False
    raise ConflictError(f"Round {number} of {change.run!r} is not new: round {done} was committed.", reason="ROUND_EXISTS")


def forget(connection: Connection, run: str, retention: Retention) -> None:
    """What retention no longer keeps. No part of a commit, which must not fail for it."""
    number = runs.by_name(connection, run).progress.last_round
    old = update_payloads.c.round <= number - max(retention.update_payloads, 1)
    connection.execute(delete(update_payloads).where(update_payloads.c.run == run, old))
    events.forget(connection, run, retention.events)


def _columns(row: RoundRow) -> dict[str, Any]:
    buffers = [{**asdict(b), "distance": finite(b.distance), "weight": finite(b.weight)} for b in row.buffers]
    return {
        **{name: getattr(row, name) for name in _SAME},
        "outcome": row.outcome.value,
        "reason": clean(row.reason),
        "phase_seconds": list(row.phase_seconds),
        "clip_rate": finite(row.clip_rate),
        "update_norm": finite(row.update_norm),
        "buffers": buffers,
        "silos": [asdict(silo) for silo in row.silos],
    }


def _row_as_kept(row: RoundRow) -> RoundRow:
    """As it comes back: without what the columns do not hold."""
    return _row(SimpleNamespace(**_columns(row)))


def _row(row: Row[Any] | SimpleNamespace) -> RoundRow:
    return RoundRow(
        **{name: getattr(row, name) for name in _SAME},
        outcome=Outcome(row.outcome),
        reason=row.reason,
        phase_seconds=tuple(row.phase_seconds),
        clip_rate=row.clip_rate,
        update_norm=row.update_norm,
        buffers=tuple(BufferRow(**{**buffer, "members": tuple(buffer["members"])}) for buffer in row.buffers),
        silos=tuple(SiloRoundRow(**silo) for silo in row.silos),
    )


def page(connection: Connection, run: str, from_round: int, limit: int) -> list[RoundView]:
    found = connection.execute(
        select(rounds).where(rounds.c.run == run, rounds.c.round >= from_round).order_by(rounds.c.round).limit(limit)
    ).all()
    if not found:
        return []
    within = metrics.c.round.between(found[0].round, found[-1].round)
    return _views(connection, run, found, within)


def thinned(connection: Connection, run: str, about: int) -> list[RoundView]:
    """About `about` rounds over the whole run: one of each stretch, the last the evaluator saw, or else the last.

    An even stride would miss most evaluations when it does not divide their interval.
    """
    highest = connection.execute(select(func.max(rounds.c.round)).where(rounds.c.run == run)).scalar_one()
    if highest is None:
        return []
    stride = max(1, -(-highest // max(about, 1)))
    stretch = (rounds.c.round - 1) // stride
    last = select(stretch, func.max(rounds.c.round)).where(rounds.c.run == run).group_by(stretch)
    evaluated = (metrics.c.role == "evaluator") & metrics.c.accuracy.is_not(None)
    joined = (metrics.c.run == rounds.c.run) & (metrics.c.round == rounds.c.round)
    # Evaluations come second and replace the last round of their stretch.
    chosen: dict[int, int] = {}
    for query in (last, last.join(metrics, joined).where(evaluated)):
        chosen.update((row[0], row[1]) for row in connection.execute(query))
    wanted = sorted({*chosen.values(), highest})
    found = connection.execute(
        select(rounds).where(rounds.c.run == run, rounds.c.round.in_(wanted)).order_by(rounds.c.round)
    ).all()
    return _views(connection, run, found, metrics.c.round.in_(wanted))


def _views(connection: Connection, run: str, found: Sequence[Row[Any]], within: Any) -> list[RoundView]:
    reported: dict[int, list[Any]] = {}
    wanted = ("round", "reporter", "role", "accuracy", "loss", "clip_rate", "figures", "record_epsilon", "record_none")
    columns = [metrics.c[name] for name in wanted]
    for report in connection.execute(select(*columns).where(metrics.c.run == run, within)).all():
        reported.setdefault(report.round, []).append(report)
    return [_view(row, reported.get(row.round, [])) for row in found]


def _view(row: Row[Any], found: list[Any]) -> RoundView:
    """Several evaluators are possible; the first by name that reported a figure speaks for the round."""
    evaluators = sorted((report for report in found if report.role == "evaluator"), key=lambda report: report.reporter)
    silos = [report for report in found if report.role == "silo"]
    clip_rates = [report.clip_rate for report in silos if report.clip_rate is not None]
    reported_rate = median(clip_rates) if clip_rates else None
    return RoundView(
        _row(row),
        accuracy=next((report.accuracy for report in evaluators if report.accuracy is not None), None),
        loss=next((report.loss for report in evaluators if report.loss is not None), None),
        clip_rate=reported_rate if row.clip_rate is None else row.clip_rate,
        silo_accuracy=_spread(report.accuracy for report in silos),
        silo_loss=_spread(report.loss for report in silos),
        records={
            report.reporter: None if report.record_none else report.record_epsilon
            for report in silos
            if report.record_none or report.record_epsilon is not None
        },
        metrics=next((report.figures for report in evaluators if report.figures), {}),
    )


def _spread(reported: Iterable[float | None]) -> tuple[float, ...]:
    values = [value for value in reported if value is not None]
    return (min(values), median(values), max(values)) if values else ()


def stored_update(connection: Connection, run: str, number: int) -> StoredUpdate | None:
    row = connection.execute(
        select(updates.c.header, update_payloads.c.coordinates, update_payloads.c.levels)
        .outerjoin(update_payloads, (update_payloads.c.run == updates.c.run) & (update_payloads.c.round == updates.c.round))
        .where(updates.c.run == run, updates.c.round == number)
    ).one_or_none()
    return None if row is None else StoredUpdate(row.header, row.coordinates, row.levels)


def add_statement(connection: Connection, run: str, number: int, silo: str, signature: bytes) -> None:
    """The first signature stays: ECDSA signs the same words differently each time."""
    values = {"run": run, "round": number, "silo": silo, "signature": signature}
    connection.execute(insert_into(connection, statements).values(**values).on_conflict_do_nothing())


def stored_statements(connection: Connection, run: str, number: int) -> tuple[tuple[str, bytes], ...]:
    found = connection.execute(
        select(statements.c.silo, statements.c.signature).where(statements.c.run == run, statements.c.round == number)
    )
    # Sorted here: the two databases collate names differently.
    return tuple(sorted((row.silo, row.signature) for row in found))
