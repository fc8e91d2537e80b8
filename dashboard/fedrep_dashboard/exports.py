"""Every chart as a table, for spreadsheets and notebooks: all rounds, never thinned."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from fedrep_dashboard import schema
from fedrep_dashboard.feed import RunFeed

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]

_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "accuracy": ("round", "accuracy", "silo_accuracy_min", "silo_accuracy_median", "silo_accuracy_max"),
    "loss": ("round", "loss", "silo_loss_min", "silo_loss_median", "silo_loss_max"),
    "bytes": (
        "round",
        "bytes_up",
        "bytes_down",
        "bytes_up_total",
        "bytes_down_total",
        "bytes_total",
        "dense_bytes",
        "dense_total",
        "paper_bytes",
        "paper_total",
        "proposed",
        "roster_size",
    ),
    "epsilon": ("round", "epsilon", "epsilon_theorem2", "epsilon_sum", "epsilon_theorem2_sum"),
    "health": ("round", "outcome", "reason", "survivors", "roster_size", "clip_range", "clip_rate", "update_norm", "tolerated"),
}
_PHASES = ("propose", "submit", "confirm", "reveal", "closing")


def _rounds(columns: tuple[str, ...]) -> Callable[[RunFeed], Table]:
    def table(feed: RunFeed) -> Table:
        return columns, ([getattr(row, column) for column in columns] for row in feed.history.rows())

    return table


def _metrics(feed: RunFeed) -> Table:
    rows = [row for row in feed.history.rows() if row.metrics]
    names = sorted({name for row in rows for name in row.metrics})
    return ("round", *names), ([row.round, *(row.metrics.get(name) for name in names)] for row in rows)


def _phases(feed: RunFeed) -> Table:
    header = ("round", "outcome", "started_at", *(f"{phase}_seconds" for phase in _PHASES))
    rows = feed.history.rows()
    return header, ([r.round, r.outcome, r.started_at, *_padded(r.phase_seconds)] for r in rows)


def _buffers(feed: RunFeed) -> Table:
    header = ("round", "buffer", "mark", "members", "survivors", "distance", "weight", "discarded")

    def lines() -> Iterator[Sequence[Any]]:
        for item, marks in feed.history.raw():
            for b in item.buffers:
                mark, distance = marks[b.number]
                weight = b.weight if b.HasField("weight") else None
                yield item.round, b.number, mark, " ".join(b.members), b.survivors, distance, weight, b.discarded

    return header, lines()


def _silos(feed: RunFeed) -> Table:
    header = ("round", "silo", "status", "bytes_up", "bytes_down")
    rounds = feed.history.raw()
    return header, ((item.round, s.silo, s.status, s.bytes_up, s.bytes_down) for item, _ in rounds for s in item.silos)


def _records(feed: RunFeed) -> Table:
    """Only what was said: a silo that does not report has no line, and one without guarantee the word for it."""
    header = ("round", "silo", "record_epsilon")

    def lines() -> Iterator[Sequence[Any]]:
        for item, _ in feed.history.raw():
            for s in item.silos:
                if s.record_none or s.HasField("record_epsilon"):
                    yield item.round, s.silo, "none" if s.record_none else s.record_epsilon

    return header, lines()


def _suspicion(feed: RunFeed) -> Table:
    header = tuple(schema.Standing.model_fields)
    told = feed.history.suspicion(feed.over).silos
    return header, ([getattr(one, column) for column in header] for one in told)


def _events(feed: RunFeed) -> Table:
    header = tuple(schema.EventRow.model_fields)
    return header, ([getattr(item.event, column) for column in header] for item in feed.items)


CHARTS: Final[dict[str, Callable[[RunFeed], Table]]] = {
    **{name: _rounds(columns) for name, columns in _COLUMNS.items()},
    "phases": _phases,
    "metrics": _metrics,
    "buffers": _buffers,
    "silos": _silos,
    "records": _records,
    "suspicion": _suspicion,
    "events": _events,
}


def as_csv(table: Table) -> str:
    header, rows = table
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_harmless(name) for name in header])  # a metric's name is an evaluator's word
    for row in rows:
        writer.writerow([_harmless(value) for value in row])
    return out.getvalue()


def as_records(table: Table) -> list[dict[str, Any]]:
    header, rows = table
    return [dict(zip(header, row, strict=True)) for row in rows]


def compared(metric: str, feeds: Sequence[RunFeed]) -> Table:
    """One column per run, one line per round number that any of them reached."""
    columns = [{row.round: getattr(row, metric) for row in feed.history.rows()} for feed in feeds]
    numbers = sorted(set().union(*columns))
    return ("round", *(feed.name for feed in feeds)), ([n, *(column.get(n) for column in columns)] for n in numbers)


def _padded(seconds: Sequence[float]) -> list[float | None]:
    return [seconds[i] if i < len(seconds) else None for i in range(len(_PHASES))]


def _harmless(value: Any) -> Any:
    """A text that a spreadsheet would run as a formula gets a leading apostrophe; None is an empty cell."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return "" if value is None else value
