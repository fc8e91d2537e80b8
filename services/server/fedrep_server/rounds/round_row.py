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
    """Of a round that a restart cut off little is known: zeros, and what it may have cost at most."""
    manifest, result, charge = closed.manifest, closed.result, closed.charge
    theorem2 = theorem2_epsilon(charge.parameters, charge.per_silo, charge.alpha) if charge.alpha > 0 else None
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
        epsilon=charge.epsilon,
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
    charge, number, epsilon = closed.charge, closed.update.round, closed.charge.epsilon
    return tuple(LedgerEntry(silo, number, charge.parameters, charge.per_silo, charge.alpha, epsilon) for silo in charge.silos)


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
