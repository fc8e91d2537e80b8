"""A closed round as rows of the store: what the machine says about it, with the time and the bytes it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedrep.privacy import theorem2_epsilon
from fedrep.protocol.round_closing import ClosedRound
from fedrep.protocol.round_effects import RoundResult
from fedrep_server.store.rows import BufferRow, LedgerEntry, RoundRow, SiloRoundRow, Traffic


@dataclass(frozen=True, slots=True)
class Clock:
    """When the round started, and when each phase did, the round's end last."""

    started_at: float
    marks: tuple[float, ...]

    def phase_seconds(self) -> tuple[float, ...]:
        return tuple(later - earlier for earlier, later in zip(self.marks, self.marks[1:], strict=False))


def round_row(closed: ClosedRound, clock: Clock, traffic: Mapping[str, Traffic]) -> RoundRow:
    """Of a round that a restart cut off little is known: zeros."""
    manifest, result = closed.manifest, closed.result
    theorem2 = None
    if manifest is not None and manifest.alpha > 0:
        theorem2 = theorem2_epsilon(manifest.parameters, manifest.per_silo, manifest.alpha)
    return RoundRow(
        round=closed.update.round,
        outcome=result.outcome,
        reason=result.reason,
        started_at=clock.started_at,
        phase_seconds=clock.phase_seconds(),
        consensus_size=int(result.indices.size),
        roster_size=len(manifest.roster) if manifest is not None else 0,
        proposed=len(result.proposals),
        survivors=len(result.survivor_names),
        bytes_up=sum(t.up for t in traffic.values()),
        bytes_down=sum(t.down for t in traffic.values()),
        epsilon=closed.epsilon,
        epsilon_theorem2=theorem2,
        clip_range=manifest.clip_range if manifest is not None else closed.progress.clip_range.value,
        clip_rate=closed.clip_rate,
        update_norm=closed.update_norm,
        model_version=closed.update.model.version,
        per_silo=manifest.per_silo if manifest is not None else 0,
        tolerated=result.combined.byzantine if result.combined is not None else 0,
        buffers=_buffer_rows(result),
        silos=tuple(_silo_row(silo, fate.value, traffic.get(silo, Traffic())) for silo, fate in closed.fates.items()),
    )


def ledger_entries(closed: ClosedRound) -> tuple[LedgerEntry, ...]:
    manifest = closed.manifest
    if manifest is None:
        return ()
    d, k, alpha = manifest.parameters, manifest.per_silo, manifest.alpha
    return tuple(LedgerEntry(silo, manifest.round, d, k, alpha, closed.epsilon) for silo in closed.charged)


def _silo_row(silo: str, fate: str, used: Traffic) -> SiloRoundRow:
    return SiloRoundRow(silo, fate, used.up, used.down)


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
