"""The store on SQLAlchemy: each method is one transaction around the functions of its noun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedrep.errors import ConflictError
from fedrep_server.store import deletion, events, models, reports, rounds, runs, trimming
from fedrep_server.store.database import Database
from fedrep_server.store.rows import (
    LedgerEntry,
    ModelRow,
    NewEvent,
    NewModel,
    Progress,
    Report,
    Retention,
    RoundCommit,
    RoundView,
    RunFigures,
    SiloRow,
    StoredEvent,
    StoredRun,
    StoredUpdate,
    Traffic,
)
from fedrep_server.store.values import clean, whole


class SqlStore:
    def __init__(self, database: Database, retention: Retention) -> None:
        self.database = database
        self._retention = retention

    def create_run(self, run: StoredRun, model: NewModel | None = None, events: Sequence[NewEvent] = ()) -> None:
        with self.database.write() as connection:
            runs.add(connection, run)
            self._note(connection, run.name, model, events)

    def runs(self) -> list[StoredRun]:
        with self.database.read() as connection:
            return runs.all_runs(connection)

    def run(self, name: str) -> StoredRun:
        with self.database.read() as connection:
            return runs.by_name(connection, name)

    def run_by_hash(self, run: bytes) -> StoredRun:
        with self.database.read() as connection:
            return runs.by_hash(connection, run)

    def set_run_state(self, name: str, state: str, reason: str, events: Sequence[NewEvent] = ()) -> None:
        with self.database.write() as connection:
            runs.change(connection, name, state=state, reason=clean(reason))
            self._note(connection, name, None, events)

    def save_progress(
        self, name: str, progress: Progress, model: NewModel | None = None, events: Sequence[NewEvent] = ()
    ) -> None:
        with self.database.write() as connection:
            last = runs.by_name(connection, name).progress.last_round
            if progress.last_round != last:
                raise ConflictError(f"{name!r} is at round {last}, not {progress.last_round}.", reason="ROUND_EXISTS")
            runs.change(connection, name, **runs.progress_columns(progress))
            self._note(connection, name, model, events)

    def _note(self, connection: Any, name: str, model: NewModel | None, new: Sequence[NewEvent]) -> None:
        if model is not None:
            models.add(connection, name, model)
        if new:
            events.append(connection, name, new)

    def set_tags(self, name: str, tags: Sequence[str]) -> None:
        with self.database.write() as connection:
            runs.change(connection, name, tags=sorted({clean(tag) for tag in tags}))

    def delete_run(self, name: str, at: float) -> None:
        with self.database.write() as connection:
            runs.require(connection, name)
            deletion.delete_run(connection, name, at)

    def deleted_runs(self) -> list[str]:
        with self.database.read() as connection:
            return deletion.deleted_runs(connection)

    def spent(self) -> list[deletion.SpentRow]:
        with self.database.read() as connection:
            return deletion.spent(connection)

    def summary(self, name: str) -> RunFigures:
        with self.database.read() as connection:
            return runs.figures(connection, name)

    def open_round(self, run: str, number: int, state: str = "running", events: Sequence[NewEvent] = ()) -> None:
        with self.database.write() as connection:
            runs.open_round(connection, run, number, state)
            self._note(connection, run, None, events)

    def commit_round(self, commit: RoundCommit) -> tuple[int, ...]:
        with self.database.write() as connection:
            return rounds.commit(connection, commit)

    def round_row(self, run: str, number: int) -> RoundView | None:
        with self.database.read() as connection:
            found = rounds.page(connection, run, whole(number), 1)
        return found[0] if found and found[0].row.round == number else None

    def rounds(self, run: str, from_round: int, limit: int) -> list[RoundView]:
        with self.database.read() as connection:
            return rounds.page(connection, run, whole(from_round), whole(limit))

    def thinned_rounds(self, run: str, about: int) -> list[RoundView]:
        with self.database.read() as connection:
            return rounds.thinned(connection, run, whole(about))

    def round_update(self, run: str, number: int) -> StoredUpdate | None:
        with self.database.read() as connection:
            return rounds.stored_update(connection, run, whole(number))

    def add_statement(self, run: str, number: int, silo: str, signature: bytes) -> None:
        with self.database.write() as connection:
            runs.require(connection, run)
            rounds.add_statement(connection, run, number, silo, signature)

    def statements(self, run: str, number: int) -> tuple[tuple[str, bytes], ...]:
        with self.database.read() as connection:
            return rounds.stored_statements(connection, run, whole(number))

    def add_metrics(self, run: str, number: int, reporter: str, role: str, metrics: Mapping[str, Any]) -> None:
        self.add_reports(run, [Report(number, reporter, role, metrics)])

    def add_reports(self, run: str, together: Sequence[Report]) -> None:
        with self.database.write() as connection:
            reports.add_metrics(connection, run, together)

    def touch_silo(self, run: str, name: str, software_version: str, certificate_expires: float, at: float) -> None:
        with self.database.write() as connection:
            reports.touch(connection, run, name, software_version, certificate_expires, at)

    def add_traffic(self, run: str, traffic: Mapping[str, Traffic]) -> None:
        with self.database.write() as connection:
            reports.add_traffic(connection, run, traffic)

    def silo_rows(self, run: str) -> list[SiloRow]:
        with self.database.read() as connection:
            return reports.silo_rows(connection, run)

    def ledger(self, run: str, silo: str) -> list[LedgerEntry]:
        with self.database.read() as connection:
            return reports.ledger_entries(connection, run, silo)

    def append_events(self, run: str, new: Sequence[NewEvent]) -> tuple[int, ...]:
        with self.database.write() as connection:
            return events.append(connection, run, new)

    def events(self, run: str, after: int, limit: int) -> list[StoredEvent]:
        with self.database.read() as connection:
            return events.after(connection, run, whole(after), whole(limit))

    def models(self, run: str) -> list[ModelRow]:
        with self.database.read() as connection:
            return models.kept(connection, run)

    def retire_models(self, run: str, keep_last: int) -> list[int]:
        with self.database.write() as connection:
            return models.retire(connection, run, keep_last)

    def forget_past(self, run: str) -> None:
        with self.database.write() as connection:
            rounds.forget(connection, run, self._retention)

    def trim_rounds(self, run: str, before: float, most: int) -> int:
        with self.database.read() as connection:  # looking takes longer than letting go, and holds no writer up
            found = trimming.whole_rounds(connection, run, before, most)
        if found:
            with self.database.write() as connection:
                trimming.trim(connection, run, found)
        return len(found)

    def close(self) -> None:
        self.database.close()
