"""What the coordinator asks of a store. Calls block and are safe from any thread; rows are frozen (see `rows`).

An unknown run raises NotFoundError, a repeated round or name ConflictError, a database that cannot be used now
StoreUnavailableError; in each case nothing was changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fedrep_server.store.deletion import SpentRow
from fedrep_server.store.rows import (
    LedgerEntry,
    ModelRow,
    NewEvent,
    NewModel,
    Progress,
    Report,
    RoundCommit,
    RoundView,
    RunFigures,
    SiloRow,
    StoredEvent,
    StoredRun,
    StoredUpdate,
    Traffic,
)


class Store(Protocol):
    def create_run(self, run: StoredRun, model: NewModel | None = None, events: Sequence[NewEvent] = ()) -> None: ...
    def runs(self) -> list[StoredRun]:
        """Newest first."""
        ...

    def run(self, name: str) -> StoredRun: ...
    def run_by_hash(self, run: bytes) -> StoredRun: ...
    def set_run_state(self, name: str, state: str, reason: str, events: Sequence[NewEvent] = ()) -> None: ...

    def save_progress(
        self, name: str, progress: Progress, model: NewModel | None = None, events: Sequence[NewEvent] = ()
    ) -> None:
        """Between rounds: a silo joined or was excluded, an older model was rolled back to. `last_round` never falls."""
        ...

    def set_tags(self, name: str, tags: Sequence[str]) -> None: ...

    def delete_run(self, name: str, at: float) -> None:
        """All but its row and what silos have spent."""
        ...

    def deleted_runs(self) -> list[str]: ...
    def spent(self) -> list[SpentRow]:
        """By run and silo, deleted runs too."""
        ...

    def summary(self, name: str) -> RunFigures: ...

    def open_round(self, run: str, number: int, state: str = "running", events: Sequence[NewEvent] = ()) -> None:
        """On disk before the number is announced, so that no restart gives the same number out twice. The first round of a
        run changes its state too, in the same transaction."""
        ...

    def commit_round(self, commit: RoundCommit) -> tuple[int, ...]:
        """All of a round or nothing; returns the positions of its events. The same commit again changes nothing and returns
        none: an error may have come after the transaction's end."""
        ...

    def round_row(self, run: str, number: int) -> RoundView | None: ...
    def rounds(self, run: str, from_round: int, limit: int) -> list[RoundView]: ...
    def thinned_rounds(self, run: str, about: int) -> list[RoundView]: ...
    def round_update(self, run: str, number: int) -> StoredUpdate | None: ...
    def add_statement(self, run: str, number: int, silo: str, signature: bytes) -> None: ...
    def statements(self, run: str, number: int) -> tuple[tuple[str, bytes], ...]: ...

    def add_metrics(self, run: str, number: int, reporter: str, role: str, metrics: Mapping[str, Any]) -> None:
        """`metrics` has the names of ReportMetricsRequest's fields; absent ones are left out or None."""
        ...

    def add_reports(self, run: str, together: Sequence[Report]) -> None:
        """Of different reporters, in one transaction."""
        ...

    def touch_silo(self, run: str, name: str, software_version: str, certificate_expires: float, at: float) -> None: ...
    def add_traffic(self, run: str, traffic: Mapping[str, Traffic]) -> None: ...
    def silo_rows(self, run: str) -> list[SiloRow]: ...
    def ledger(self, run: str, silo: str) -> list[LedgerEntry]: ...
    def append_events(self, run: str, new: Sequence[NewEvent]) -> tuple[int, ...]: ...
    def events(self, run: str, after: int, limit: int) -> list[StoredEvent]: ...
    def models(self, run: str) -> list[ModelRow]:
        """The kept versions, ascending."""
        ...

    def retire_models(self, run: str, keep_last: int) -> list[int]:
        """Marks all but the best and the last ones as not kept. Their files may be deleted once this returned."""
        ...

    def forget_past(self, run: str) -> None:
        """Lets go of old payloads and events, as retention says."""
        ...

    def trim_rounds(self, run: str, before: float, most: int) -> int:
        """Lets go of the details of at most so many rounds begun before that moment, the oldest first; returns of how many."""
        ...

    def close(self) -> None: ...
