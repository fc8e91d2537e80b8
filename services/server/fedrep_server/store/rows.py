"""What the store holds, as frozen rows. Times are Unix seconds (UTC), sizes are bytes, hashes are raw bytes.

`None` where epsilon is meant says "no guarantee", as in `fedrep.privacy`; it is never zero and never infinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedrep.protocol.messages import Outcome


@dataclass(frozen=True, slots=True)
class Progress:
    """What the next round starts from. `attendance` is plain JSON (see `attendance_to_json`).

    `rollback` and `amendments` are serialised protobuf.
    """

    last_round: int
    model_version: int
    model_hash: bytes
    chain: bytes
    clip_range: float
    clip_quiet: int
    attendance: Mapping[str, Any]
    buffer_seed: bytes
    rollback: bytes | None = None
    amendments: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """`manifest` and `options` are serialised protobuf; `open_round` is the number given out and not yet committed, else 0."""

    name: str
    run: bytes
    manifest: bytes
    options: bytes
    state: str
    reason: str
    created_at: float
    progress: Progress
    open_round: int = 0
    deleted_at: float | None = None


@dataclass(frozen=True, slots=True)
class BufferRow:
    number: int
    members: tuple[str, ...]
    survivors: int
    opened: bool
    discarded: str = ""
    distance: float | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class SiloRoundRow:
    """One silo in one round; `status` is on_time, abstained, late, dropped, sitting_out, excluded or absent."""

    silo: str
    status: str
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A finished round as the server saw it, without what silos and the evaluator report later."""

    round: int
    outcome: Outcome
    reason: str
    started_at: float
    phase_seconds: tuple[float, ...]
    consensus_size: int
    roster_size: int
    proposed: int
    survivors: int
    bytes_up: int
    bytes_down: int
    epsilon: float | None
    epsilon_theorem2: float | None
    clip_range: float
    clip_rate: float | None
    update_norm: float | None
    model_version: int
    per_silo: int
    tolerated: int
    buffers: tuple[BufferRow, ...] = ()
    silos: tuple[SiloRoundRow, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundView:
    """A round with what was reported about it. Silos' figures are (smallest, median, largest), empty if nobody reported.

    `records` holds what each silo said that its training records had cost by then; None where it said "none".
    """

    row: RoundRow
    accuracy: float | None = None
    loss: float | None = None
    clip_rate: float | None = None
    silo_accuracy: tuple[float, ...] = ()
    silo_loss: tuple[float, ...] = ()
    records: Mapping[str, float | None] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredUpdate:
    """What GetUpdate answers: the serialised header, and the payload while retention keeps it (else None)."""

    header: bytes
    coordinates: bytes | None
    levels: bytes | None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One silo's proposal in one round: `k` of `d` coordinates under `alpha`, and what that cost."""

    silo: str
    round: int
    d: int
    k: int
    alpha: float
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes received from and sent to one silo since they were last saved."""

    up: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True)
class NewEvent:
    at: float
    kind: str
    text: str
    severity: str = "info"
    round: int = 0
    silo: str = ""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    position: int
    event: NewEvent


@dataclass(frozen=True, slots=True)
class NewModel:
    """A version whose file is already in the model store; this row is what makes it more than an orphan."""

    version: int
    hash: bytes
    chain: bytes
    size: int


@dataclass(frozen=True, slots=True)
class ModelRow:
    """`kept` falls when retention lets the file go; `best` marks the kept version with the highest score."""

    version: int
    hash: bytes
    chain: bytes
    size: int
    accuracy: float | None
    kept: bool
    best: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RoundCommit:
    """Everything a round changes, written in one transaction or not at all."""

    run: str
    round: RoundRow
    progress: Progress
    update: StoredUpdate
    model: NewModel | None = None
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    ledger: Sequence[LedgerEntry] = ()
    events: Sequence[NewEvent] = ()


@dataclass(frozen=True, slots=True)
class SiloRow:
    """`epsilon_ledger` is what this server counted, `epsilon_reported` what the silo says; None: no guarantee, or not said.
    `epsilon_none`: it says that it has no guarantee, in all runs over its data.

    `record_epsilon` is what it says that a training record has cost; None: not said, or none at all (`record_none`).
    """

    name: str
    last_seen: float
    software_version: str
    certificate_expires: float
    bytes_up: int
    bytes_down: int
    epsilon_ledger: float | None
    epsilon_reported: float | None
    epsilon_budget: float | None
    drill: str
    problem: str
    given_up: int
    record_epsilon: float | None = None
    record_delta: float | None = None
    record_budget: float | None = None
    record_none: bool = False
    epsilon_none: bool = False

    @property
    def epsilon(self) -> float | None:
        """Never shown smaller than it is: no guarantee, on the server's own ledger or by the silo's word, stays none."""
        if self.epsilon_none:
            return None
        if self.epsilon_ledger is None or self.epsilon_reported is None:
            return self.epsilon_ledger
        return max(self.epsilon_ledger, self.epsilon_reported)


@dataclass(frozen=True, slots=True)
class RecordFigures:
    """What silos say that one training record has cost: the largest epsilon and the largest delta, of how many silos, and how
    many say that they have no guarantee. Whoever says nothing is in neither number."""

    epsilon: float | None = None
    delta: float | None = None
    reporting: int = 0
    without: int = 0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A run's totals. `epsilon_total` is the largest over the silos, of what was counted here and what they say themselves (of
    all runs over their data); `epsilon_counted` of what was counted here alone. None if any proposal had no guarantee, for the
    total also one in another run."""

    rounds_applied: int
    rounds_skipped: int
    bytes_up: int
    bytes_down: int
    accuracy: float | None
    loss: float | None
    best_accuracy: float | None
    epsilon_total: float | None
    epsilon_counted: float | None
    epsilon_budget: float | None
    last_roster: int
    last_event: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    records: RecordFigures = RecordFigures()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history stays. Headers and the ledger always stay; for rounds and metrics see `trimming`."""

    update_payloads: int = 200
    events: int = 200_000


@dataclass(frozen=True, slots=True)
class Report:
    """What one silo or evaluator says about one round; `figures` has the names of ReportMetricsRequest's fields."""

    number: int
    reporter: str
    role: str
    figures: Mapping[str, Any]
