"""A finished round turned into what is committed and answered: the next model, attendance and range, the update, the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median

import numpy as np

from fedrep.privacy import coordinate_epsilon, theorem2_epsilon
from fedrep.protocol.attendance import Attendance
from fedrep.protocol.clip_range import ClipRange
from fedrep.protocol.manifests import RunHash
from fedrep.protocol.messages import Evidence, Outcome, Update
from fedrep.protocol.model_state import ServerModel
from fedrep.protocol.round_effects import RoundResult
from fedrep.protocol.server_round import ServerRound
from fedrep_server.store.rows import BufferRow, LedgerEntry, RoundRow, SiloRoundRow, Traffic


class RunState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return self in (RunState.FINISHED, RunState.STOPPED)


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """Everything a round changed, before any of it is on disk."""

    update: Update
    model: ServerModel
    attendance: Attendance
    clip_range: ClipRange
    row: RoundRow
    ledger: tuple[LedgerEntry, ...]
    traffic: Mapping[str, Traffic]
    failed_to_reveal: int  # silos that submitted, and then kept back shares that were waited for or had dealt wrong ones

    def in_a_line(self, seconds: float) -> dict[str, object]:
        """For the log."""
        return {
            "round": self.row.round,
            "outcome": self.row.outcome.value,
            "reason": self.row.reason or None,
            "survivors": self.row.survivors,
            "seconds": round(seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Clock:
    """When the round started and when each later phase did, DONE last."""

    started_at: float
    marks: tuple[float, ...]

    def phase_seconds(self) -> tuple[float, ...]:
        return tuple(later - earlier for earlier, later in zip(self.marks, self.marks[1:], strict=False))


def close_round(
    machine: ServerRound,
    result: RoundResult,
    model: ServerModel,
    attendance: Attendance,
    clip_range: ClipRange,
    *,
    clip_rates: Mapping[str, float],
    repeated: frozenset[str],
    clock: Clock,
    traffic: Mapping[str, Traffic],
) -> ClosedRound:
    """`repeated` names silos that sent the same coordinates as in their last proposal: those cost no new epsilon."""
    descent, norm, largest = None, None, 0.0
    if result.outcome is Outcome.APPLIED and result.combined is not None:
        model, descent = model.apply(result.indices, result.coordinates, result.combined.vector, machine.run.downlink_bits)
        norm = float(np.linalg.norm(result.combined.vector))
        largest = float(np.abs(result.combined.vector).max(initial=0.0))
    survivors = result.survivors.names() if result.survivors is not None else frozenset()
    rates = [rate for silo, rate in clip_rates.items() if silo in survivors]
    next_range = clip_range
    if result.outcome is Outcome.APPLIED:
        next_range = clip_range.after_round(rates, largest, machine.run)
    evidence = Evidence(result.survivors, result.confirmations, (), result.opened)
    update = Update(
        machine.manifest.run, machine.manifest.round, result.outcome, result.reason, model.state.name, evidence, descent
    )
    return ClosedRound(
        update,
        model,
        attendance.after_round(machine.manifest.round, result.report),
        next_range,
        _row(machine, result, clock, traffic, attendance, norm, median(rates) if rates else None, update.model.version),
        _ledger(machine, repeated),
        traffic,
        len(survivors & result.report.failed),
    )


def skipped_by_restart(run: RunHash, number: int, model: ServerModel) -> Update:
    """The round that was open when the server died: nobody knows more about it than that."""
    return Update(run, number, Outcome.SKIPPED, "the server restarted during the round", model.state.name)


def empty_row(number: int, reason: str, at: float, clip_range: float, model_version: int) -> RoundRow:
    return RoundRow(
        round=number,
        outcome=Outcome.SKIPPED,
        reason=reason,
        started_at=at,
        phase_seconds=(),
        consensus_size=0,
        roster_size=0,
        proposed=0,
        survivors=0,
        bytes_up=0,
        bytes_down=0,
        epsilon=None,
        epsilon_theorem2=None,
        clip_range=clip_range,
        clip_rate=None,
        update_norm=None,
        model_version=model_version,
        per_silo=0,
        tolerated=0,
    )


def _ledger(machine: ServerRound, repeated: frozenset[str]) -> tuple[LedgerEntry, ...]:
    manifest = machine.manifest
    cost = coordinate_epsilon(manifest.parameters, manifest.per_silo, manifest.alpha)
    return tuple(
        LedgerEntry(silo, manifest.round, manifest.parameters, manifest.per_silo, manifest.alpha, cost)
        for silo in sorted(machine.proposed - repeated)
    )


def _row(
    machine: ServerRound,
    result: RoundResult,
    clock: Clock,
    traffic: Mapping[str, Traffic],
    attendance: Attendance,
    norm: float | None,
    clip_rate: float | None,
    version: int,
) -> RoundRow:
    manifest = machine.manifest
    alpha, k, d = manifest.alpha, manifest.per_silo, manifest.parameters
    return RoundRow(
        round=manifest.round,
        outcome=result.outcome,
        reason=result.reason,
        started_at=clock.started_at,
        phase_seconds=clock.phase_seconds(),
        consensus_size=int(result.indices.size),
        roster_size=len(manifest.roster),
        proposed=len(machine.proposed),
        survivors=len(result.survivors.names()) if result.survivors is not None else 0,
        bytes_up=sum(t.up for t in traffic.values()),
        bytes_down=sum(t.down for t in traffic.values()),
        epsilon=coordinate_epsilon(d, k, alpha),
        epsilon_theorem2=theorem2_epsilon(d, k, alpha) if alpha > 0 else None,
        clip_range=manifest.clip_range,
        clip_rate=clip_rate,
        update_norm=norm,
        model_version=version,
        per_silo=k,
        tolerated=result.combined.byzantine if result.combined is not None else 0,
        buffers=_buffer_rows(result),
        silos=_silo_rows(machine, result, traffic, attendance),
    )


def _buffer_rows(result: RoundResult) -> tuple[BufferRow, ...]:
    rows = []
    for number, places in enumerate(result.assignment):
        alive = len(result.survivors.buffers[number]) if result.survivors is not None else 0
        combined = result.combined
        rows.append(
            BufferRow(
                number,
                tuple(place.silo for place in places),
                alive,
                number in result.opened,
                result.discarded.get(number, ""),
                combined.distances.get(number) if combined is not None else None,
                combined.weights.get(number) if combined is not None else None,
            )
        )
    return tuple(rows)


def _silo_rows(
    machine: ServerRound, result: RoundResult, traffic: Mapping[str, Traffic], attendance: Attendance
) -> tuple[SiloRoundRow, ...]:
    survivors = result.survivors.names() if result.survivors is not None else frozenset()
    rows = []
    for silo in machine.run.silos:
        used = traffic.get(silo, Traffic())
        if silo in attendance.excluded:
            status = "excluded"
        elif silo not in machine.manifest.names:
            standing = attendance.standings.get(silo)
            waits = standing is not None and standing.back_in_round > machine.manifest.round
            status = "sitting_out" if waits else "absent"
        elif silo not in machine.proposed:
            status = "late"
        elif result.survivors is not None and silo not in survivors:
            status = "dropped"
        else:
            status = "on_time"
        rows.append(SiloRoundRow(silo, status, used.up, used.down))
    return tuple(rows)
