"""Rows of the store as messages of the observer contract."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedrep.protocol.attendance import Absence
from fedrep.protocol.manifests import SiloName
from fedrep.protocol.messages import Outcome
from fedrep.wire.v1 import federation_pb2
from fedrep.wire.v1 import observer_pb2 as pb
from fedrep_server.rounds.run_driver import RunDriver
from fedrep_server.rounds.standstill import Waiting, waiting_of, why_away
from fedrep_server.store import ModelRow, RecordFigures, RoundView, RunFigures, SiloRow, StoredEvent, StoredRun

_OUTCOMES = {Outcome.APPLIED: federation_pb2.OUTCOME_APPLIED, Outcome.SKIPPED: federation_pb2.OUTCOME_SKIPPED}


def run_summary(driver: RunDriver, stored: StoredRun, figures: RunFigures) -> pb.RunSummary:
    return pb.RunSummary(
        name=driver.manifest.name,
        run=driver.run,
        state=driver.state.value,
        state_reason=driver.state_reason,
        created_at=stored.created_at,
        round=driver.last_round,
        rounds_planned=driver.manifest.rounds,
        rounds_applied=figures.rounds_applied,
        rounds_skipped=figures.rounds_skipped,
        model_version=driver.model.state.version,
        accuracy=figures.accuracy,
        loss=figures.loss,
        bytes_up=figures.bytes_up,
        bytes_down=figures.bytes_down,
        epsilon_total=figures.epsilon_total,
        epsilon_budget=figures.epsilon_budget,
        silos_present=sum(1 for name in driver.present if silo_state(driver, name) == "present"),
        silos_allowed=len(driver.manifest.silos),
        aggregator=driver.manifest.aggregator,
        drills=driver.manifest.drills,
        best_accuracy=figures.best_accuracy,
        metrics=figures.metrics,
        tags=figures.tags,
        records=pb.RecordTotals(**{name: getattr(figures.records, name) for name in RecordFigures.__dataclass_fields__}),
        waiting=waiting_message(waiting_of(driver, time.time())),
    )


def waiting_message(waiting: Waiting | None) -> pb.Waiting | None:
    if waiting is None:
        return None
    silos, without = (
        [pb.WaitedSilo(name=silo.name, reason=silo.reason, since=silo.since) for silo in some]
        for some in (waiting.silos, waiting.without)
    )
    return pb.Waiting(
        what=waiting.what,
        silos=silos,
        without=without,
        until=waiting.until,
        since=waiting.since,
        present=waiting.present,
        quorum=waiting.quorum,
        standing_still=waiting.standing_still,
    )


def smallest_budget(options: pb.RunOptions, figures: RunFigures) -> float | None:
    """The run's own budget or the smallest one a silo has reported, whichever ends the run's rounds first."""
    return min(
        (budget for budget in (options.epsilon_budget or None, figures.epsilon_budget) if budget is not None), default=None
    )


def silo_statuses(driver: RunDriver, rows: Sequence[SiloRow]) -> list[pb.SiloStatus]:
    known = {row.name: row for row in rows}
    return [_silo_status(driver, name, known.get(name)) for name in driver.manifest.silos]


def silo_state(driver: RunDriver, name: SiloName) -> str:
    """A silo of a run that is over has gone home, unless it still holds the line."""
    standing = driver.attendance.standings.get(name)
    if name in driver.attendance.excluded:
        return "excluded"
    if standing is None:
        return "absent"
    if driver.state.is_over and not driver.holds_line(name):
        return "left"
    if not standing.present:
        return {Absence.LEFT: "left", Absence.NOT_BACK: "absent"}.get(standing.absence, "lost")
    return "sitting_out" if standing.back_in_round > driver.last_round + 1 else "present"


def _silo_status(driver: RunDriver, name: SiloName, row: SiloRow | None) -> pb.SiloStatus:
    standing = driver.attendance.standings.get(name)
    status = pb.SiloStatus(name=name, state=silo_state(driver, name), epsilon_total=0.0)
    if driver.state.is_over:
        status.reason = "" if status.state in ("present", "absent") else "the run is over"
    else:
        status.reason, status.away_since = why_away(driver, name), driver.notes.since(name)
    if standing is not None:
        status.strikes, status.back_in_round = standing.strikes, standing.back_in_round
    if row is not None:
        status.ClearField("epsilon_total")  # of one that never came nothing is known, and nothing was spent
        status.MergeFrom(
            pb.SiloStatus(
                last_seen=row.last_seen,
                software_version=row.software_version,
                bytes_up=row.bytes_up,
                bytes_down=row.bytes_down,
                certificate_expires=row.certificate_expires,
                epsilon_total=row.epsilon,
                epsilon_budget=row.epsilon_budget,
                drill=row.drill,
                problem=row.problem,
                given_up=row.given_up,
                record_epsilon=row.record_epsilon,
                record_delta=row.record_delta,
                record_budget=row.record_budget,
                record_none=row.record_none,
            )
        )
    return status


def round_message(view: RoundView) -> pb.Round:
    row = view.row
    return pb.Round(
        round=row.round,
        outcome=_OUTCOMES[row.outcome],
        reason=row.reason,
        started_at=row.started_at,
        phase_seconds=row.phase_seconds,
        consensus_size=row.consensus_size,
        roster_size=row.roster_size,
        proposed=row.proposed,
        survivors=row.survivors,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        epsilon=row.epsilon,
        epsilon_theorem2=row.epsilon_theorem2,
        clip_range=row.clip_range,
        clip_rate=view.clip_rate if view.clip_rate is not None else row.clip_rate,
        update_norm=row.update_norm,
        accuracy=view.accuracy,
        loss=view.loss,
        silo_accuracy=view.silo_accuracy,
        silo_loss=view.silo_loss,
        buffers=[
            pb.BufferRound(
                number=buffer.number,
                members=buffer.members,
                survivors=buffer.survivors,
                opened=buffer.opened,
                discarded=buffer.discarded,
                distance=buffer.distance,
                weight=buffer.weight,
            )
            for buffer in row.buffers
        ],
        silos=[
            pb.SiloRound(
                silo=silo.silo,
                status=silo.status,
                bytes_up=silo.bytes_up,
                bytes_down=silo.bytes_down,
                record_epsilon=view.records.get(silo.silo),
                record_none=silo.silo in view.records and view.records[silo.silo] is None,
            )
            for silo in row.silos
        ],
        model_version=row.model_version,
        per_silo=row.per_silo,
        tolerated=row.tolerated,
        metrics=view.metrics,
    )


def event_message(stored: StoredEvent) -> pb.Event:
    event = stored.event
    return pb.Event(
        position=stored.position,
        at=event.at,
        kind=event.kind,
        severity=event.severity,
        round=event.round,
        silo=event.silo,
        text=event.text,
    )


def model_version(row: ModelRow) -> pb.ModelVersion:
    return pb.ModelVersion(
        version=row.version, model_hash=row.hash, accuracy=row.accuracy, size=row.size, best=row.best, score=row.score
    )
