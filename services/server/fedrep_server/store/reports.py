"""What silos and evaluators report, and what the server counts about each silo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Update, bindparam, case, func, insert, select, update

from fedrep.errors import InvalidInputError
from fedrep_server.store import models
from fedrep_server.store.rows import LedgerEntry, Report, SiloRow, Traffic
from fedrep_server.store.runs import require
from fedrep_server.store.tables import ledger, metrics, runs, silos
from fedrep_server.store.values import LARGEST, clean, finite, insert_for, insert_into, keys_of, larger, whole

RECORDS = ("record_epsilon", "record_delta", "record_budget")
_FLOATS = ("train_loss", "loss", "accuracy", "clip_rate", "train_seconds", "epsilon_total", "epsilon_budget", *RECORDS)
_NUMBERS = ("model_version", "samples", "given_up")
_TEXTS = ("drill", "problem")
_FLAGS = ("record_none", "epsilon_none")
_PLAIN = (*_FLOATS, *_NUMBERS, *_TEXTS, *_FLAGS)
_COLUMNS = (*_PLAIN, "figures")
METRIC_NAMES = frozenset((*_FLOATS, *_NUMBERS, *_TEXTS, *_FLAGS, "metrics", "score"))
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


def add_metrics(connection: Connection, run: str, reports: Sequence[Report]) -> None:
    """Of different reporters. A second report for the same round adds to the first: absent figures stay as they were."""
    for report in reports:
        unknown = report.figures.keys() - METRIC_NAMES
        if unknown:
            raise InvalidInputError(f"metrics have no field {', '.join(sorted(unknown))}")
        if not 0 <= report.number <= LARGEST:
            raise InvalidInputError(f"metrics cannot belong to round {report.number}")
    require(connection, run)
    fitted = [(report, _fit(report.figures)) for report in sorted(reports, key=lambda report: report.reporter)]
    for columns in (_PLAIN, _COLUMNS):  # JSON has a null of its own, so figures that are absent must not be named
        rows = [
            {"run": run, "round": report.number, "reporter": report.reporter, "role": report.role}
            | {name: values.get(name) for name in columns}
            for report, values in fitted
            if ("figures" in values) is (columns is _COLUMNS)
        ]
        if rows:
            connection.execute(_upsert(connection.dialect.name, columns), rows)
    _remember(connection, run, [(report, values) for report, values in fitted if report.role == "silo"])
    for report, values in fitted:
        version, accuracy = values.get("model_version"), values.get("accuracy")
        score = finite(report.figures.get("score", accuracy))
        if report.role == "evaluator" and version is not None and (accuracy is not None or score is not None):
            models.score(connection, run, version, accuracy, score)


@cache
def _upsert(dialect: str, columns: tuple[str, ...]) -> Any:
    statement = insert_for(dialect, metrics)
    merged = {name: func.coalesce(statement.excluded[name], metrics.c[name]) for name in columns}
    return statement.on_conflict_do_update(index_elements=keys_of(metrics), set_=merged)


def _fit(reported: Mapping[str, Any]) -> dict[str, Any]:
    fitted: dict[str, Any] = {name: finite(reported[name]) for name in _FLOATS if reported.get(name) is not None}
    fitted |= {name: whole(reported[name]) for name in _NUMBERS if reported.get(name) is not None}
    fitted |= {name: True for name in _FLAGS if reported.get(name)}
    if reported.get("metrics"):
        named = sorted(reported["metrics"].items())[:MOST_FIGURES]
        fitted["figures"] = {clean(name[:LONGEST_FIGURE]): value for name, value in named if finite(value) is not None}
    return fitted | {name: clean(reported[name]) for name in _TEXTS if reported.get(name) is not None}


_OWN = (silos.c.run == bindparam("own_run"), silos.c.name == bindparam("own_name"))
_LATER = silos.c.metrics_round <= bindparam("own_round")
_DELTA = bindparam("own_delta", type_=silos.c.record_delta.type)
_SPENT = bindparam("own_spent", type_=silos.c.epsilon_reported.type)

# The silo's row shows its latest report; one that comes late for an older round changes nothing there, and a problem is over with
# the first report of a later round that has none.
_LATEST = (
    update(silos)
    .where(*_OWN, _LATER)
    .values(
        metrics_round=bindparam("own_round"),
        problem=func.coalesce(
            bindparam("own_problem", type_=silos.c.problem.type),
            case((silos.c.metrics_round < bindparam("own_round"), ""), else_=silos.c.problem),
        ),
        **{
            name: func.coalesce(bindparam(f"own_{name}", type_=silos.c[name].type), silos.c[name])
            for name in ("drill", "given_up", "epsilon_budget", "record_budget")
        },
    )
)
# What it has spent never falls, whichever report said so: the ledger misses proposals that came late or were lost in a crash.
_HAS_SPENT = update(silos).where(*_OWN).values(epsilon_reported=larger(silos.c.epsilon_reported, _SPENT))
# Once it has proposed without guarantee, in whichever run, no later figure takes that back.
_NO_GUARANTEE = update(silos).where(*_OWN).values(epsilon_none=True)
# At one delta the figure never falls; at another it is another figure. Once "none", always none.
_NO_RECORDS = update(silos).where(*_OWN).values(record_none=True)
_SAME_DELTA = (
    update(silos).where(*_OWN, silos.c.record_delta == _DELTA).values(record_epsilon=larger(silos.c.record_epsilon, _SPENT))
)
_OTHER_DELTA = (
    update(silos)
    .where(*_OWN, _LATER, silos.c.record_delta.is_(None) | (silos.c.record_delta != _DELTA))
    .values(record_epsilon=_SPENT, record_delta=_DELTA)
)


def _remember(connection: Connection, run: str, reported: Sequence[tuple[Report, Mapping[str, Any]]]) -> None:
    _ensure(connection, run, [report.reporter for report, _ in reported])

    def carry_out(statement: Update, figure: str | None, details: Callable[[Report, Mapping[str, Any]], dict[str, Any]]) -> None:
        rows = [
            {"own_run": run, "own_name": report.reporter, **details(report, values)}
            for report, values in reported
            if figure is None or values.get(figure) is not None
        ]
        if rows:
            connection.execute(statement, rows)

    carry_out(_HAS_SPENT, "epsilon_total", lambda _, values: {"own_spent": values["epsilon_total"]})
    carry_out(_NO_GUARANTEE, "epsilon_none", lambda _report, _values: {})
    carry_out(_NO_RECORDS, "record_none", lambda _report, _values: {})
    carry_out(
        _SAME_DELTA,
        "record_epsilon",
        lambda _, values: {"own_spent": values["record_epsilon"], "own_delta": values.get("record_delta") or 0.0},
    )
    carry_out(
        _OTHER_DELTA,
        "record_epsilon",
        lambda report, values: {
            "own_spent": values["record_epsilon"],
            "own_delta": values.get("record_delta") or 0.0,
            "own_round": report.number,
        },
    )
    shown = ("problem", "drill", "given_up", "epsilon_budget", "record_budget")
    carry_out(
        _LATEST,
        None,
        lambda report, values: {"own_round": report.number} | {f"own_{name}": values.get(name) for name in shown},
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
        connection.execute(_known(connection.dialect.name), [{"run": run, "name": name} for name in names])


@cache
def _known(dialect: str) -> Any:
    return insert_for(dialect, silos).on_conflict_do_nothing()


def silo_rows(connection: Connection, run: str) -> list[SiloRow]:
    found = [silo_row(row) for row in connection.execute(select(silos).where(silos.c.run == run))]
    return sorted(found, key=lambda row: row.name.encode())


def silo_row(row: Row[Any]) -> SiloRow:
    return SiloRow(
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
        row.epsilon_none,
    )


def ledger_entries(connection: Connection, run: str, silo: str) -> list[LedgerEntry]:
    found = connection.execute(select(ledger).where(ledger.c.run == run, ledger.c.silo == silo).order_by(ledger.c.round))
    return [LedgerEntry(row.silo, row.round, row.d, row.k, row.alpha, row.epsilon) for row in found]
