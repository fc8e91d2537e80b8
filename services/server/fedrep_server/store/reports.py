"""What silos and evaluators report, and what the server counts about each silo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, case, func, insert, select, update

from fedrep.errors import InvalidInputError
from fedrep_server.store import models
from fedrep_server.store.rows import LedgerEntry, SiloRow, Traffic
from fedrep_server.store.runs import require
from fedrep_server.store.tables import ledger, metrics, runs, silos
from fedrep_server.store.values import LARGEST, clean, finite, insert_into, keys_of, larger, whole

RECORDS = ("record_epsilon", "record_delta", "record_budget")
_FLOATS = ("train_loss", "loss", "accuracy", "clip_rate", "train_seconds", "epsilon_total", "epsilon_budget", *RECORDS)
_NUMBERS = ("model_version", "samples", "given_up")
_TEXTS = ("drill", "problem")
_COLUMNS = (*_FLOATS, *_NUMBERS, *_TEXTS, "figures", "record_none")
METRIC_NAMES = frozenset((*_FLOATS, *_NUMBERS, *_TEXTS, "metrics", "score", "record_none"))
MOST_FIGURES, LONGEST_FIGURE = 64, 100

_CHARGE = (
    update(silos)
    .where(silos.c.run == bindparam("own_run"), silos.c.name == bindparam("own_name"))
    .values(
        bytes_up=silos.c.bytes_up + bindparam("up"),
        bytes_down=silos.c.bytes_down + bindparam("down"),
        epsilon_ledger=silos.c.epsilon_ledger + bindparam("spent"),
        releases_without_guarantee=silos.c.releases_without_guarantee + bindparam("unbounded"),
    )
)


def add_metrics(connection: Connection, run: str, number: int, reporter: str, role: str, reported: Mapping[str, Any]) -> None:
    """A second report for the same round adds to the first: absent figures stay as they were."""
    unknown = reported.keys() - METRIC_NAMES
    if unknown:
        raise InvalidInputError(f"metrics have no field {', '.join(sorted(unknown))}")
    if not 0 <= number <= LARGEST:
        raise InvalidInputError(f"metrics cannot belong to round {number}")
    require(connection, run)
    values = _fit(reported)
    statement = insert_into(connection, metrics).values(run=run, round=number, reporter=reporter, role=role, **values)
    merged = {name: func.coalesce(statement.excluded[name], metrics.c[name]) for name in _COLUMNS}
    connection.execute(statement.on_conflict_do_update(index_elements=keys_of(metrics), set_=merged))
    if role == "silo":
        _remember(connection, run, number, reporter, values)
    version, accuracy = values.get("model_version"), values.get("accuracy")
    score = finite(reported.get("score", accuracy))
    if role == "evaluator" and version is not None and (accuracy is not None or score is not None):
        models.score(connection, run, version, accuracy, score)


def _fit(reported: Mapping[str, Any]) -> dict[str, Any]:
    fitted: dict[str, Any] = {name: finite(reported[name]) for name in _FLOATS if reported.get(name) is not None}
    fitted |= {name: whole(reported[name]) for name in _NUMBERS if reported.get(name) is not None}
    if reported.get("record_none"):
        fitted["record_none"] = True
    if reported.get("metrics"):
        named = sorted(reported["metrics"].items())[:MOST_FIGURES]
        fitted["figures"] = {clean(name[:LONGEST_FIGURE]): value for name, value in named if finite(value) is not None}
    return fitted | {name: clean(reported[name]) for name in _TEXTS if reported.get(name) is not None}


def _remember(connection: Connection, run: str, number: int, silo: str, values: Mapping[str, Any]) -> None:
    """The silo's row shows its latest report; one that comes late for an older round changes nothing there, and a problem is over
    with the first report of a later round that has none. What it has spent never falls, whichever report said so: the ledger here
    misses proposals that came late or were lost in a crash."""
    _ensure(connection, run, [silo])
    latest = {
        name: values[name] for name in ("drill", "problem", "given_up", "epsilon_budget", "record_budget") if name in values
    }
    latest.setdefault("problem", case((silos.c.metrics_round < number, ""), else_=silos.c.problem))
    own = (silos.c.run == run) & (silos.c.name == silo)
    spent = values.get("epsilon_total")
    if spent is not None:
        connection.execute(update(silos).where(own).values(epsilon_reported=larger(silos.c.epsilon_reported, spent)))
    _remember_records(connection, own, number, values)
    connection.execute(update(silos).where(own, silos.c.metrics_round <= number).values(metrics_round=number, **latest))


def _remember_records(connection: Connection, own: ColumnElement[bool], number: int, values: Mapping[str, Any]) -> None:
    """At one delta the figure never falls; at another it is another figure. Once "none", always none."""
    if values.get("record_none"):
        connection.execute(update(silos).where(own).values(record_none=True))
    spent = values.get("record_epsilon")
    if spent is None:
        return
    delta = values.get("record_delta") or 0.0
    same = silos.c.record_delta == delta
    connection.execute(update(silos).where(own, same).values(record_epsilon=larger(silos.c.record_epsilon, spent)))
    other = silos.c.record_delta.is_(None) | (silos.c.record_delta != delta)
    connection.execute(
        update(silos).where(own, other, silos.c.metrics_round <= number).values(record_epsilon=spent, record_delta=delta)
    )


def touch(connection: Connection, run: str, name: str, software_version: str, certificate_expires: float, at: float) -> None:
    require(connection, run)
    values = {"software_version": clean(software_version), "certificate_expires": certificate_expires, "last_seen": at}
    statement = insert_into(connection, silos).values(run=run, name=name, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=keys_of(silos), set_=values))


def charge(connection: Connection, run: str, traffic: Mapping[str, Traffic], entries: Sequence[LedgerEntry]) -> None:
    """Silos in name order, so that two writers never wait for each other."""
    names = sorted({*traffic, *(entry.silo for entry in entries)})
    _ensure(connection, run, names)
    if names:
        cost = {name: [entry.epsilon for entry in entries if entry.silo == name] for name in names}
        connection.execute(
            _CHARGE,
            [
                {
                    "own_run": run,
                    "own_name": name,
                    "up": traffic.get(name, Traffic()).up,
                    "down": traffic.get(name, Traffic()).down,
                    "spent": sum(epsilon for epsilon in cost[name] if epsilon is not None),
                    "unbounded": sum(epsilon is None for epsilon in cost[name]),
                }
                for name in names
            ],
        )
    if entries:
        connection.execute(
            insert(ledger),
            [
                {"run": run, "silo": e.silo, "round": e.round, "d": e.d, "k": e.k, "alpha": e.alpha, "epsilon": e.epsilon}
                for e in entries
            ],
        )


def add_traffic(connection: Connection, run: str, traffic: Mapping[str, Traffic]) -> None:
    require(connection, run)
    connection.execute(
        update(runs)
        .where(runs.c.name == run)
        .values(
            bytes_up=runs.c.bytes_up + sum(moved.up for moved in traffic.values()),
            bytes_down=runs.c.bytes_down + sum(moved.down for moved in traffic.values()),
        )
    )
    charge(connection, run, traffic, ())


def _ensure(connection: Connection, run: str, names: Sequence[str]) -> None:
    if names:
        statement = insert_into(connection, silos).values([{"run": run, "name": name} for name in names])
        connection.execute(statement.on_conflict_do_nothing())


def silo_rows(connection: Connection, run: str) -> list[SiloRow]:
    found = [
        SiloRow(
            row.name,
            row.last_seen,
            row.software_version,
            row.certificate_expires,
            row.bytes_up,
            row.bytes_down,
            None if row.releases_without_guarantee else row.epsilon_ledger,
            row.epsilon_reported,
            row.epsilon_budget,
            row.drill,
            row.problem,
            row.given_up,
            None if row.record_none else row.record_epsilon,
            row.record_delta,
            row.record_budget,
            row.record_none,
        )
        for row in connection.execute(select(silos).where(silos.c.run == run))
    ]
    return sorted(found, key=lambda row: row.name.encode())


def ledger_entries(connection: Connection, run: str, silo: str) -> list[LedgerEntry]:
    found = connection.execute(select(ledger).where(ledger.c.run == run, ledger.c.silo == silo).order_by(ledger.c.round))
    return [LedgerEntry(row.silo, row.round, row.d, row.k, row.alpha, row.epsilon) for row in found]
